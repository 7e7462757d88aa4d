"""A real card, as the runner that computes on it uses it.

1. Its driver is never asked here: a call may hang for ever, and the monitor is there to hang instead. What is known of
   the card is what the monitor wrote last.
2. Memory is taken and given back by the engine itself.
3. Which card a process computes on is said in its environment, by UUID; a process that is to compute on none sees none,
   since even an engine that only works on the CPU would open the card and take memory there.
"""

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from core.errors import DeviceFault
from runners.devices.base import OUT, Reading
from store.database import Paths, read_engine
from store.house import reading_of
from store.journal import Look

_CHECK_S: Final = 0.5
_UUIDS: Final = ("GPU-", "MIG-")
_UNSEEN: Final = Reading("unknown", reason="the monitor has not seen it yet")
_UPSTREAM: Final = "upstream:"

Latest = Callable[[], tuple[int, Reading] | None]
"""The latest reading of a card with its time (wall clock, microseconds)."""


def is_real(device: str) -> bool:
    """Whether this id is that of a real card or of a slice of one."""
    return device.startswith(_UUIDS)


def environment_for(device: str) -> dict[str, str]:
    """What a process that computes there needs in its environment. Servers of others choose for themselves."""
    if device.startswith(_UPSTREAM):
        return {}
    shown = device if is_real(device) else ""
    return {"CUDA_VISIBLE_DEVICES": shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def written(paths: Paths, device: str) -> Latest:
    """What the monitor wrote last about a device."""
    engine = read_engine(paths)

    def latest() -> tuple[int, Reading] | None:
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            found = reading_of(Look(driver, 0), device)
        return None if found is None else (found[0], msgspec.json.decode(found[1], type=Reading))

    return latest


class RealDevice:
    """One card, or one slice of one, by its UUID."""

    simulated = False

    def __init__(self, uuid: str, latest: Latest) -> None:
        self.id = self.name = uuid
        self.latest = latest
        self._next_look = 0.0
        self._turn = threading.Lock()

    def allocate(self, size: int) -> None:  # noqa: ARG002 -- the protocol tells the size
        """Nothing is taken: the engine does that itself. Raises `DeviceFault` when the card is out."""
        self._refuse()

    def give_back(self, size: int) -> None:
        """Nothing: the engine gives it back itself."""

    def check(self) -> None:
        """Look at what was written, twice a second at most. The supervisor ends who computes on a lost card anyway."""
        now = time.monotonic()
        if now < self._next_look or not self._turn.acquire(blocking=False):
            return
        try:
            self._next_look = now + _CHECK_S
            self._refuse()
        finally:
            self._turn.release()

    def _refuse(self) -> None:
        seen = self.observe()
        if seen.state in OUT:
            raise DeviceFault(f"{self.id} is {seen.state}: {seen.reason or 'no longer answers'}")

    def observe(self) -> Reading:
        """The last reading that the monitor wrote; it may be old, and its memory numbers are of then."""
        try:
            found = self.latest()
        except sqlite3.Error:
            return _UNSEEN
        return _UNSEEN if found is None else found[1]
