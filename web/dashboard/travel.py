"""A request as it was after one of its events: where one can go from there, and what that event changed."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from core import events as ev
from core.events import Recorded
from core.state import DegradedMark, FailureMark, RequestState
from web.dashboard.moves import MOVES, Asked, asked_again
from web.dashboard.wording import NONE, moment

_MARKED: Final = (ev.FaultSeen, ev.Rerouted, ev.Returned, ev.Requeued, ev.Failed, ev.LateWriteRejected)
_ALWAYS_CHANGES: Final = frozenset({"version", "updated_us"})
_NAMES: Final = {
    "units": "durable units",
    "max_units": "units wanted",
    "visible_upto": "characters shown",
    "output_epoch": "output",
    "not_before_us": "not before",
    "deadline_us": "deadline",
    "waiting_since_us": "waiting since",
    "started_us": "first started",
    "settled_us": "settled",
    "resumed_version": "resumed by event",
    "ended_by": "ended because of",
    "fault_device": "device of the last fault",
    "deaths": "deaths blamed on the input",
}
SCALE: Final = 1000
"""Width of the strip of marks, in its own units."""


class Mark(msgspec.Struct, frozen=True):
    """A fault or a move on the strip above the slider; `x` is in 0…SCALE."""

    version: int
    x: float
    tone: str
    label: str


class Change(msgspec.Struct, frozen=True):
    """A field that the event changed, in words."""

    name: str
    before: str
    after: str


class Travel(msgspec.Struct, frozen=True):
    """Where in its history the page is frozen. Links are versions, None where there is nothing that way."""

    at: int
    last: int
    previous: int | None
    next: int | None
    next_move: int | None
    previous_move: int | None
    marks: tuple[Mark, ...]
    changes: tuple[Change, ...]
    decisions: tuple[Asked, ...]
    event_type: str

    @property
    def all_same(self) -> bool:
        """Whether today's rules decide everything as it was decided."""
        return all(one.same for one in self.decisions)


def travel(history: Sequence[Recorded], states: Sequence[RequestState], at: int) -> Travel:
    """The view of travelling at version `at`; `states` are those after each event up to there."""
    last = len(history)
    moves = [record.version for record in history if isinstance(record.event, MOVES)]
    before = states[at - 2] if at > 1 else None
    return Travel(
        at=at,
        last=last,
        previous=at - 1 if at > 1 else None,
        next=at + 1 if at < last else None,
        next_move=next((version for version in moves if version > at), None),
        previous_move=next((version for version in reversed(moves) if version < at), None),
        marks=tuple(_mark(record, last) for record in history if isinstance(record.event, _MARKED)),
        changes=changes(before, states[at - 1]),
        decisions=asked_again(history[:at]),
        event_type=history[at - 1].type,
    )


def _mark(record: Recorded, last: int) -> Mark:
    x = SCALE * (record.version - 1) / max(1, last - 1)
    tone = "move" if isinstance(record.event, (*MOVES, ev.Requeued)) else "bad"
    return Mark(record.version, round(x, 1), tone, f"v{record.version} {record.type}")


def changes(before: RequestState | None, after: RequestState) -> tuple[Change, ...]:
    """The fields that differ, except those that every event changes. From nothing, all that is set."""
    found = []
    for name in after.__struct_fields__:
        old, new = getattr(before, name) if before else None, getattr(after, name)
        if name in _ALWAYS_CHANGES or old == new or (before is None and not new):
            continue
        found.append(Change(_NAMES.get(name, name.replace("_", " ")), _written(name, old), _written(name, new)))
    return tuple(found)


def _written(name: str, value: Any) -> str:
    if value is None or value == ():
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_us"):
        return moment(value, value).full
    if isinstance(value, tuple):
        return ", ".join(f"v{mark.version} to {mark.to_lane}" for mark in value)
    if isinstance(value, DegradedMark | FailureMark):
        return f"{value.reason}, rule {value.rule}"
    return str(value)
