"""Who owns a request: claim, renew, write under a fence, release.

1. A claim is one transaction: pick the next turn, a second look at the device, attempt + 1, new lease, `Started`.
2. Every write of an owner is conditional on (request, attempt, token) *and* on the device's epoch. Otherwise `Fenced`:
   the caller stops, discards, and reports with `late_write`.
3. Leases count in `CLOCK_MONOTONIC` of one boot: a suspend does not expire them, a reboot does.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from core import events as ev
from core.errors import Fenced
from core.machine import CLAIMABLE_SQL
from core.policy import Policy
from core.state import RequestState
from core.words import Lane
from store import contents, hostlane, house, laneviews, probation, secondlook
from store.clock import boot_id
from store.journal import Sees, Tx


class Owner(msgspec.Struct, frozen=True):
    """A runner, as far as claims are concerned."""

    runner: str
    lane: Lane
    model: str
    device: str
    engine: str
    contract: str = ""
    """What the runner's model agrees to; "" is not compared."""


class Fence(msgspec.Struct, frozen=True):
    """Proof of ownership, checked inside the transaction of every write."""

    request_id: str
    attempt: int
    token: str
    device: str
    device_epoch: int
    runner: str


class Claim(msgspec.Struct, frozen=True):
    """A request taken up: its state, its exact input, and the units that are durable already."""

    state: RequestState
    fence: Fence
    spec: contents.Spec
    done: tuple[int, ...]


_PICK: Final = (
    "SELECT id, turn_us FROM requests "  # noqa: S608 -- constants
    f"WHERE {CLAIMABLE_SQL} AND lane=? AND model=? AND (not_before_us IS NULL OR not_before_us<=?) "
    "AND (turn_us, id) > (?, ?) "
)
_FIRST: Final = _PICK + "ORDER BY turn_us, id LIMIT 1"
_FIRST_PROMISED: Final = (
    _PICK + "AND EXISTS (SELECT 1 FROM reservations v WHERE v.holder = requests.id) "  # noqa: S608 -- constants
    "ORDER BY turn_us, id LIMIT 1"
)
_DEFAULTS: Final = Policy()


def claim(
    tx: Tx,
    owner: Owner,
    lease_us: int,
    policy: Policy = _DEFAULTS,
    company: int = 0,
    room: Callable[[RequestState], bool] | None = None,
) -> Claim | None:
    """Take up the next request of the owner's lane and model, or None when nothing can start now.

    `company` is how many the owner works on already. A request whose input may have ended a worker is taken up alone,
    so that a second death is nobody else's. `room` says whether the owner has place for it now; nobody passes the one
    that has to wait for place.
    """
    if _out(tx, owner.device) or house.draining(tx) or (owner.lane == "cpu" and hostlane.held_back(tx, owner.model)):
        return None
    if owner.lane == "gpu" and probation.full(tx, owner.device, policy):
        return None
    state = _next(tx, owner, policy)
    if state is None or (state.suspect and company) or (room is not None and not room(state)):
        return None
    spec = contents.spec_of(tx, state.id)
    assert spec is not None, f"{state.id} is claimable but has no contents"
    fence = Fence(state.id, state.attempt + 1, tx.new_id(), owner.device, device_epoch(tx, owner.device), owner.runner)
    tx.append(
        state.id,
        ev.Started(owner.lane, owner.runner, owner.device, owner.engine, state.units),
        actor=owner.runner,
        attempt=fence.attempt,
        token=fence.token,
        device_epoch=fence.device_epoch,
    )
    tx.execute(
        # The record says that nobody runs it, so a lease that is still there is a leftover.
        "INSERT OR REPLACE INTO leases (request_id, runner, token, attempt, until_us, boot_id) VALUES (?,?,?,?,?,?)",
        (state.id, owner.runner, fence.token, fence.attempt, tx.mono_us + lease_us, boot_id()),
    )
    done = contents.tokens_in(contents.output_of(tx, state.id, state.output_epoch)) if state.units else ()
    started = tx.state(state.id)
    assert started is not None
    assert len(done) == state.units, f"{state.id} has {len(done)} units in its contents and {state.units} in the record"
    return Claim(started, fence, spec, done)


def _out(tx: Tx, device: str) -> bool:
    """Whether nothing is to begin on the device: trust in it has ended, or its breaker is not closed.

    A runner that is not gone yet must not begin anew under a new epoch.
    """
    row = tx.execute("SELECT state, breaker FROM devices WHERE id=?", (device,)).fetchone()
    return row is not None and row != ("ok", "closed")


