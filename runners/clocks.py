"""What must happen because time has passed: leases that ran out, deadlines, cancels nobody obeys, devices back.

Each tick first looks with a read-only connection, which no writer can block; only what is due becomes a unit of work,
and that unit looks again inside its transaction. All of it is idempotent and driven by stored times.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from core import events as ev
from core.policy import Policy
from core.pressure import step
from store import claims, commands, failover, house, pressure
from store.clock import Clock
from store.journal import Look, Tx

CANCEL_GRACE_US: Final = 5_000_000

Submit = Callable[[Callable[[Tx], Any]], Any]


class Clocks:
    """The supervisor's timers over one read-only connection."""

    def __init__(self, driver: sqlite3.Connection, submit: Submit, policy: Policy, clock: Clock) -> None:
        self._driver = driver
        self._submit = submit
        self._policy = policy
        self._clock = clock

    def tick(self) -> None:
        """Look once, and hand in what is due."""
        self._leases()
        self._deadlines()
        self._pressure()

    def _leases(self) -> None:
        late = claims.overdue(self._look(), self._clock.mono_us())
        for request_id, _runner in late:
            self._submit(partial(expire_lease, request_id=request_id, policy=self._policy))

    def _deadlines(self) -> None:
        ttl_us = int(self._policy.resumable_ttl_s * 1e6)
        if commands.any_due(self._look(), ttl_us):
            self._submit(lambda tx: commands.expire_due(tx, ttl_us, actor="supervisor"))

    def _pressure(self) -> None:
        look, policy = self._look(), self._policy
        for load in pressure.loads(look, int(policy.reading_max_age_s * 1e6)):
            after = step(
                load.kept,
                load.share,
                look.now_us,
                high=policy.pressure_high,
                low=policy.pressure_low,
                calm_for_us=int(policy.calm_for_s * 1e6),
            )
            if after != load.kept:
                keep = partial(pressure.keep, device=load.device, pressure=after, used=load.used, total=load.total)
                self._submit(keep)

    def _look(self) -> Look:
        return Look(self._driver, self._clock.now_us())

    def disobeyed(self) -> list[str]:
        """Runners that hold a request whose cancel they have not obeyed in time."""
        return claims.disobeyed(self._look(), CANCEL_GRACE_US)

    def silent_s(self) -> float | None:
        """Seconds since the monitor wrote its last reading; None before the first."""
        last_us = house.last_reading_us(self._look())
        return None if last_us is None else max(0, self._clock.now_us() - last_us) / 1e6


def expire_lease(tx: Tx, request_id: str, policy: Policy) -> None:
    """A lease ran out, or is missing: its owner is a zombie from here on."""
    runner = dict(claims.overdue(tx, tx.mono_us)).get(request_id)
    state = tx.state(request_id)
    if runner is None or state is None or state.lane is None:
        return
    fault = ev.FaultSeen("worker", "lease-expired", state.lane, runner, state.device or "")
    failover.after_fault(tx, request_id, fault, policy, actor="supervisor")
