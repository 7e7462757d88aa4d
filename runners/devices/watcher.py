"""A thread that looks at one device again and again.

1. Each device has its own, so a call that hangs for ever stops the news of one device and nothing else: what was seen
   last stays, with the time it was seen, and grows old.
2. The time of a reading is the time before the look.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from runners.devices.base import Reading
from store.clock import Clock

log = logging.getLogger("failsoft.monitor")

SILENT_S: Final = 5.0


class Seen(msgspec.Struct, frozen=True):
    """A reading as it is kept, and when it was taken (wall clock, microseconds)."""

    at_us: int
    document: str


class Watcher(threading.Thread):
    """`look` answers readings by device; `pause` waits until the next look is due; `rang` is told of changes."""

    def __init__(
        self,
        name: str,
        look: Callable[[], Mapping[str, Reading]],
        pause: Callable[[], object],
        rang: threading.Event,
        clock: Clock,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.latest: dict[str, Seen] = {}
        self._look = look
        self._pause = pause
        self._rang = rang
        self._clock = clock
        self._states: dict[str, tuple[str, str | None]] = {}
        self._began: float | None = None
        self._told = False

    def run(self) -> None:
        """Look until the process ends."""
        while True:
            self._began = time.monotonic()
            at_us = self._clock.now_us()
            try:
                readings = self._look()
            except Exception as error:  # noqa: BLE001 -- one device's trouble, whatever it is, must not end the watch
                readings = {self.name: Reading("unknown", reason=f"it cannot be looked at: {error}")}
            self._began, self._told = None, False
            self._keep(at_us, readings)
            self._pause()

    def complain(self) -> None:
        """Say once when a look takes too long; called from outside."""
        began = self._began
        if began is not None and not self._told and time.monotonic() - began > SILENT_S:
            self._told = True
            log.warning("%s has not answered for %.0f s; what is known of it grows old", self.name, SILENT_S)

    def _keep(self, at_us: int, readings: Mapping[str, Reading]) -> None:
        latest = {name: Seen(at_us, msgspec.json.encode(reading).decode()) for name, reading in readings.items()}
        changed = any(name not in self.latest or self.latest[name].document != latest[name].document for name in latest)
        for name, reading in readings.items():
            state = (reading.state, reading.reason)
            if self._states.get(name, ("ok", None)) != state:
                log.info("%s: %s%s", name, reading.state, f", {reading.reason}" if reading.reason else "")
            self._states[name] = state
        self.latest = latest
        if changed:
            self._rang.set()
