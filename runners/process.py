"""Facts of Linux processes: dying with the parent, adopting orphans, being told apart for good."""

import ctypes
import math
import os
import signal
from pathlib import Path

from store.clock import start_ticks

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

INSTANCE = "FAILSOFT_INSTANCE"
"""Environment variable of every child: the data directory it belongs to. Marks orphans as ours."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; at once when that has happened already.

    The child sets it itself, since setting it between fork and exec would race; the check afterwards closes the gap.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def belongs_to(pid: int, ticks: int, root: Path) -> bool:
    """Whether that very process is alive and was started for this data directory."""
    if start_ticks(pid) != ticks:
        return False
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{INSTANCE}={root}".encode() in environ


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process, mapped files included, or None when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def oom_kills() -> int:
    """How many processes of this process's cgroup the kernel has killed for want of memory; 0 where it cannot tell."""
    for level in _own_cgroups():
        events = level / "memory.events"
        if events.is_file():
            counts = dict(line.split() for line in events.read_text().splitlines())
            return int(counts.get("oom_kill", 0))
    return 0


def _own_cgroups() -> list[Path]:
    """This process's cgroup (v2) and its ancestors, nearest first."""
    root = Path("/sys/fs/cgroup")
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    folder = root / next((line[3:] for line in lines if line.startswith("0::")), "/").lstrip("/")
    return [level for level in (folder, *folder.parents) if level == root or root in level.parents]


def usable_cores() -> int:
    """Cores this process may use: its affinity, cut by the CPU quota of its cgroups (v2)."""
    cores = len(os.sched_getaffinity(0))
    for level in _own_cgroups():
        limit = level / "cpu.max"
        if limit.is_file():
            quota, _, period = limit.read_text().partition(" ")
            if quota != "max":
                cores = min(cores, max(1, math.floor(int(quota) / int(period))))
    return max(1, cores)
