"""Facts of Linux processes: dying with the parent, adopting orphans, being told apart for good."""

import contextlib
import ctypes
import math
import os
import signal
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from runners.cgroups import counts, own_levels
from store.clock import start_ticks

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_EXEC_S = 1.0
"""Longest time that becoming another program is waited for."""

_VICTIM = 500
"""Of 1,000: half of the machine's memory more than it really holds, in the kernel's reckoning."""

INSTANCE = "FAILSOFT_INSTANCE"
"""Environment variable of every child: the data directory it belongs to. Marks orphans as ours."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; at once when that has happened already.

    The child sets it itself, since setting it between fork and exec would race; the check afterwards closes the gap.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def be_ended_first() -> None:
    """Have the kernel end this process before supervisor and web when memory runs out; what it works on goes on."""
    file = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        file.write_text(str(max(_VICTIM, int(file.read_text()))))


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


def end_marked(name: str, value: str, *, spare: Collection[int] = (), patience_s: float = 10.0) -> list[int]:
    """Kill every process of this user that was started with `name=value` in its environment; answers their pids.

    A new session and a dead parent hide nothing from it. Looks again until none is left, since one may just have
    started another, at most for `patience_s` seconds. This process and those in `spare` live on.
    """
    mark = f"{name}={value}".encode()
    deadline = time.monotonic() + patience_s
    unsure = time.monotonic() + min(patience_s, _EXEC_S)
    ended: dict[int, None] = {}
    while time.monotonic() < deadline:
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        seen = {pid: _kill_marked(pid, mark) for pid in pids if pid != os.getpid() and pid not in spare}
        ended.update(dict.fromkeys(pid for pid, killed in seen.items() if killed))
        starting = None in seen.values() and time.monotonic() < unsure
        if not starting and not any(seen.values()):
            break
        time.sleep(0.01)
    return list(ended)


def end_instance(root: Path) -> list[int]:
    """Kill what was started for this data directory, by whomever; this process and its ancestors live on."""
    return end_marked(INSTANCE, str(root), spare=_ancestors())


def end_adopted(known: Collection[int], root: Path) -> None:
    """Orphans of our children end up with us: they are left over, and are ended; their statuses are of no interest.

    What does not carry our mark is let live: process 1 of a container adopts strangers, and a program that became this
    one by `exec` may have had children of its own.
    """
    mark = f"{INSTANCE}={root}".encode()
    for pid in map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()):
        if pid not in known:
            _kill_marked(pid, mark)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _kill_marked(pid: int, mark: bytes) -> bool | None:
    """Whether that process lives, is this user's and carries the mark; then it was sent SIGKILL.

    None: it cannot be told yet, since it is just becoming another program.
    """
    try:
        # Held before it is looked at, so that what is killed is what was looked at, even if the pid is used again.
        held = os.pidfd_open(pid)
    except OSError:
        return False
    folder = Path(f"/proc/{pid}")
    try:
        if folder.stat().st_uid != os.geteuid():
            return False
        environment = (folder / "environ").read_bytes()
        if not environment and not (folder / "cmdline").read_bytes():
            # In the middle of an exec there is a program and neither words nor environment. The dead and the
            # kernel's own threads have no program.
            return None if (folder / "exe").readlink().name else False
        if mark not in environment.split(b"\0"):
            return False
        signal.pidfd_send_signal(held, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(held)
    return True


def _ancestors() -> set[int]:
    found: set[int] = set()
    pid = os.getppid()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return found


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process, mapped files included, or None when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


class Size(msgspec.Struct, frozen=True):
    """Memory of some processes, in bytes. What several of them share counts for each."""

    resident: int
    files: int
    """Of these: mapped files and shared memory."""

    @property
    def own(self) -> int:
        """What nobody else has."""
        return self.resident - self.files


def size_of(pids: Iterable[int]) -> Size:
    """Resident memory; the dead hold nothing."""
    resident = files = 0
    page = os.sysconf("SC_PAGE_SIZE")
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            words = Path(f"/proc/{pid}/statm").read_text().split()
            resident, files = resident + int(words[1]) * page, files + int(words[2]) * page
    return Size(resident, files)


def proportional(pids: Iterable[int]) -> int:
    """Bytes of processes, what is shared divided among all that share it. The kernel counts pages: 10 us for a MiB."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            total += size_of([pid]).resident
    return total


def with_descendants(pid: int) -> list[int]:
    """A process, and all that it and they have started and that live."""
    found = [pid]
    for one in found:
        for task in _entries(Path(f"/proc/{one}/task")):
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def oom_kills() -> int:
    """How many processes of this process's cgroup the kernel has killed for want of memory; 0 where it cannot tell."""
    found = (counts(level / "memory.events") for level in own_levels())
    return next((events.get("oom_kill", 0) for events in found if events), 0)


def usable_cores() -> int:
    """Cores this process may use: its affinity, cut by the CPU quota of its cgroups (v2)."""
    cores = len(os.sched_getaffinity(0))
    for level in own_levels():
        limit = level / "cpu.max"
        if limit.is_file():
            quota, _, period = limit.read_text().partition(" ")
            if quota != "max":
                cores = min(cores, max(1, math.floor(int(quota) / int(period))))
    return max(1, cores)
