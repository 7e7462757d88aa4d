"""What is derived from events, written in the same transaction: `requests` and `devices`.

A row of `requests` holds the folded state whole (`doc`), and beside it the columns that queries need.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from core import breaker
from core import events as ev
from core.events import Recorded
from core.lanes import turn_us
from core.machine import apply
from core.state import RequestState
from core.words import TERMINAL
from store import outbox, promises

if TYPE_CHECKING:
    from store.journal import Tx

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(RequestState).decode
_decode_breaker: Final = msgspec.json.Decoder(breaker.Breaker).decode

_UPDATE: Final = (
    "UPDATE requests SET state=?, lane=?, running=?, cancel_asked=?, version=?, turn_us=?, not_before_us=?, "
    "deadline_us=?, updated_us=?, doc=? WHERE id=? AND version=?"
)
_UPDATE_DOC: Final = "UPDATE requests SET version=?, updated_us=?, doc=? WHERE id=? AND version=?"
"""For events that leave all indexed columns as they are: SQLite rewrites an index whenever its columns are named."""
_INSERT: Final = (
    "INSERT INTO requests (state, lane, running, cancel_asked, version, turn_us, not_before_us, deadline_us, "
    "updated_us, doc, id, owner, workload, model, created_us) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)


def state_of(doc: str) -> RequestState:
    """The folded state from its stored text."""
    return _decode(doc)


def load(tx: "Tx", request_id: str) -> RequestState | None:
    """A request's state, or None."""
    row = tx.execute("SELECT doc FROM requests WHERE id = ?", (request_id,)).fetchone()
    return _decode(row[0]) if row else None


def columns(state: RequestState) -> tuple[object, ...]:
    """The first ten columns of `_UPDATE` and `_INSERT`, from the state alone."""
    return (
        state.state,
        state.lane,
        int(state.running),
        int(state.cancel_asked),
        state.version,
        turn_us(state.priority, state.created_us),
        state.not_before_us,
        state.deadline_us,
        state.updated_us,
        _encode(state).decode(),
    )


def _indexed(state: RequestState) -> tuple[object, ...]:
    """All that decides the columns which only `_UPDATE` writes."""
    return (
        state.state,
        state.lane,
        state.running,
        state.cancel_asked,
        state.priority,
        state.created_us,
        state.not_before_us,
        state.deadline_us,
    )


def advance(tx: "Tx", before: RequestState | None, record: Recorded) -> RequestState:
    """Apply an event to its request and write the row. Raises `IllegalEvent`."""
    after = apply(before, record.event, stream=record.stream, at_us=record.at_us, attempt=record.attempt)
    if before is None:
        tx.execute(_INSERT, (*columns(after), after.id, after.owner, after.workload, after.model, after.created_us))
        return after
    if _indexed(before) == _indexed(after):
        doc = _encode(after).decode()
        changed = tx.execute(_UPDATE_DOC, (after.version, after.updated_us, doc, after.id, before.version)).rowcount
    else:
        changed = tx.execute(_UPDATE, (*columns(after), after.id, before.version)).rowcount
    assert changed == 1, f"projection of {after.id} is not at version {before.version}"
    if before.lane == "gpu" and (after.lane != "gpu" or (after.settled_us is not None and before.settled_us is None)):
        # The promise ends with the stay on the GPU lane, in the transaction that ends it.
        promises.give_back(tx, after.id)
    if after.state in TERMINAL and before.state not in TERMINAL:
        tx.execute("DELETE FROM snapshots WHERE request_id=?", (after.id,))
    outbox.enter(tx, record, after)
    return after


def other(tx: "Tx", record: Recorded) -> None:
    """Project the events of streams that are not requests."""
    device = record.stream.removeprefix("device-")
    match record.event:
        case ev.DeviceFound() as event:
            tx.execute(
                "INSERT INTO devices (id, name, simulated, total_bytes, state, reason, epoch, since_us) "
                "VALUES (?,?,?,?,'ok',NULL,1,?)",
                (device, event.name, int(event.simulated), event.total_bytes, record.at_us),
            )
        case ev.DeviceLost() as event:
            tx.execute(
                "UPDATE devices SET state='lost', reason=?, epoch=?, since_us=? WHERE id=?",
                (event.reason, event.epoch, record.at_us, device),
            )
        case ev.DeviceBack() as event:
            tx.execute(
                "UPDATE devices SET state='ok', reason=NULL, epoch=?, since_us=? WHERE id=?",
                (event.epoch, record.at_us, device),
            )
        case ev.FaultCounted() | ev.BreakerOpened() | ev.BreakerHalfOpened() | ev.CanaryAnswered() | ev.BreakerClosed():
            _breaker(tx, device, record)
        case _:
            pass


def _breaker(tx: "Tx", device: str, record: Recorded) -> None:
    row = tx.execute("SELECT breaker_doc FROM devices WHERE id=?", (device,)).fetchone()
    if row is None:
        return
    before = _decode_breaker(row[0]) if row[0] else breaker.Breaker()
    after = breaker.apply(before, record.event, record.at_us)
    if after != before:
        doc = _encode(after).decode()
        tx.execute("UPDATE devices SET breaker=?, breaker_doc=? WHERE id=?", (after.state, doc, device))