def _next(tx: Tx, owner: Owner, policy: Policy) -> RequestState | None:
    """The first in turn that may start now.

    On the GPU lane each is looked at once more. One that waits for bytes of ours to come back is not overtaken by
    another that has no promise either, so a large request is not starved by small ones; those that hold a promise
    start, and it is they who give back.
    """
    if owner.lane == "gpu" and _leaving(tx, owner):
        return None
    blocked, after = False, (-1, "")
    while True:
        sql = _FIRST_PROMISED if blocked else _FIRST
        row = tx.execute(sql, (owner.lane, owner.model, tx.now_us, *after)).fetchone()
        if row is None:
            return None
        request_id, after = row[0], (row[1], row[0])
        state = tx.state(request_id)
        assert state is not None
        if owner.contract and state.contract != owner.contract:
            secondlook.stopped(tx, state, policy, "model-changed", actor=owner.runner)
            continue
        if state.units and not laneviews.goes_on(tx, state, owner.lane, owner.engine):
            secondlook.stopped(tx, state, policy, "engine-changed", actor=owner.runner)
            continue
        if owner.lane == "cpu":
            return state
        match secondlook.look(tx, state, policy, actor=owner.runner):
            case "go":
                return tx.state(request_id)
            case "wait":
                blocked = True


def _leaving(tx: Tx, owner: Owner) -> bool:
    """Whether the owner's model was told to make room; its runner ends and must not take up anything more."""
    row = tx.execute("SELECT resident FROM lanes WHERE lane='gpu' AND model=?", (owner.model,)).fetchone()
    return row is not None and not row[0]


def device_epoch(tx: Tx, device: str) -> int:
    """The current span of trust in a device; the host's CPU is always in its first."""
    row = tx.execute("SELECT epoch FROM devices WHERE id=?", (device,)).fetchone()
    return int(row[0]) if row else 1


_CHECK: Final = (
    "SELECT coalesce((SELECT epoch FROM devices WHERE id=?), 1) FROM leases "
    "WHERE request_id=? AND token=? AND attempt=?"
)


def check(tx: Tx, fence: Fence) -> None:
    """Raise `Fenced` unless the fence still stands."""
    row = tx.execute(_CHECK, (fence.device, fence.request_id, fence.token, fence.attempt)).fetchone()
    if row is None:
        raise Fenced(f"attempt {fence.attempt} of {fence.request_id} is no longer the owner")
    if row[0] != fence.device_epoch:
        raise Fenced(f"device {fence.device} was lost since attempt {fence.attempt} of {fence.request_id} began")


def renew(tx: Tx, fence: Fence, lease_us: int) -> None:
    """Push the end of the lease on. Raises `Fenced`."""
    check(tx, fence)
    tx.execute("UPDATE leases SET until_us=? WHERE request_id=?", (tx.mono_us + lease_us, fence.request_id))


def write(tx: Tx, fence: Fence, event: ev.Event, *, lease_us: int | None = None, cause: int | None = None) -> None:
    """Append an owner's event under the fence; with `lease_us` also renew. Raises `Fenced`."""
    check(tx, fence)
    tx.append(
        fence.request_id,
        event,
        actor=fence.runner,
        attempt=fence.attempt,
        token=fence.token,
        device_epoch=fence.device_epoch,
        cause=cause,
    )
    if lease_us is not None:
        tx.execute("UPDATE leases SET until_us=? WHERE request_id=?", (tx.mono_us + lease_us, fence.request_id))


def note(tx: Tx, fence: Fence, event: ev.Event) -> None:
    """An owner's remark, which changes nothing; dropped once a cancel was asked. Raises `Fenced`."""
    check(tx, fence)
    state = tx.state(fence.request_id)
    if state is not None and not state.cancel_asked:
        write(tx, fence, event)


def checkpoint(
    tx: Tx, fence: Fence, event: ev.Checkpointed, *, epoch: int, first: int, body: bytes, lease_us: int
) -> None:
    """Make units durable: contents and event together. Raises `Fenced`."""
    _add_units(tx, fence, event, epoch=epoch, first=first, body=body, lease_us=lease_us)


