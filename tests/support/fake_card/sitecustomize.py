"""Read by every Python process that has this directory on its path: those of a service whose NVIDIA card is a fake one.

The program knows nothing of it: what is replaced is NVIDIA's library beneath the real pynvml, the place where a driver
shows itself, the pause between two looks for cards that are gone, how long a loaded model is looked for, and how long
the machine has slept.
"""

import os
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_FILE = Path(os.environ["FAKE_NVML_FILE"])


def _library(_module: Any) -> None:
    from fake_nvml import FakeNvml

    FakeNvml(file=_FILE).install()


def _nodes(module: Any) -> None:
    module.DRIVER_NODES = (str(_FILE),)


def _pause(module: Any) -> None:
    module.AGAIN_S = 0.5


def _patience(module: Any) -> None:
    module.WAIT_S = 4.0


def _sleep(module: Any) -> None:
    clock = module.Clock
    for name in ("now_us", "boot_us"):
        setattr(clock, name, _later(getattr(clock, name)))


def _later(own: Callable[[Any], int]) -> Callable[[Any], int]:
    file = Path(os.environ["FAKE_SLEEP_FILE"])
    return lambda clock: own(clock) + int(file.read_text())


_ACTS: dict[str, Callable[[Any], None]] = {
    "pynvml": _library,
    "runners.accelerator": _nodes,
    "runners.devices.finder": _pause,
    "runners.onboard": _patience,
    "store.clock": _sleep,
}


class _Then(Loader):
    """A module's own loader, and what is done to the module after it."""

    def __init__(self, own: Loader, act: Callable[[Any], None]) -> None:
        self._own = own
        self._act = act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        self._act(module)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        act = _ACTS.get(name)
        spec = None if act is None else PathFinder.find_spec(name, path, target)
        if act is None or spec is None or spec.loader is None:
            return None
        spec.loader = _Then(spec.loader, act)
        return spec


sys.meta_path.insert(0, _Finder())
