"""When devices whose breaker is open are tried again.

1. Within a run only the monotonic clock counts: a clock that is set moves nothing.
2. Over a restart the rest of a cooldown remains, and the time between two runs counts; it is never longer than it was.
3. A breaker that is held has no end here: it ends when its device was found anew, or when somebody says so.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from core.breaker import Breaker
from store import breakers
from store.clock import Clock
from store.journal import Look, Tx

Submit = Callable[[Callable[[Tx], Any]], Any]
OVER: Final = "its cooldown is over"


class Cooldowns:
    """The supervisor's timers of breakers, over one read-only connection."""

    def __init__(self, driver: sqlite3.Connection, submit: Submit, clock: Clock) -> None:
        self._driver = driver
        self._submit = submit
        self._clock = clock
        self._open: dict[str, tuple[int, int | None]] = {}
        """By device: when its breaker opened (wall clock), and when it is tried again (monotonic), or None."""
        self.tick()

    def open(self, device: str) -> bool:
        """Whether nothing is to be started there now."""
        return device in self._open

    def tick(self) -> None:
        """Look, and try what is due."""
        found = breakers.open_ones(Look(self._driver, self._clock.now_us()))
        self._open = {device: self._timer(device, breaker) for device, breaker in found.items()}
        now = self._clock.mono_us()
        for device, (_, due_us) in self._open.items():
            if due_us is not None and due_us <= now:
                self._submit(partial(breakers.half_open, device=device, reason=OVER, actor="supervisor"))

    def _timer(self, device: str, breaker: Breaker) -> tuple[int, int | None]:
        known = self._open.get(device)
        until_us = breaker.until_us()
        if known is not None and known[0] == breaker.since_us:
            return known
        if until_us is None:
            return breaker.since_us, None
        left_us = min(max(0, until_us - self._clock.now_us()), breaker.cooldown_us)
        return breaker.since_us, self._clock.mono_us() + left_us
