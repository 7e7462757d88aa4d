"""The slots of a llama-server, each lent to one sequence at a time.

1. A slot is emptied when it comes back, and that is awaited when it is lent again: so nobody waits for it who stops,
   and every answer begins in an empty slot.
2. The one that has rested longest is lent first.
3. A server that empties none begins every answer from the first token all the same: its first call says so.
4. Only slots that were planned are used; a server may have more.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from core.errors import EngineFault
from runners.engines.llamahttp import Address, Question


class _Saved(msgspec.Struct, frozen=True):
    n_saved: int


class _Restored(msgspec.Struct, frozen=True):
    n_restored: int


class _Erased(msgspec.Struct, frozen=True):
    n_erased: int


class Slot:
    """One of them."""

    def __init__(self, at: Address, number: int, directory: Path | None, back: Callable[["Slot"], None]) -> None:
        self.at = at
        self.number = number
        self.directory = directory
        """Where the server looks for saved states; None: it has none."""
        self._back = back
        self._empties = True
        self._emptying: Question[_Erased] | None = None

    def clean(self) -> None:
        """Wait until it is empty. Raises `EngineFault`."""
        emptying, self._emptying = self._emptying, None
        if emptying is not None:
            emptying.answer()

    def release(self) -> None:
        """Empty it as soon as it is at rest, and have it lent again."""
        if self._empties and self._emptying is None:
            # Whoever gets it next asks the same server, and is told when there is none any more.
            with contextlib.suppress(EngineFault):
                self._emptying = Question(self.at, "POST", self._path("erase"), kind=_Erased)
        self._back(self)

    def close(self) -> None:
        """Wait for nothing any more."""
        emptying, self._emptying = self._emptying, None
        if emptying is not None:
            emptying.close()

    def try_out(self) -> bool:
        """Empty it now; False when this server does not do that, and is not asked any more."""
        try:
            self.at.ask("POST", self._path("erase"), kind=_Erased)
        except EngineFault:
            # It offers no such thing, or only with a directory for saved states.
            self._empties = False
        return self._empties

    def save(self, name: str) -> int:
        """Tokens saved. Raises `EngineFault`."""
        return self.at.ask("POST", self._path("save"), _named(name), kind=_Saved).n_saved

    def restore(self, name: str) -> int:
        """Tokens restored. Raises `EngineFault`. A damaged file may end the process."""
        return self.at.ask("POST", self._path("restore"), _named(name), kind=_Restored).n_restored

    def _path(self, action: str) -> str:
        return f"/slots/{self.number}?action={action}"


class Slots:
    """All of them; asked from many threads."""

    def __init__(self, at: Address, count: int, directory: Path | None) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._free = deque(Slot(at, number, directory, self._back) for number in range(count))

    def lend(self) -> Slot:
        """A free one. Raises `EngineFault` when all are taken."""
        with self._lock:
            if not self._free:
                raise EngineFault(f"All {self._count} slot(s) are taken. End a sequence first, or plan more slots.")
            return self._free.popleft()

    def empty(self) -> None:
        """Empty all of them, before the first is lent, as far as the server does that."""
        for slot in self._free:
            slot.try_out()

    def close(self) -> None:
        """Lend none any more, and wait for nothing."""
        with self._lock:
            self._count = 0
            while self._free:
                self._free.popleft().close()

    def _back(self, slot: Slot) -> None:
        with self._lock:
            if self._count:
                self._free.append(slot)
            else:
                slot.close()


def _named(name: str) -> bytes:
    return msgspec.json.encode({"filename": name})
