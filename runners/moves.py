"""The supervisor's look after those who wait on the wrong lane: a place for them as soon as there is room.

1. It looks with a read-only connection, which no writer can block; only what is due becomes a unit of work, and that
   looks again inside its transaction (`store.moves`).
2. While one of its units is still waiting for the gate, the same question is not asked again.
"""

import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from core.policy import Policy
from store import moves
from store.clock import Clock
from store.journal import Look, Tx

Submit = Callable[[Callable[[Tx], Any]], "Future[Any]"]
_ACTOR: Final = "supervisor"
_TELL_EVERY_US: Final = 1_000_000


class Moves:
    """Over one read-only connection."""

    def __init__(self, driver: sqlite3.Connection, submit: Submit, policy: Policy, clock: Clock) -> None:
        self._driver = driver
        self._submit = submit
        self._policy = policy
        self._clock = clock
        self._pending: dict[str, Future[Any]] = {}
        self._tell_at_us = 0

    def tick(self) -> None:
        """Look once, and hand in what is due."""
        look = Look(self._driver, self._clock.now_us())
        if self._free("to-cpu") and moves.to_cpu(look, self._policy):
            self._hand_in("to-cpu", partial(moves.move_to_cpu, policy=self._policy, actor=_ACTOR))
        if self._free("to-gpu") and moves.to_gpu(look, self._policy):
            self._hand_in("to-gpu", partial(moves.move_to_gpu, policy=self._policy, actor=_ACTOR))
        if self._free("tell") and self._clock.mono_us() >= self._tell_at_us:
            self._tell_at_us = self._clock.mono_us() + _TELL_EVERY_US
            for request_id in moves.untold(look, self._policy):
                self._hand_in("tell", partial(moves.tell, request_id=request_id, policy=self._policy, actor=_ACTOR))

    def _free(self, what: str) -> bool:
        pending = self._pending.get(what)
        return pending is None or pending.done()

    def _hand_in(self, what: str, unit: Callable[[Tx], Any]) -> None:
        self._pending[what] = self._submit(unit)
