import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import FAST, House, house


@pytest.fixture
def null_house(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path / "data", config=FAST) as made:
        yield made


@pytest.fixture(scope="session")
def model_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data directory with the real model prepared, shared by the tests that need it."""
    return tmp_path_factory.mktemp("smollm2") / "data"


@pytest.fixture(scope="module")
def model_house(model_root: Path) -> Iterator[House]:
    with house(model_root, model="smollm2-135m", config=FAST) as made:
        yield made


@pytest.fixture
def kills() -> int:
    """How many interruptions; more where FAILSOFT_KILLS says so."""
    return int(os.environ.get("FAILSOFT_KILLS", "50"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks how many kills there are is run again, with many more, among the long proofs."""
    for item in items:
        if "kills" in getattr(item, "fixturenames", ()):
            item.add_marker("kills")
