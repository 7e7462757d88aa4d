"""The writer gate: one lock file beside the database, held around every write transaction and every WAL checkpoint.

1. It closes the WAL-reset window of SQLite 3.7.0 to 3.51.2, where a checkpoint beside a commit can lose commits.
2. It replaces SQLite's polling for the write lock by a wait in the kernel, which is fair and short.
3. Each user has its own open file description: flock on a shared one does not exclude threads.
4. The holder writes who it is into the file, so that a holder which never finishes can be found (`holder`).
5. A lock file that was deleted keeps nobody out any more, and the database beside it is likely gone as well: who gets
   in by such a one is refused.

The lock is on a file of its own, never on the database: closing any descriptor of a database file drops all of the
process's SQLite locks.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from core.errors import NoSpace
from store import faultpoints
from store.clock import start_ticks

_RECORD = struct.Struct("<QQQ")


class Holder(msgspec.Struct, frozen=True):
    """Who holds the gate: a process, and a number that changes with every hold of that process."""

    pid: int
    ticks: int
    count: int


class Gate:
    """One user's way through the gate; not shared between threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pid = os.getpid()
        self._ticks = start_ticks(self._pid) or 0
        self._count = 0
        with suppress(OSError):  # a full disk: the record is a help for finding a stuck holder, the lock needs no space
            os.posix_fallocate(self._fd, 0, _RECORD.size)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Wait for the gate and hold it. Raises `NoSpace` when the lock file was deleted."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            if self.deleted():
                raise NoSpace(f"not committed: {self._path} was deleted under the running service; start it again")
            self._count += 1
            self._sign(self._pid, self._ticks)
            faultpoints.hit("gate.held")
            yield
        finally:
            self._sign(0, 0)
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _sign(self, pid: int, ticks: int) -> None:
        """Write down who holds it. That this cannot be written keeps nobody from working, or from letting go."""
        with suppress(OSError):
            os.pwrite(self._fd, _RECORD.pack(pid, ticks, self._count), 0)

    def holder(self) -> Holder | None:
        """Who says to be holding it, or None. A dead holder's record may linger; its lock does not."""
        raw = os.pread(self._fd, _RECORD.size, 0)
        if len(raw) < _RECORD.size:
            return None
        holder = Holder(*_RECORD.unpack(raw))
        return holder if holder.pid and start_ticks(holder.pid) == holder.ticks else None

    def free(self) -> bool:
        """Whether nobody holds it at this instant."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def deleted(self) -> bool:
        """Whether the lock file is gone from its directory, most likely together with it."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)
