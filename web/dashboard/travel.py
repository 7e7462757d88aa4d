"""A request as it was after one of its events: where one can go from there, and what that event changed."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from core import events as ev
from core.events import Recorded
from core.state import RequestState
from core.telling import field_words, mark_words, value_words
from web.dashboard.moves import MOVES, Asked, asked_again
from web.dashboard.wording import NONE, moment, state_chip

_MARKED: Final = (ev.FaultSeen, ev.Rerouted, ev.Returned, ev.Requeued, ev.Failed, ev.LateWriteRejected)
_ALWAYS_CHANGES: Final = frozenset({"version", "updated_us"})
SCALE: Final = 1000
"""Width of the strip of marks, in its own units."""


class Mark(msgspec.Struct, frozen=True):
    """A fault or a move on the strip above the slider; `x` is in 0…SCALE, `code` the type of its event."""

    version: int
    x: float
    tone: str
    label: str
    code: str


class Change(msgspec.Struct, frozen=True):
    """A field that the event changed, in words; the codes are what is stored where that is something else."""

    name: str
    before: "Value"
    after: "Value"


class Value(msgspec.Struct, frozen=True):
    """A value in words, the code that is stored for it, and a note beside it; both may be empty."""

    words: str
    code: str = ""
    note: str = ""


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
    label = f"event {record.version}: {mark_words(record.type)}"
    return Mark(record.version, round(x, 1), tone, label, record.type)


def changes(before: RequestState | None, after: RequestState) -> tuple[Change, ...]:
    """The fields that differ, except those that every event changes. From nothing, all that is set."""
    found = []
    for name in after.__struct_fields__:
        old, new = getattr(before, name) if before else None, getattr(after, name)
        if name in _ALWAYS_CHANGES or old == new or (before is None and not new):
            continue
        found.append(Change(field_words(name), _written(name, old), _written(name, new)))
    return tuple(found)


def _written(name: str, value: Any) -> Value:
    if value is None or value in {(), ""}:
        return Value(NONE)
    if (told := value_words(name, value)) is not None:
        return Value(*told)
    if isinstance(value, bool):
        return Value("yes" if value else "no")
    if name.endswith("_us"):
        return Value(moment(value, value).full)
    if name == "state":
        word = state_chip(value).word
        return Value(value, note=word if word != value else "")
    return Value(str(value))
