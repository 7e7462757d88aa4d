"""What every test may ask for: an empty data directory, a migrated store, a desk to work at."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from desk import Desk, HandClock
from hypothesis import settings

from store.database import Paths, migrate

# The same examples at every run of CI; elsewhere new ones are tried each time, and what they find becomes a test.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("here", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "here")


@pytest.fixture(scope="session")
def need() -> Callable[[str, str], NoReturn]:
    """`need(component, command)`: a missing component fails the test in CI, and elsewhere skips it with the remedy."""

    def missing(component: str, command: str) -> NoReturn:
        text = f"{component} is missing; install it with: {command}"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)

    return missing


@pytest.fixture
def empty(tmp_path: Path) -> Paths:
    """A data directory with nothing in it."""
    return Paths(tmp_path / "data").make()


@pytest.fixture
def paths(empty: Paths) -> Paths:
    """A data directory with a migrated store."""
    migrate(empty)
    return empty


@pytest.fixture
def bare(paths: Paths) -> Iterator[Desk]:
    """A desk over a migrated store without lanes, on the real clock."""
    desk = Desk(paths)
    yield desk
    desk.close()


@pytest.fixture
def desk(bare: Desk) -> Desk:
    """A desk with a simulated GPU lane and a CPU lane."""
    bare.open_lanes()
    return bare


@pytest.fixture
def clock() -> HandClock:
    """A clock that goes only when told to."""
    return HandClock()


@pytest.fixture
def timed(paths: Paths, clock: HandClock) -> Iterator[Desk]:
    """A desk with both lanes, on `clock`."""
    desk = Desk(paths, clock)
    desk.open_lanes()
    yield desk
    desk.close()
