"""A service that the tests of the command line share, and the command itself as a real process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from house import PATIENCE_S, House, house

FAILSOFT = Path(sys.executable).with_name("failsoft")


class Ran:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def clean_environment(**more: str) -> dict[str, str]:
    """Ours without what would steer a command elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAILSOFT_")}
    return kept | more


@pytest.fixture(scope="session")
def failsoft() -> Callable[..., Ran]:
    """`failsoft("show", ID)` runs the installed command and waits for its end."""

    def run(*arguments: object, stdin: bytes = b"", cwd: Path | None = None, **environment: str) -> Ran:
        done = subprocess.run(
            [FAILSOFT, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            timeout=PATIENCE_S,
            env=clean_environment(**environment),
            cwd=cwd,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture(scope="session")
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`spawn("watch", ID)` starts the installed command and gives the process; nothing of it outlives the tests."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [FAILSOFT, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # so that what was not read yet is still in the pipe
            env=clean_environment(),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One running service for all tests that leave it well."""
    with house(tmp_path_factory.mktemp("cli") / "data") as made:
        yield made
        made.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[House]:
    """A running service of one test's own, to be struck."""
    with house(tmp_path / "data", config="[policy]\nrestart_backoff_s = 0.02\nrestart_backoff_max_s = 0.1\n") as made:
        yield made
