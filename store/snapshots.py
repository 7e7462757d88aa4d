"""Saved states of running requests: one row and one file for each request, the newest.

1. The file is whole and on the disk before the event that names it is written.
2. A row goes when its request ends, when a newer one takes its place, or to keep within the space allowed; its file is
   removed afterwards. A file that no row names belongs to nobody, and is swept.
3. A damaged one is rejected for good, on the record. One of another kind may still serve another lane, and stays.
"""

from typing import Final

import msgspec

from core import events as ev
from store import claims
from store.claims import Fence
from store.journal import Sees, Tx

_FIELDS: Final = "request_id, name, epoch, units, tokens, bytes, digest, kv_format"


class Kept(msgspec.Struct, frozen=True):
    """A saved state: its file's name in the snapshots directory, what it holds, and what it agrees to."""

    request_id: str
    name: str
    epoch: int
    units: int
    tokens: int
    bytes: int
    digest: str
    kv_format: str


def kept(tx: Sees, request_id: str, epoch: int) -> Kept | None:
    """The newest saved state of a request's output epoch, or None."""
    row = tx.execute(
        f"SELECT {_FIELDS} FROM snapshots WHERE request_id=? AND epoch=?",  # noqa: S608 -- constants
        (request_id, epoch),
    ).fetchone()
    return Kept(*row) if row else None


class Outcome(msgspec.Struct, frozen=True):
    """Whether a saved state was wanted, and the file whose place it took."""

    wanted: bool
    before: str | None = None


def keep(tx: Tx, fence: Fence, new: Kept, *, took_us: int, limit: int) -> Outcome:
    """Name a saved state, which takes the place of the last one; it may not be wanted any more.

    `limit` is the room for all of them in bytes; the oldest of other requests go first. Raises `Fenced`.
    """
    claims.check(tx, fence)
    state = tx.state(new.request_id)
    if state is None or state.cancel_asked or state.output_epoch != new.epoch or new.bytes > limit:
        return Outcome(wanted=False)
    before = kept(tx, new.request_id, new.epoch)
    told = ev.SnapshotSaved(new.tokens, new.units, new.bytes, new.digest, new.kv_format, took_us)
    claims.write(tx, fence, told)
    tx.execute(
        f"INSERT OR REPLACE INTO snapshots ({_FIELDS}, created_us) VALUES (?,?,?,?,?,?,?,?,?)",  # noqa: S608 -- constants
        (*msgspec.structs.astuple(new), tx.now_us),
    )
    _make_room(tx, new.request_id, limit)
    return Outcome(wanted=True, before=before.name if before is not None else None)


def _make_room(tx: Tx, newest: str, limit: int) -> None:
    (total,) = tx.execute("SELECT coalesce(sum(bytes), 0) FROM snapshots").fetchone()
    oldest = tx.execute("SELECT request_id, bytes FROM snapshots WHERE request_id<>? ORDER BY created_us", (newest,))
    for request_id, size in oldest.fetchall():
        if total <= limit:
            return
        forget(tx, request_id)
        total -= size


def reject(tx: Tx, fence: Fence, bad: Kept, reason: str) -> None:
    """A saved state is not to be used, now or ever. Raises `Fenced`."""
    claims.check(tx, fence)
    forget(tx, bad.request_id)
    state = tx.state(bad.request_id)
    if state is not None and not state.cancel_asked:
        claims.write(tx, fence, ev.SnapshotRejected(bad.units, reason))


def forget(tx: Tx, request_id: str) -> None:
    """Let go of a request's saved state; its file is swept."""
    tx.execute("DELETE FROM snapshots WHERE request_id=?", (request_id,))


def names(tx: Sees) -> set[str]:
    """Files that are named."""
    return {row[0] for row in tx.execute("SELECT name FROM snapshots", ())}
