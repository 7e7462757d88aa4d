"""A history as a reader follows it: grouped by attempt, each event one sentence, causes as links.

1. A group begins with `Started`; what comes before the first one is a group of its own.
2. Three or more checkpoints and saved states in a row are one entry that opens: they say the same with growing numbers.
   Of a long run the last are there; what was before them is reached by time travel.
3. A cause inside the request is a link on the page; a cause elsewhere (a device, a lane) is a link to the audit page.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

import msgspec

from core import events as ev
from core.events import Recorded
from core.explain import explain
from web.dashboard.wording import Moment, lane_name, moment
from web.folding import count, folded
from web.views import event_view

_LOOKS: Final[Mapping[str, tuple[str, str]]] = {
    "Admitted": ("clock", "wait"),
    "Refused": ("ban", "off"),
    "Replanned": ("clock", "wait"),
    "Started": ("bolt", "run"),
    "Checkpointed": ("flag", "run"),
    "Preempted": ("branch", "move"),
    "SnapshotSaved": ("flag", "run"),
    "SnapshotRejected": ("warn", "bad"),
    "PrefixReady": ("bolt", "run"),
    "FaultSeen": ("warn", "bad"),
    "Requeued": ("branch", "move"),
    "Rerouted": ("branch", "move"),
    "Returned": ("branch", "move"),
    "Completed": ("check", "good"),
    "Failed": ("pause", "bad"),
    "Resumed": ("bolt", "run"),
    "LateWriteRejected": ("warn", "bad"),
    "Cancelled": ("cross", "off"),
    "Expired": ("cross", "off"),
    "DeviceLost": ("warn", "bad"),
    "DeviceBack": ("check", "good"),
    "LaneOut": ("warn", "bad"),
    "LaneIn": ("check", "good"),
    "FaultCounted": ("warn", "bad"),
    "BreakerOpened": ("ban", "bad"),
    "BreakerClosed": ("check", "good"),
    "RunnerExited": ("warn", "bad"),
}


_SHOWN: Final = 20
"""Events of one run that are on the page: a long answer has thousands."""


class Cause(msgspec.Struct, frozen=True):
    """What an event followed from, as a link."""

    label: str
    href: str
    sentence: str


class EventRow(msgspec.Struct, frozen=True):
    """One event. `raw` is its JSON as the API gives it."""

    version: int
    type: str
    icon: str
    tone: str
    sentence: str
    at: Moment
    actor: str
    raw: str
    cause: Cause | None


class Entry(msgspec.Struct, frozen=True):
    """One event, or a run of them that opens; `folded` says how many are in it, and is empty for a single event.

    `first` is the version the run begins with, `before` how many of it come before the rows.
    """

    key: str
    rows: tuple[EventRow, ...]
    folded: str = ""
    summary: str = ""
    """What the last of the run says."""
    first: int = 0
    before: int = 0


class Group(msgspec.Struct, frozen=True):
    """An attempt with its entries."""

    title: str
    note: str
    entries: tuple[Entry, ...]


def place_href(record: Recorded) -> str:
    """Where the audit page shows a record, among others of its stream."""
    query = urlencode({"stream": record.stream, "before": record.seq + 1})
    return f"/events?{query}#e{record.seq}"


def cause_of(record: Recorded, causes: Mapping[int, Recorded]) -> Cause | None:
    """The cause of a record as a link, or None."""
    cause = causes.get(record.cause_seq or 0)
    if cause is None:
        return None
    if cause.stream == record.stream:
        return Cause(f"v{cause.version}", f"#v{cause.version}", explain(cause.event))
    return Cause(f"event {cause.seq}", place_href(cause), explain(cause.event))


def event_row(record: Recorded, causes: Mapping[int, Recorded], now_us: int) -> EventRow:
    """One event as it is shown."""
    cause = causes.get(record.cause_seq or 0)
    view = event_view(record, cause)
    icon, tone = _LOOKS.get(record.type, ("dot", "off"))
    raw = msgspec.json.format(msgspec.json.encode(view), indent=2).decode()
    return EventRow(
        version=record.version,
        type=record.type,
        icon=icon,
        tone=tone,
        sentence=view["because"],
        at=moment(record.at_us, now_us),
        actor=record.actor,
        raw=raw,
        cause=cause_of(record, causes),
    )


def timeline(history: Sequence[Recorded], causes: Mapping[int, Recorded], now_us: int) -> tuple[Group, ...]:
    """The groups of a history, in order."""
    parts: list[tuple[str, str, list[Recorded]]] = []
    for record in history:
        event = record.event
        if isinstance(event, ev.Started):
            note = f"{lane_name(event.lane)} lane · {event.engine} · runner {event.runner} · {event.device}"
            parts.append((f"Attempt {record.attempt or len(parts) + 1}", note, []))
        elif not parts:
            title = "Not accepted" if isinstance(event, ev.Refused) else "Before the first attempt"
            parts.append((title, "", []))
        parts[-1][2].append(record)
    return tuple(
        Group(title, note, tuple(_entry(run, causes, now_us) for run in folded(records, lambda record: record.type)))
        for title, note, records in parts
    )


def _entry(run: Sequence[Recorded], causes: Mapping[int, Recorded], now_us: int) -> Entry:
    rows = tuple(event_row(record, causes, now_us) for record in run[-_SHOWN:])
    first = run[0].version
    if len(run) == 1:
        return Entry(f"v{first}", rows)
    return Entry(f"run-v{first}", rows, count(run), rows[-1].sentence, first, len(run) - len(rows))
