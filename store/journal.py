"""The journal: appending facts inside a unit of work, and reading them back.

1. `seq` is gap-free and the hash chains over the exact stored bytes; both are taken from `head` inside the transaction,
   and written back there once, by the writer.
2. `version` is 1..n per stream, and the optimistic lock.
3. A projection row is written in the same unit as its event, or neither is.
4. A unit that appends the same `event_id` again gets what was recorded the first time: a lost answer is recognised.

Driver SQL on purpose: this is the hot path, and Core costs seven times the CPU here.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from typing import Any, Final, Protocol

import msgspec

from core import events as ev
from core.events import Event, Recorded, decode, encode
from core.state import RequestState
from store import projections

FIELDS: Final = (
    "seq, event_id, stream, version, type, schema, at_us, actor, attempt, lease_token, device_epoch, cause_seq, data"
)
_INSERT: Final = f"INSERT INTO events ({FIELDS}, hash) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"  # noqa: S608 -- constants
_NONE: Final = (2**64 - 1).to_bytes(8, "big")
_LENGTHS: Final = tuple(length.to_bytes(8, "big") for length in range(1024))
"""Most fields are short, and every one of them is hashed at each append and each verification."""
REQUEST_TYPES: Final = frozenset(ev.REQUEST_EVENTS)
"""Types of request streams; looking one up is far cheaper than `isinstance` over all of them."""


def chain(previous: str, fields: tuple[Any, ...]) -> str:
    """The next link: SHA-256 over the previous link and every stored field, each with its length before it.

    `fields` are in the order of `FIELDS`; None has a length of its own, so it never equals the empty text.
    """
    parts = [previous.encode()]
    for field in fields:
        if field is None:
            parts.append(_NONE)
            continue
        raw = (field if type(field) is str else str(field)).encode()
        length = len(raw)
        parts.append(_LENGTHS[length] if length < len(_LENGTHS) else length.to_bytes(8, "big"))
        parts.append(raw)
    return hashlib.sha256(b"".join(parts)).hexdigest()


class Head(msgspec.Struct, frozen=True):
    """Where the journal ends: the last event's seq and link."""

    seq: int
    hash: str


class Sees(Protocol):
    """What a look at the store needs: a transaction, or a read-only connection with the time of the look."""

    @property
    def execute(self) -> Any:
        """Run one statement; the driver's cursor."""

    @property
    def now_us(self) -> int:
        """The time of the look."""


class Look:
    """A look outside any transaction, for those who only want to know."""

    def __init__(self, connection: sqlite3.Connection, now_us: int) -> None:
        self.execute = connection.execute
        self.now_us = now_us


class Tx:
    """One unit of work inside a write transaction. Valid only while its function runs.

    `head` is where the journal ends now, the events of this unit included.
    """

    def __init__(self, connection: sqlite3.Connection, head: Head, now_us: int, mono_us: int, new_id: Any) -> None:
        self.execute = connection.execute
        self.head = head
        self.now_us = now_us
        self.mono_us = mono_us
        self.new_id = new_id
        self._states: dict[str, RequestState | None] = {}
        """Requests as this unit read or left them: nobody else writes while it runs."""

    def append(
        self,
        stream: str,
        event: Event,
        *,
        actor: str,
        attempt: int | None = None,
        token: str | None = None,
        device_epoch: int | None = None,
        cause: int | None = None,
        event_id: str | None = None,
    ) -> Recorded:
        """Append one fact and bring its projection along. Raises `IllegalEvent` and changes nothing."""
        type_ = type(event).__name__
        if event_id is not None and (known := self._known(event_id)) is not None:
            return known
        event_id = event_id or self.new_id()
        is_request = type(event) in REQUEST_TYPES
        state = self.state(stream) if is_request else None
        version = (state.version if state else 0) + 1 if is_request else self._next_version(stream)
        seq = self.head.seq + 1
        record = Recorded(seq, event_id, stream, version, type_, self.now_us, actor, attempt, cause, event)
        fields = (
            seq,
            event_id,
            stream,
            version,
            type_,
            ev.SCHEMAS[type_],
            self.now_us,
            actor,
            attempt,
            token,
            device_epoch,
            cause,
            encode(event),
        )
        link = chain(self.head.hash, fields)
        if is_request:
            self._states[stream] = projections.advance(self, state, record)
        else:
            projections.other(self, record)
        self.execute(_INSERT, (*fields, link))
        self.head = Head(seq, link)
        return record

    def state(self, request_id: str) -> RequestState | None:
        """The request as this transaction sees it."""
        if request_id not in self._states:
            self._states[request_id] = projections.load(self, request_id)
        return self._states[request_id]

    def _next_version(self, stream: str) -> int:
        (version,) = self.execute("SELECT max(version) FROM events WHERE stream = ?", (stream,)).fetchone()
        return (version or 0) + 1

    def _known(self, event_id: str) -> Recorded | None:
        row = self.execute(f"SELECT {FIELDS} FROM events WHERE event_id = ?", (event_id,)).fetchone()  # noqa: S608
        return record_of(row) if row else None


def record_of(row: Any) -> Recorded:
    """A record from a row whose columns are `FIELDS`."""
    seq, event_id, stream, version, type_, schema, at_us, actor, attempt, _token, _epoch, cause, data = row
    return Recorded(seq, event_id, stream, version, type_, at_us, actor, attempt, cause, decode(type_, schema, data))


def history(connection: sqlite3.Connection, stream: str) -> Iterator[Recorded]:
    """A stream's records in order, for blocking readers."""
    sql = f"SELECT {FIELDS} FROM events WHERE stream = ? ORDER BY version"  # noqa: S608 -- constants
    for row in connection.execute(sql, (stream,)):
        yield record_of(row)
