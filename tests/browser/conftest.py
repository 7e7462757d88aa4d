"""A browser and a service for each test of this folder."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def part(name: str) -> Any:
    """A module beside this file, once."""
    full = f"failsoft_browser_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


@pytest.fixture(scope="session")
def kit() -> Any:
    return part("kit")


@pytest.fixture(scope="session")
def scenes() -> Any:
    return part("scenes")


@pytest.fixture(scope="session")
def chrome(kit: Any) -> Iterator[Any]:
    """One browser for all tests; each looks at a service of its own, on a port of its own."""
    with kit.browser() as driver:
        yield driver


@pytest.fixture
def box(kit: Any, scenes: Any, chrome: Any, tmp_path: Path) -> Iterator[Any]:
    kit.programs()
    made = kit.services().Box(tmp_path, scenes.settings())
    kit.complaints(chrome)  # those of the test before are not ours
    yield made
    chrome.get("about:blank")
    made.close()


@pytest.fixture(scope="module")
def module_box(kit: Any, scenes: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    kit.programs()
    made = kit.services().Box(tmp_path_factory.mktemp("browser"), scenes.settings())
    yield made
    made.close()


@pytest.fixture
def shared(module_box: Any, chrome: Any, kit: Any) -> Iterator[Any]:
    """One service for a whole module of tests; after each of them nothing waits in its lanes."""
    kit.complaints(chrome)
    yield module_box
    chrome.get("about:blank")
    module_box.writer.run(kit.services()._end_all)
