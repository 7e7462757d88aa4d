"""The audit page: the whole journal, newest first, narrowed by what the address says, and where the chain stands.

A request that runs writes a checkpoint every moment. What it wrote between two other events is one line, with a link
to all of it; a page that is narrowed to a type shows each event by itself.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlencode

import msgspec

from core.events import TYPES, Recorded
from core.explain import explain
from store.audit import Chain
from web.dashboard.timeline import Cause, EventRow, event_row, place_href
from web.dashboard.wording import cut, short
from web.folding import by_stream, count_of, stretches

ROWS: Final = 50
"""Lines of a page, and a few more where a stretch of checkpoints ends it."""
_BATCH: Final = 500
_MOST_READ: Final = 3000
"""Events that one page tells at most, however few lines they make."""
_REQUEST: Final = "req_"
_MOST_SHOWN: Final = 80
"""Characters of a stream's name in a row; the link holds all of it."""


class Narrowed(msgspec.Struct, frozen=True):
    """The form as it was sent: what each field holds, empty where it narrows nothing."""

    stream: str = ""
    type: str = ""
    since: str = ""
    until: str = ""

    def address(self, path: str, **more: str) -> str:
        """`path` with this as its query, and more after it."""
        query = {name: value for name, value in msgspec.structs.asdict(self).items() if value} | more
        return f"{path}?{urlencode(query)}" if query else path


class AuditRow(msgspec.Struct, frozen=True):
    """An event with its place in the journal, and its stream as a link; or the newest of many that are one line.

    `folded` says how many, `first` is the oldest of them, and `each` leads to all.
    """

    seq: int
    stream: str
    stream_short: str
    href: str
    event: EventRow
    actor: str
    folded: str = ""
    first: int = 0
    each: str = ""


class Audit(msgspec.Struct, frozen=True):
    """The page. `frozen`: an older page, which does not change by itself. Links are empty where nothing is there."""

    rows: tuple[AuditRow, ...]
    narrowed: Narrowed
    any: bool
    types: tuple[str, ...]
    chain: Chain
    frozen: bool
    newest: str
    older: str
    export: str
    twin: str


async def page_of(
    newest: Callable[[int | None, int], Awaitable[list[Recorded]]], before: int | None, *, fold: bool
) -> tuple[list[list[Recorded]], bool]:
    """The lines of a page, newest first, and whether there is more; `newest` reads so many events before a seq."""
    if not fold:
        found = await newest(before, ROWS + 1)
        return [[record] for record in found[:ROWS]], len(found) > ROWS
    records: list[Recorded] = []
    more = True
    while more and len(records) < _MOST_READ and len(_lines(records, whole=False)) < ROWS:
        found = await newest(records[-1].seq if records else before, _BATCH)
        records += found
        more = len(found) == _BATCH
    lines = _lines(records, whole=not more)
    return lines, more or sum(map(len, lines)) < len(records)


def _lines(records: Sequence[Recorded], *, whole: bool) -> list[list[Recorded]]:
    """As many lines as a page has; a last stretch that may go on is left to the next page, unless it is all there is.

    `whole`: nothing lies beyond the records.
    """
    lines: list[list[Recorded]] = []
    runs = list(stretches(records, _type))
    for run in runs if whole or len(runs) < 2 else runs[:-1]:
        if lines and len(lines) >= ROWS:
            break
        lines += by_stream(run, _type, _stream)
    return lines


def _type(record: Recorded) -> str:
    return record.type


def _stream(record: Recorded) -> str:
    return record.stream


def audit(
    lines: Sequence[Sequence[Recorded]],
    causes: dict[int, Recorded],
    chain: Chain,
    narrowed: Narrowed,
    before: int | None,
    now_us: int,
    *,
    more: bool,
) -> Audit:
    """The page of these lines; `more`: there are older ones."""
    oldest = min((record.seq for line in lines for record in line), default=0)
    place = {} if before is None else {"before": str(before)}
    return Audit(
        rows=tuple(_row(line, causes, narrowed, now_us) for line in lines),
        narrowed=narrowed,
        any=narrowed != Narrowed(),
        types=tuple(sorted(TYPES)),
        chain=chain,
        frozen=before is not None,
        newest=narrowed.address("/events"),
        older=narrowed.address("/events", before=str(oldest)) if more else "",
        export=narrowed.address("/api/events", format="ndjson"),
        twin=narrowed.address("/api/events", order="newest", **place),
    )


def stream_href(stream: str) -> str:
    """The page of a stream: its request, or the journal narrowed to it."""
    if stream.startswith(_REQUEST):
        return f"/requests/{stream}"
    return Narrowed(stream=stream).address("/events")


def _row(line: Sequence[Recorded], causes: dict[int, Recorded], narrowed: Narrowed, now_us: int) -> AuditRow:
    record, many = line[0], len(line) > 1
    all_of = msgspec.structs.replace(narrowed, stream=record.stream, type=record.type)
    return AuditRow(
        seq=record.seq,
        stream=record.stream,
        stream_short=short(record.stream) if record.stream.startswith(_REQUEST) else cut(record.stream, _MOST_SHOWN),
        href=stream_href(record.stream),
        event=msgspec.structs.replace(event_row(record, causes, now_us), cause=_cause(record, causes)),
        actor=cut(record.actor, _MOST_SHOWN),
        folded=count_of(line, _type) if many else "",
        first=line[-1].seq,
        each=all_of.address("/events", before=str(record.seq + 1)) if many else "",
    )


def _cause(record: Recorded, causes: dict[int, Recorded]) -> Cause | None:
    cause = causes.get(record.cause_seq or 0)
    if cause is None:
        return None
    own = cause.stream.startswith(_REQUEST)
    href = f"/requests/{cause.stream}?at={cause.version}" if own else place_href(cause)
    return Cause(f"event {cause.seq}", href, explain(cause.event))
