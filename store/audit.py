"""The journal as an auditor reads it: by stream, type and time; newest first by page, or oldest first as lines.

1. A page is cut by seq, so that what is appended meanwhile moves nothing on the pages behind it.
2. Times are those the events say. They go with seq except where the clock was set, so the index by time tells where in
   the journal its events can be, and within that each one's time is compared.
3. The last anchor is read from its own file and compared with the journal: it is what shows a tail that was cut off.
"""

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from core.events import Recorded
from store.database import Paths
from store.journal import FIELDS, Sees, record_of
from store.verify import ANCHOR, anchors_file

_TAIL: Final = 4096
"""Bytes of the anchors' file that are read: each line is under 90."""
_LATEST: Final = 2**62


class Wanted(msgspec.Struct, frozen=True):
    """Which events: equal stream and type, a time in [since, until] in microseconds; None leaves it open."""

    stream: str | None = None
    type: str | None = None
    since_us: int | None = None
    until_us: int | None = None


class Chain(msgspec.Struct, frozen=True):
    """Where the chain ends, and the last anchor. `fits` is whether the journal still has that link in that place."""

    seq: int
    hash: str
    anchor_seq: int | None = None
    anchor_hash: str | None = None
    fits: bool | None = None


def span(look: Sees, since_us: int | None, until_us: int | None) -> tuple[int, int]:
    """The first and the last seq of all that has a time in [since, until]; (0, -1) where nothing has."""
    edges = (-_LATEST if since_us is None else since_us, _LATEST if until_us is None else until_us)
    within = tuple(max(-_LATEST, min(one, _LATEST)) for one in edges)
    first, last = look.execute("SELECT min(seq), max(seq) FROM events WHERE at_us BETWEEN ? AND ?", within).fetchone()
    return (0, -1) if first is None else (first, last)


def _where(look: Sees, wanted: Wanted) -> tuple[str, list[Any]]:
    sql, params = "", list[Any]()
    for column, text in (("stream=", wanted.stream), ("type=", wanted.type)):
        if text is not None:
            sql, params = f"{sql} AND {column}?", [*params, text]
    if wanted.since_us is not None or wanted.until_us is not None:
        first, last = span(look, wanted.since_us, wanted.until_us)
        sql, params = f"{sql} AND seq BETWEEN ? AND ?", [*params, first, last]
    for column, at_us in (("at_us>=", wanted.since_us), ("at_us<=", wanted.until_us)):
        if at_us is not None:
            # The plus keeps SQLite from walking the index by time, which would be out of order.
            sql, params = f"{sql} AND +{column}?", [*params, max(-_LATEST, min(at_us, _LATEST))]
    return sql, params


def newest(look: Sees, wanted: Wanted, before: int | None, limit: int) -> list[Recorded]:
    """The last events with seq < `before`, newest first."""
    return _some(look, wanted, "seq<", _LATEST if before is None else before, "DESC", limit)


def oldest(look: Sees, wanted: Wanted, after: int, limit: int) -> list[Recorded]:
    """The first events with seq > `after`, oldest first."""
    return _some(look, wanted, "seq>", after, "ASC", limit)


def _some(
    look: Sees, wanted: Wanted, edge: Literal["seq<", "seq>"], seq: int, order: Literal["ASC", "DESC"], limit: int
) -> list[Recorded]:
    narrowed, params = _where(look, wanted)
    sql = f"SELECT {FIELDS} FROM events WHERE {edge}?{narrowed} ORDER BY seq {order} LIMIT ?"  # noqa: S608 -- constants
    return [record_of(row) for row in look.execute(sql, (seq, *params, limit)).fetchall()]


def bound(look: Sees, wanted: Wanted, after: int, most: int) -> int | None:
    """The seq of the event that is `most` matching events beyond `after`; None when there are no more than that."""
    narrowed, params = _where(look, wanted)
    sql = f"SELECT seq FROM events WHERE seq>?{narrowed} ORDER BY seq LIMIT 1 OFFSET ?"  # noqa: S608 -- constants
    row = look.execute(sql, (after, *params, most)).fetchone()
    return None if row is None else int(row[0])


def last_anchor(paths: Paths) -> tuple[int, str] | None:
    """The last whole line of the anchors' file: (seq, link)."""
    found = ANCHOR.findall(_tail(anchors_file(paths)))
    return (int(found[-1][0]), found[-1][1]) if found else None


def _tail(file: Path) -> str:
    if not file.exists():
        return ""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _TAIL))
        text = opened.read().decode(errors="replace")
    return text if len(text) < _TAIL else text.partition("\n")[2]


def chain(look: Sees, anchor: tuple[int, str] | None) -> Chain:
    """The head beside the last anchor, and whether the two fit."""
    seq, link = look.execute("SELECT seq, hash FROM head WHERE id=1", ()).fetchone()
    if anchor is None:
        return Chain(seq, link)
    row = look.execute("SELECT hash FROM events WHERE seq=?", (anchor[0],)).fetchone()
    return Chain(seq, link, anchor[0], anchor[1], row is not None and row[0] == anchor[1])
