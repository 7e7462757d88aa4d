"""The audit page: the whole journal, newest first, narrowed by what the address says, and where the chain stands."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode

import msgspec

from core.events import TYPES, Recorded
from core.explain import explain
from store.audit import Chain
from web.dashboard.timeline import Cause, EventRow, event_row, place_href
from web.dashboard.wording import short

ROWS: Final = 50
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
    """An event with its place in the journal, and its stream as a link."""

    seq: int
    stream: str
    stream_short: str
    href: str
    event: EventRow


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


def audit(
    records: Sequence[Recorded],
    causes: dict[int, Recorded],
    chain: Chain,
    narrowed: Narrowed,
    before: int | None,
    now_us: int,
) -> Audit:
    """The page of up to `ROWS` records; one more than that shows that there are older ones."""
    shown = records[:ROWS]
    more = len(records) > ROWS
    place = {} if before is None else {"before": str(before)}
    return Audit(
        rows=tuple(_row(record, causes, now_us) for record in shown),
        narrowed=narrowed,
        any=narrowed != Narrowed(),
        types=tuple(sorted(TYPES)),
        chain=chain,
        frozen=before is not None,
        newest=narrowed.address("/events"),
        older=narrowed.address("/events", before=str(shown[-1].seq)) if more else "",
        export=narrowed.address("/api/events", format="ndjson"),
        twin=narrowed.address("/api/events", order="newest", **place),
    )


def stream_href(stream: str) -> str:
    """The page of a stream: its request, or the journal narrowed to it."""
    if stream.startswith(_REQUEST):
        return f"/requests/{stream}"
    return Narrowed(stream=stream).address("/events")


def _row(record: Recorded, causes: dict[int, Recorded], now_us: int) -> AuditRow:
    return AuditRow(
        seq=record.seq,
        stream=record.stream,
        stream_short=short(record.stream) if record.stream.startswith(_REQUEST) else record.stream[:_MOST_SHOWN],
        href=stream_href(record.stream),
        event=msgspec.structs.replace(event_row(record, causes, now_us), cause=_cause(record, causes)),
    )


def _cause(record: Recorded, causes: dict[int, Recorded]) -> Cause | None:
    cause = causes.get(record.cause_seq or 0)
    if cause is None:
        return None
    own = cause.stream.startswith(_REQUEST)
    href = f"/requests/{cause.stream}?at={cause.version}" if own else place_href(cause)
    return Cause(f"event {cause.seq}", href, explain(cause.event))
