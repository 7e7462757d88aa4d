"""Whose bytes on a card are ours, by what the driver tells about processes.

1. The driver knows no pid namespaces: inside a container its pids are the host's, or none are listed. Then nothing can
   be said about ours, and the promises of our own book count.
2. A process is ours when it carries our mark in its environment: that of our runners, and of whatever they start.
3. An empty list beside memory in use says the same as no list: nothing. Less than the smallest context is no program.
4. Never less than nothing: what is not ours is what is used less ours, and at least 0.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from runners.process import INSTANCE

_FIRST_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the machine's own pid namespace. Source: Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO."""

_LESS_THAN_A_CONTEXT: Final = 64 << 20
"""The smallest CUDA context that was seen takes 107 MiB."""


def sees_host_pids() -> bool:
    """Whether pids here are those that the driver tells."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return False


def marked(root: Path) -> Callable[[int], bool]:
    """A question for pids: was that process started by the service on this data directory?"""
    mark = f"{INSTANCE}={root}".encode()

    def ours(pid: int) -> bool:
        try:
            return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    return ours


def share(
    used: int | None, processes: Mapping[int, int | None] | None, ours: Callable[[int], bool] | None
) -> tuple[int | None, int | None]:
    """(ours, foreign) in bytes; `ours` None: pids mean nothing here. Either is None when it cannot be known."""
    if ours is None or processes is None:
        return None, None
    if not processes:
        return (0, used) if used is not None and used < _LESS_THAN_A_CONTEXT else (None, None)
    held = [size for pid, size in processes.items() if ours(pid)]
    if any(size is None for size in held):
        return None, None
    mine = sum(size or 0 for size in held)
    return mine, None if used is None else max(0, used - mine)