def complete(tx: Tx, fence: Fence, event: ev.Completed, *, epoch: int, first: int, body: bytes) -> None:
    """The last units, the end, and the lease given back, together. Raises `Fenced`."""
    _add_units(tx, fence, event, epoch=epoch, first=first, body=body, lease_us=None)
    release(tx, fence.request_id)


def _add_units(
    tx: Tx, fence: Fence, event: ev.Event, *, epoch: int, first: int, body: bytes, lease_us: int | None
) -> None:
    """The event and its contents, which must begin where the last ones ended; a repeat of a lost answer is accepted."""
    try:
        _expect(tx, fence, epoch, first)
        write(tx, fence, event, lease_us=lease_us)
    except Fenced:
        if _recorded(tx, fence, event):
            return
        raise
    contents.put_chunk(tx, fence.request_id, epoch, first, body)


def _expect(tx: Tx, fence: Fence, epoch: int, first: int) -> None:
    state = tx.state(fence.request_id)
    if state is not None and (state.output_epoch, state.units) != (epoch, first):
        there = (state.output_epoch, state.units)
        raise Fenced(f"{fence.request_id} is at (epoch, unit) {there}, not at {(epoch, first)}")


def _recorded(tx: Tx, fence: Fence, event: ev.Event) -> bool:
    """Whether this very owner has written this very event already, and only the answer was lost."""
    sql = "SELECT 1 FROM events WHERE stream=? AND type=? AND attempt=? AND lease_token=? AND data=?"
    key = (fence.request_id, type(event).__name__, fence.attempt, fence.token, ev.encode(event))
    return tx.execute(sql, key).fetchone() is not None


def cancelled(tx: Tx, fence: Fence) -> None:
    """The owner has stopped because it was asked to. Raises `Fenced`."""
    write(tx, fence, ev.Cancelled())
    release(tx, fence.request_id)


def release(tx: Tx, request_id: str) -> None:
    """End the lease, whoever holds it."""
    tx.execute("DELETE FROM leases WHERE request_id=?", (request_id,))


def late_write(tx: Tx, fence: Fence, what: str, units: int) -> None:
    """Record that a former owner tried to write."""
    tx.append(
        fence.request_id,
        ev.LateWriteRejected(fence.runner, what, units),
        actor=fence.runner,
        attempt=fence.attempt,
        token=fence.token,
        device_epoch=fence.device_epoch,
    )


def overdue(tx: Sees, mono_us: int) -> list[tuple[str, str]]:
    """(request, runner) whose lease has run out, belongs to another boot, or is missing though somebody should run it.

    The runner is "" where the lease is missing. Whoever asks lets `failover.after_fault` follow, kind `lease-expired`.
    """
    late = tx.execute(
        "SELECT r.id, coalesce(l.runner, '') FROM requests r LEFT JOIN leases l ON l.request_id = r.id "
        "WHERE r.running = 1 AND r.state IN ('admitted','running-gpu','checkpointed','rerouted-cpu') "
        "AND (l.request_id IS NULL OR l.until_us <= ? OR l.boot_id <> ?) ORDER BY r.turn_us",
        (mono_us, boot_id()),
    )
    return [(request_id, runner) for request_id, runner in late]


def disobeyed(tx: Sees, grace_us: int) -> list[str]:
    """Runners that hold a request although a cancel was asked for so long ago."""
    rows = tx.execute(
        "SELECT l.runner FROM leases l JOIN requests r ON r.id = l.request_id WHERE r.cancel_asked = 1 AND "
        "(SELECT max(e.at_us) FROM events e WHERE e.stream = r.id AND e.type = 'CancelAsked') <= ?",
        (tx.now_us - grace_us,),
    )
    return [row[0] for row in rows.fetchall()]


def running(tx: Sees) -> list[tuple[str, str]]:
    """(request, runner) of all that somebody works on by the record; the runner is "" where no lease says who."""
    rows = tx.execute(
        "SELECT r.id, coalesce(l.runner, '') FROM requests r "
        "LEFT JOIN leases l ON l.request_id = r.id WHERE r.running = 1",
        (),
    )
    return [(request_id, runner) for request_id, runner in rows.fetchall()]


def release_all(tx: Tx) -> None:
    """End every lease: what is left of those whose owners have ended."""
    tx.execute("DELETE FROM leases")


def held_by(tx: Tx, runner: str) -> list[str]:
    """Requests a runner holds."""
    return [row[0] for row in tx.execute("SELECT request_id FROM leases WHERE runner=?", (runner,))]
