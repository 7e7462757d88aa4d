"""Control groups (cgroup v2): where this process is, and a group of our own below it that the kernel holds to a limit.

1. A group of our own is made only where this process's own group was handed to us: its folder may be written, the
   memory controller is among its controllers, and nobody else is in it. Nobody else's process is ever moved, and no
   group above our own is touched.
2. A group with processes may not hand controllers on, so this process first moves into a group below its own.
3. What was made is taken away at the end; what a killed run left is taken away by the next one.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path("/sys/fs/cgroup")
_LEAVE_S: Final = 1.0
"""Longest time that the dead are waited for until they have left a group."""


class NoGroup(Exception):
    """A group of our own cannot be made here; the text says why."""


def own_levels() -> list[Path]:
    """This process's group and those above it, nearest first; one that is not mounted has no files."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    folder = ROOT / next((line[3:] for line in lines if line.startswith("0::")), "/").lstrip("/")
    return [level for level in (folder, *folder.parents) if level == ROOT or ROOT in level.parents]


def counts(file: Path) -> dict[str, int]:
    """A file of names and numbers, such as `memory.stat`; empty where there is none."""
    try:
        return {name: int(number) for name, number in (line.split() for line in file.read_text().splitlines())}
    except (OSError, ValueError):
        return {}


class Group:
    """The group of the CPU lane's workers."""

    def __init__(self, here: Path, name: str) -> None:
        self._here = here
        self._house = here / f"{name}-house"
        self.folder = here / f"{name}-cpu"
        self._kills = 0
        self._limit = -1

    @classmethod
    def make(cls, name: str, limit: int, here: Path | None = None) -> Self:
        """Make it below this process's group, with a limit in bytes. Raises `NoGroup`; nothing is left behind then."""
        here = own_levels()[0] if here is None else here
        if (why := refusal(here)) is not None:
            raise NoGroup(why)
        made = cls(here, name)
        try:
            made._open(limit)
        except OSError as error:
            made.close()
            raise NoGroup(f"the kernel refused it ({error.strerror})") from error
        return made

    def _open(self, limit: int) -> None:
        for folder in (self.folder, self._house):
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
        self._house.mkdir()
        _write(self._house / "cgroup.procs", str(os.getpid()))
        _write(self._here / "cgroup.subtree_control", "+memory")
        self.folder.mkdir()
        self.limit(limit)
        swap = self.folder / "memory.swap.max"
        if swap.is_file():
            _write(swap, "0")

    def limit(self, size: int) -> None:
        """Set the limit in bytes. Raises `OSError`."""
        if size != self._limit:
            _write(self.folder / "memory.max", str(size))
            self._limit = size

    def take(self, pid: int) -> None:
        """Put a process into it, and so whatever it starts. Raises `OSError`."""
        _write(self.folder / "cgroup.procs", str(pid))

    def killed(self) -> bool:
        """Whether the kernel has ended one of the group for want of memory since this was asked last."""
        before, self._kills = self._kills, counts(self.folder / "memory.events").get("oom_kill", self._kills)
        return self._kills > before

    def close(self) -> None:
        """Take it away, and go back to where this process was; all that were in it have ended."""
        _remove(self.folder)
        for file, text in (("cgroup.subtree_control", "-memory"), ("cgroup.procs", str(os.getpid()))):
            with contextlib.suppress(OSError):
                _write(self._here / file, text)
        _remove(self._house)


def refusal(here: Path) -> str | None:
    """Why no group may be made below this one, or None where it was handed to this process, and to it alone."""
    if not (here / "cgroup.controllers").is_file():
        return "cgroup v2 is not in use here"
    if "memory" not in (here / "cgroup.controllers").read_text().split():
        return "the memory controller is not handed to this process's cgroup"
    if not (here / "cgroup.type").is_file():
        return "this process is in the machine's root cgroup"
    if not os.access(here, os.W_OK) or not os.access(here / "cgroup.subtree_control", os.W_OK):
        return "this process may not write its own cgroup"
    if set((here / "cgroup.procs").read_text().split()) - {str(os.getpid())}:
        return "other programs are in this process's cgroup"
    return None


def _write(file: Path, text: str) -> None:
    # A control file is there or not; it is never made.
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _LEAVE_S
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        else:
            return
