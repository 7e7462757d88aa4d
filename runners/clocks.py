"""What must happen because time has passed: leases that ran out, deadlines, cancels nobody obeys, devices back.

Each tick first looks with a read-only connection, which no writer can block; only what is due becomes a unit of work,
and that unit looks again inside its transaction. All of it is idempotent and driven by stored times.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from core import events as ev
from core.policy import Policy
from core.pressure import Pressure, step
from store import claims, commands, failover
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
        late = claims.overdue(Look(self._driver, self._clock.now_us()), self._clock.mono_us())
        for request_id, _runner in late:
            self._submit(partial(expire_lease, request_id=request_id, policy=self._policy))

    def _deadlines(self) -> None:
        now = self._clock.now_us()
        ttl_us = int(self._policy.resumable_ttl_s * 1e6)
        due = self._driver.execute(
            "SELECT 1 FROM requests WHERE (deadline_us <= ? AND cancel_asked = 0 AND state IN "
            "('admitted','running-gpu','checkpointed','rerouted-cpu')) "
            "OR (state = 'resumable-error' AND updated_us <= ?) LIMIT 1",
            (now, now - ttl_us),
        ).fetchone()
        if due:
            self._submit(lambda tx: commands.expire_due(tx, ttl_us, actor="supervisor"))

    def _pressure(self) -> None:
        rows = self._driver.execute(
            "SELECT d.id, d.spilling, d.calm_us, r.doc FROM devices d "
            "JOIN readings r ON r.device = d.id WHERE d.state='ok' AND r.at_us>?",
            # An old reading says nothing about now, and least of all that things are calm.
            (self._clock.now_us() - int(self._policy.reading_max_age_s * 1e6),),
        ).fetchall()
        for device, spilling, calm_us, document in rows:
            reading = msgspec.json.decode(document)
            used, total = reading.get("used"), reading.get("total")
            if used is None or not total:
                continue
            before = Pressure(bool(spilling), calm_us)
            after = step(
                before,
                (used + (reading.get("reserved") or 0)) / total,
                self._clock.now_us(),
                high=self._policy.pressure_high,
                low=self._policy.pressure_low,
                calm_for_us=int(self._policy.calm_for_s * 1e6),
            )
            if after != before:
                self._submit(partial(set_pressure, device=device, pressure=after, used=used, total=total))

    def disobeyed(self) -> list[str]:
        """Runners that hold a request whose cancel they have not obeyed in time."""
        return claims.disobeyed(Look(self._driver, self._clock.now_us()), CANCEL_GRACE_US)

    def silent_s(self) -> float | None:
        """Seconds since the monitor wrote its last reading; None before the first."""
        row = self._driver.execute("SELECT max(at_us) FROM readings").fetchone()
        return None if row[0] is None else max(0, self._clock.now_us() - row[0]) / 1e6


def expire_lease(tx: Tx, request_id: str, policy: Policy) -> None:
    """A lease ran out, or is missing: its owner is a zombie from here on."""
    runner = dict(claims.overdue(tx, tx.mono_us)).get(request_id)
    state = tx.state(request_id)
    if runner is None or state is None or state.lane is None:
        return
    fault = ev.FaultSeen("worker", "lease-expired", state.lane, runner, state.device or "")
    failover.after_fault(tx, request_id, fault, policy, actor="supervisor")


def set_pressure(tx: Tx, device: str, pressure: Pressure, used: int, total: int) -> None:
    """Keep a device's pressure; the journal hears of it when spilling begins or ends."""
    row = tx.execute("SELECT spilling FROM devices WHERE id=?", (device,)).fetchone()
    if row is None:
        return
    tx.execute(
        "UPDATE devices SET spilling=?, calm_us=? WHERE id=?", (int(pressure.spilling), pressure.calm_us, device)
    )
    if bool(row[0]) != pressure.spilling:
        event = ev.PressureRose(used, total) if pressure.spilling else ev.PressureFell(used, total)
        tx.append(f"device-{device}", event, actor="supervisor")
