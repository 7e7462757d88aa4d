"""The runner as its engine sees it: pulses, threads, chunk sizes; and the questions that are asked at every pulse.

1. A pulse first proves life, then asks: is the device there, was a cancel asked, does the lease still stand?
2. The database is asked only when something was committed since the last look, and at most every `_LOOK_US`: an
   engine of thousands of units a second would do nothing else.
3. A lease is renewed from here, by the thread that works; a hung engine's lease runs out.
"""

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Final

from core.chunks import chunk_size
from core.errors import Fenced, StopWork
from runners.corebook import CoreBook
from runners.devices.base import Device
from runners.engines.base import Ready
from runners.pulse import Pulse
from store.claims import Fence, renew
from store.writer import Writer

_LOOK_US: Final = 2000
CANCEL: Final = "cancel"
DRAIN: Final = "drain"


class Doorbell:
    """Whether anybody committed since the last question; one read-only connection, one thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._version = -1

    def rang(self) -> bool:
        """True at the first question, and after every commit of another connection."""
        version = self.connection.execute("PRAGMA data_version").fetchone()[0]
        changed = bool(version != self._version)
        self._version = version
        return changed


def _none(_done: int) -> int:
    """Nobody knows."""
    return 0


def _nothing() -> None:
    """Nobody asks."""


def _nobody(_how: Ready) -> None:
    """Nobody asked."""


class EngineHost:
    """`runners.engines.base.Host` for one request."""

    def __init__(
        self,
        *,
        fence: Fence,
        chunk_cap: int,
        lease_us: int,
        writer: Writer,
        bell: Doorbell,
        cores: CoreBook | None,
        pulse: Pulse,
        place: int,
        device: Device | None,
        draining: threading.Event,
        fixed_threads: int | None = None,
    ) -> None:
        self._fence = fence
        self._cap = chunk_cap
        self._lease_us = lease_us
        self._writer = writer
        self._clock = writer.clock
        self._bell = bell
        self._cores = cores
        self._pulse = pulse
        self._place = place
        self._device = device
        self._draining = draining
        self._renew_at = self._clock.mono_us() + lease_us // 3
        self._look_at = 0
        self._fixed_threads = fixed_threads
        self.granted = 1
        """Threads of the chunk that is computed."""
        self.waited_s = 0.0
        """Time that was spent waiting for threads, in all."""
        self.on_ready: Callable[[Ready], None] = _nobody
        self.on_stretch: Callable[[int], int] = _none
        self.on_pulse: Callable[[], None] = _nothing
        """Asked at each pulse; may raise what must stop the work."""

    def pulse(self, units: int) -> None:  # noqa: ARG002 -- the protocol tells the size of the step
        """Prove life; raise what must stop the work."""
        now = self._clock.mono_us()
        self._pulse.beat(now, "busy", self._place)
        if self._device is not None:
            self._device.check()
        self.on_pulse()
        if now >= self._look_at:
            self._look_at = now + _LOOK_US
            if self._bell.rang():
                self._look()
        if now >= self._renew_at:
            self._renew_at = now + self._lease_us // 3
            self._writer.submit(lambda tx: renew(tx, self._fence, self._lease_us))

    def threads(self) -> int:
        """A grant of cores, waiting until there is one."""
        if self._draining.is_set():
            raise StopWork("the service is stopping", code=DRAIN)
        if self._cores is None:
            return 1
        began = time.monotonic()
        self.granted = self._cores.wait(self._fixed_threads, lambda: self.pulse(0))
        self.waited_s += time.monotonic() - began
        return self.granted

    def chunk_size(self, done: int) -> int:
        """By the plan pinned at admission."""
        return chunk_size(done, self._cap)

    def stretch(self, done: int) -> int:
        """A chunk at least; more where it is known that nothing will be asked for so long."""
        return max(self.chunk_size(done), self.on_stretch(done))

    def ready(self, how: Ready) -> None:
        """The prefix is evaluated; who wants to know is told."""
        self.on_ready(how)

    def _look(self) -> None:
        row = self._bell.connection.execute(
            "SELECT l.token, r.cancel_asked FROM requests r LEFT JOIN leases l ON l.request_id = r.id WHERE r.id = ?",
            (self._fence.request_id,),
        ).fetchone()
        if row is None or row[0] != self._fence.token:
            raise Fenced(f"the lease of {self._fence.request_id} was ended")
        if row[1]:
            raise StopWork("a cancel was asked", code=CANCEL)
