"""Who owns a request: claim, renew, write under a fence, release.

1. A claim is one transaction: pick the next turn, attempt + 1, new lease, `Started`.
2. Every write of an owner is conditional on (request, attempt, token) *and* on the device's epoch. Otherwise `Fenced`:
   the caller stops, discards, and reports with `late_write`.
3. Leases count in `CLOCK_MONOTONIC` of one boot: a suspend does not expire them, a reboot does.
"""

from typing import Final

import msgspec

from core import events as ev
from core.errors import Fenced
from core.machine import CLAIMABLE_SQL
from core.state import RequestState
from core.words import Lane
from store import contents
from store.clock import boot_id
from store.journal import Tx


class Owner(msgspec.Struct, frozen=True):
    """A runner, as far as claims are concerned."""

    runner: str
    lane: Lane
    model: str
    device: str
    engine: str


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
    f"SELECT id FROM requests WHERE {CLAIMABLE_SQL} AND lane=? AND model=? "  # noqa: S608 -- constants
    "AND (not_before_us IS NULL OR not_before_us<=?) ORDER BY turn_us LIMIT 1"
)


def claim(tx: Tx, owner: Owner, lease_us: int) -> Claim | None:
    """Take up the next request of the owner's lane and model, or None when nothing waits."""
    row = tx.execute(_PICK, (owner.lane, owner.model, tx.now_us)).fetchone()
    if row is None:
        return None
    state = tx.state(row[0])
    assert state is not None
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
        "INSERT INTO leases (request_id, runner, token, attempt, until_us, boot_id) VALUES (?,?,?,?,?,?)",
        (state.id, owner.runner, fence.token, fence.attempt, tx.mono_us + lease_us, boot_id()),
    )
    done = contents.tokens_in(contents.output_of(tx, state.id, state.output_epoch)) if state.units else ()
    started = tx.state(state.id)
    assert started is not None
    assert len(done) == state.units, f"{state.id} has {len(done)} units in its contents and {state.units} in the record"
    return Claim(started, fence, spec, done)


def device_epoch(tx: Tx, device: str) -> int:
    """The current span of trust in a device; the host's CPU is always in its first."""
    row = tx.execute("SELECT epoch FROM devices WHERE id=?", (device,)).fetchone()
    return int(row[0]) if row else 1


def check(tx: Tx, fence: Fence) -> None:
    """Raise `Fenced` unless the fence still stands."""
    row = tx.execute(
        "SELECT 1 FROM leases WHERE request_id=? AND token=? AND attempt=?",
        (fence.request_id, fence.token, fence.attempt),
    ).fetchone()
    if row is None:
        raise Fenced(f"attempt {fence.attempt} of {fence.request_id} is no longer the owner")
    if device_epoch(tx, fence.device) != fence.device_epoch:
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


def checkpoint(
    tx: Tx, fence: Fence, event: ev.Checkpointed, *, epoch: int, first: int, body: bytes, lease_us: int
) -> None:
    """Make units durable: contents and event together. Raises `Fenced`."""
    write(tx, fence, event, lease_us=lease_us)
    contents.put_chunk(tx, fence.request_id, epoch, first, body)


def complete(tx: Tx, fence: Fence, event: ev.Completed, *, epoch: int, first: int, body: bytes) -> None:
    """The last units, the end, and the lease given back, together. Raises `Fenced`."""
    write(tx, fence, event)
    contents.put_chunk(tx, fence.request_id, epoch, first, body)
    release(tx, fence.request_id)


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


def held_by(tx: Tx, runner: str) -> list[str]:
    """Requests a runner holds."""
    return [row[0] for row in tx.execute("SELECT request_id FROM leases WHERE runner=?", (runner,))]
