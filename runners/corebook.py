"""The core ledger, shared by all runners of one service: who computes with how many threads right now.

`core.cores.grant` decides; here the facts are kept, in one mapped file under a lock of its own. Holders are named by
pid and start time, so a killed runner's threads are free again at once.
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from core.cores import grant
from store.clock import start_ticks

_SLOT: Final = struct.Struct("<QQQ")
_SLOTS: Final = 64
_WAIT_S: Final = 0.002


class CoreBook:
    """One runner's view of the ledger; its slots are for single-threaded engines of one process."""

    def __init__(self, path: Path, *, total: int, reserve: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._fd, 0, _SLOT.size * _SLOTS)  # a hole would be SIGBUS once the disk is full
        self._map = mmap.mmap(self._fd, _SLOT.size * _SLOTS)
        self._total = total
        self._reserve = reserve
        self._me = (os.getpid(), start_ticks(os.getpid()) or 0)

    @contextmanager
    def _locked(self) -> Iterator[dict[int, tuple[int, int, int]]]:
        """Living holders by slot, as (pid, start, threads); what the body leaves there is written back."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            slots = {}
            for index in range(_SLOTS):
                pid, ticks, threads = _SLOT.unpack_from(self._map, index * _SLOT.size)
                if pid and start_ticks(pid) == ticks:
                    slots[index] = (pid, ticks, threads)
            yield slots
            for index in range(_SLOTS):
                _SLOT.pack_into(self._map, index * _SLOT.size, *slots.get(index, (0, 0, 0)))
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def grant(self, most: int | None = None) -> int:
        """Threads for the next chunk, 0 when none are left right now. What was held before is given back first.

        `most` is how many can be used at all.
        """
        with self._locked() as slots:
            mine = next((i for i, (pid, ticks, _) in slots.items() if (pid, ticks) == self._me), None)
            if mine is None:
                mine = next(i for i in range(_SLOTS) if i not in slots)
            slots.pop(mine, None)
            held = sum(threads for _, _, threads in slots.values())
            threads = grant(total=self._total, reserve=self._reserve, busy=len(slots) + 1, held_by_others=held)
            threads = threads if most is None else min(threads, most)
            slots[mine] = (*self._me, threads)
            return threads

    def wait(self, most: int | None, meanwhile: Callable[[], None]) -> int:
        """A grant, as soon as there is one; until then `meanwhile` is called now and then, and may raise."""
        while (granted := self.grant(most)) == 0:
            meanwhile()
            time.sleep(_WAIT_S)
        return granted

    def release(self) -> None:
        """Give everything back: this runner has nothing to compute."""
        with self._locked() as slots:
            for index in [i for i, (pid, ticks, _) in slots.items() if (pid, ticks) == self._me]:
                del slots[index]

    def held(self) -> dict[int, int]:
        """Threads by pid, for the curious."""
        with self._locked() as slots:
            return {pid: threads for pid, _, threads in slots.values()}
