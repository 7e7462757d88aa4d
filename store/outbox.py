"""Notices that are to reach somebody outside: entered with their event, sent later, done or dead at the end.

1. A notice is entered in the transaction of its event, or neither is. Nothing is sent from within a transaction.
2. `EffectDelivered` is appended in the transaction that marks its notice done. A crash between the delivery and that
   means another delivery under the same key, never a lost one.
3. Of a request's notices only the oldest that waits may be sent: they arrive in the order of its events. One that was
   given up (`dead`) holds up nothing any more.
4. The URL is content: it is kept beside the prompt, and goes with it. `target` is the part of it that says who answers,
   and so all notices of a request go when its content is erased.
5. One process delivers at a time, whoever holds the lock file; the kernel gives it back when that process ends.
6. What is done or dead is kept for a while, then forgotten. Until then a dead one can be sent again, under its key.
"""

import asyncio
import fcntl
import os
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from core import events as ev
from core import webhooks
from core.errors import Conflict, NotFound
from core.events import Recorded
from core.state import RequestState
from store import contents

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from store.journal import Sees, Tx

State = Literal["waiting", "done", "dead"]
HEADS: Final = 64
"""How many requests' next notices are read at once."""
_SHOWN: Final = (
    *("key", "request_id", "type", "target", "state", "tries", "next_us", "created_us", "ended_us", "error"),
)
FORGET: Final = 500
"""How many old notices are forgotten in one transaction."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENTER: Final = (
    "INSERT INTO outbox (request_id, key, type, target, payload, state, tries, next_us, created_us) "
    "VALUES (?,?,?,?,?,'waiting',0,?,?)"
)


class Notice(msgspec.Struct, frozen=True):
    """The next notice of a request, with all that sending it takes."""

    key: str
    request_id: str
    type: str
    payload: str
    target: str
    tries: int
    next_us: int
    url: str


def enter(tx: "Tx", record: Recorded, after: RequestState) -> None:
    """Enter the notice of an event, if it is one that is told and somebody wants to hear of this request."""
    type_ = webhooks.TYPES.get(type(record.event))
    if type_ is None or (url := contents.webhook_of(tx, after.id)) is None:
        return
    at = (_EPOCH + timedelta(microseconds=record.at_us)).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    payload = msgspec.json.encode(webhooks.payload(record.event, after, at)).decode()
    key, target = webhooks.key_of(after, record.version), webhooks.read_url(url).origin
    tx.execute(_ENTER, (after.id, key, type_, target, payload, record.at_us, record.at_us))


def delivered(tx: "Tx", notice: Notice) -> bool:
    """It has arrived. False when it was done already, or erased meanwhile: nothing is written then."""
    changed = tx.execute(
        "UPDATE outbox SET state='done', tries=tries+1, ended_us=?, error=NULL WHERE key=? AND state='waiting'",
        (tx.now_us, notice.key),
    ).rowcount
    if changed:
        tx.append(notice.request_id, ev.EffectDelivered(notice.key, f"webhook {notice.type}"), actor="web")
    return bool(changed)


def failed(tx: "Tx", notice: Notice, error: str, pause_s: float | None) -> None:
    """It did not arrive: to be tried again after `pause_s` seconds, or given up where that is None. Counts once."""
    tx.execute(
        "UPDATE outbox SET tries=?, error=?, state=?, next_us=?, ended_us=? WHERE key=? AND state='waiting'",
        (
            notice.tries + 1,
            error,
            "dead" if pause_s is None else "waiting",
            tx.now_us + int((pause_s or 0) * 1e6),
            tx.now_us if pause_s is None else None,
            notice.key,
        ),
    )


def effects(tx: "Sees", request_id: str, *, since_checkpoint: bool) -> bool:
    """Whether what a request said has had an effect outside: ever, or since its last checkpoint. Notices are none."""
    last = 0
    if since_checkpoint:
        row = tx.execute(_LAST_CHECKPOINT, (request_id,)).fetchone()
        last = 0 if row is None else row[0]
    return tx.execute(_EFFECT, (request_id, last)).fetchone() is not None


_LAST_CHECKPOINT: Final = (
    "SELECT version FROM events WHERE stream=? AND type='Checkpointed' ORDER BY version DESC LIMIT 1"
)
_EFFECT: Final = (
    "SELECT 1 FROM events WHERE stream=? AND version>? AND type='EffectDelivered' "
    "AND json_extract(data, '$.of_output')=1 LIMIT 1"
)


def resend(tx: "Tx", key: str) -> dict[str, Any]:
    """Send a notice again that was given up, as if for the first time; one that waits is sent at once. The row then.

    Raises `NotFound`, and `Conflict` for one that has arrived.
    """
    row = tx.execute("SELECT state FROM outbox WHERE key=?", (key,)).fetchone()
    if row is None:
        raise NotFound(
            f"there is no notice {key}: GET /api/webhooks lists them; old ones, and those of erased requests, are gone"
        )
    if row[0] == "done":
        raise Conflict(f"{key} was taken by its receiver; only what was given up is sent again", code="delivered")
    tx.execute(
        "UPDATE outbox SET state='waiting', tries=CASE state WHEN 'dead' THEN 0 ELSE tries END, next_us=?, "
        "ended_us=NULL WHERE key=?",
        (tx.now_us, key),
    )
    found = tx.execute(f"SELECT {', '.join(_SHOWN)} FROM outbox WHERE key=?", (key,)).fetchone()  # noqa: S608 -- constants
    return dict(zip(_SHOWN, found, strict=True))


def forget(tx: "Tx", ids: Sequence[int]) -> None:
    """Forget notices that `Outbox.ended` found; one that is to be sent again since then stays."""
    tx.execute(f"DELETE FROM outbox WHERE state<>'waiting' AND id IN ({_marks(ids)})", tuple(ids))  # noqa: S608 -- question marks


class Outbox:
    """Reads of the web process."""

    def __init__(self, engine: "AsyncEngine") -> None:
        self._engine = engine

    async def heads(self, targets: Collection[str], requests: Collection[str]) -> list[Notice]:
        """The next notices of requests, soonest first, without those of `requests` and those that go to `targets`."""
        sql = (
            "SELECT o.key, o.request_id, o.type, o.payload, o.target, o.tries, o.next_us, c.body FROM outbox o "  # noqa: S608 -- question marks
            "JOIN contents c ON c.request_id=o.request_id AND c.kind='webhook' AND c.epoch=0 AND c.n=0 "
            f"WHERE o.state='waiting' AND o.target NOT IN ({_marks(targets)}) "
            f"AND o.request_id NOT IN ({_marks(requests)}) AND NOT EXISTS (SELECT 1 FROM outbox e "
            "WHERE e.request_id=o.request_id AND e.state='waiting' AND e.id<o.id) ORDER BY o.next_us, o.id LIMIT ?"
        )
        rows = await self._rows(sql, (*targets, *requests, HEADS))
        return [Notice(*(*row[:7], bytes(row[7]).decode())) for row in rows]

    async def ended(self, before_us: int) -> list[int]:
        """Notices that were done or dead by then, oldest first, as many as are forgotten at once."""
        sql = "SELECT id FROM outbox WHERE state<>'waiting' AND ended_us<=? ORDER BY id LIMIT ?"
        return [int(row[0]) for row in await self._rows(sql, (before_us, FORGET))]

    async def listed(self, state: State | None, limit: int) -> list[dict[str, Any]]:
        """Notices, newest first."""
        sql = (
            f"SELECT {', '.join(_SHOWN)} FROM outbox "  # noqa: S608 -- constants
            "WHERE ? IS NULL OR state=? ORDER BY id DESC LIMIT ?"
        )
        return [dict(row._mapping) for row in await self._rows(sql, (state, state, limit))]  # noqa: SLF001 -- SQLAlchemy's public name

    async def _rows(self, sql: str, params: tuple[Any, ...]) -> Sequence[Any]:
        async def read() -> Sequence[Any]:
            async with self._engine.connect() as connection:
                return (await connection.exec_driver_sql(sql, params)).fetchall()

        # A read that was broken off would cost its connection.
        return await asyncio.shield(asyncio.ensure_future(read()))


def _marks(values: Collection[Any]) -> str:
    return ",".join("?" * len(values))


class Turn:
    """The right to deliver, held by one process at a time."""

    def __init__(self, file: Path) -> None:
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> bool:
        """Whether it is ours now. It stays so until `close`."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Give it back."""
        os.close(self._fd)
