"""The pressure strip of the overview: how full each device was in the last quarter of an hour, with the moves on it.

1. One row for each device, on the scale of its own size. A step nobody read in, or whose use is unknown, is a gap.
2. The same in a table, by the minute: the highest use, and what happened.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from core import events as ev
from core.events import Recorded
from core.explain import explain
from store.samples import SPAN_US, STEP_US, Sample
from web.api.pressure import Pressure
from web.dashboard.audit import stream_href
from web.dashboard.wording import NONE, UNKNOWN, Moment, moment, size

WIDTH: Final = 1000
HEIGHT: Final = 40
"""A row in its own units; the page stretches it."""
_MINUTE_US: Final = 60_000_000
_MINUTES: Final = SPAN_US // _MINUTE_US


class Mark(msgspec.Struct, frozen=True):
    """A move or a loss on every row; `x` is in 0…WIDTH."""

    x: float
    tone: str
    label: str


class StripRow(msgspec.Struct, frozen=True):
    """A device: the path of what was read at all and of its use as an area, and its use now in words."""

    name: str
    read: str
    path: str
    latest: str


class Happened(msgspec.Struct, frozen=True):
    """What a mark stands for, as a link to where it is told."""

    sentence: str
    href: str
    type: str


class Minute(msgspec.Struct, frozen=True):
    """A minute of the table: the highest use of each device, in the order of the rows."""

    at: Moment
    used: tuple[str, ...]
    happened: tuple[Happened, ...]


class Strip(msgspec.Struct, frozen=True):
    """The strip; `minutes` newest first, those in which nothing was read and nothing happened left out."""

    rows: tuple[StripRow, ...]
    marks: tuple[Mark, ...]
    minutes: tuple[Minute, ...]
    any: bool

    @property
    def marked(self) -> str:
        """How many moves and losses are marked, in words."""
        moves = sum(mark.tone == "move" for mark in self.marks)
        counts = ((moves, "move", "moves"), (len(self.marks) - moves, "loss", "losses"))
        return (
            " and ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count) + " marked"
        )


def strip(found: Pressure) -> Strip:
    """The strip of what was read and moved."""
    return Strip(
        rows=tuple(_row(label, samples, found.now_us) for _id, label, samples in found.devices),
        marks=tuple(_mark(record, found.now_us) for record in found.marks),
        minutes=tuple(_minutes(found)),
        any=any(samples for _id, _label, samples in found.devices),
    )


def _x(at_us: int, now_us: int) -> float:
    return round(WIDTH * max(0, min(SPAN_US, at_us - (now_us - SPAN_US))) / SPAN_US, 1)


def _row(label: str, samples: Sequence[Sample], now_us: int) -> StripRow:
    latest = _share(samples[-1]) if samples and samples[-1].at_us > now_us - 3 * STEP_US else UNKNOWN
    return StripRow(label, _read(samples, now_us), _path(samples, now_us), latest)


def _read(samples: Sequence[Sample], now_us: int) -> str:
    """A box of full height for each stretch that was read, so that nothing in use does not look like a gap."""
    spans: list[tuple[int, int]] = []
    for one in samples:
        if one.used is None or not one.total:
            continue
        joins = bool(spans) and spans[-1][1] == one.at_us
        spans[-1:] = [*([] if joins else spans[-1:]), (spans[-1][0] if joins else one.at_us, one.at_us + STEP_US)]
    return "".join(f"M{_x(start, now_us)} 0H{_x(end, now_us)}V{HEIGHT}H{_x(start, now_us)}Z" for start, end in spans)


def _path(samples: Sequence[Sample], now_us: int) -> str:
    """Steps from the ground up and back to it; it goes to the ground wherever there is a gap."""
    parts: list[str] = []
    end_us = None
    for one in samples:
        if one.used is None or not one.total:
            continue
        top = round(HEIGHT * (1 - min(1.0, one.used / one.total)), 1)
        start = f"L{_x(one.at_us, now_us)} {top}"
        if end_us != one.at_us:
            close = "" if end_us is None else f"V{HEIGHT}Z"
            start = f"{close}M{_x(one.at_us, now_us)} {HEIGHT}V{top}"
        end_us = one.at_us + STEP_US
        parts.append(f"{start}H{_x(end_us, now_us)}")
    return "".join([*parts, f"V{HEIGHT}Z"]) if parts else ""


def _share(one: Sample) -> str:
    if one.used is None:
        return UNKNOWN
    return f"{size(one.used)} of {size(one.total)}" + (f", {one.used / one.total:.0%}" if one.total else "")


def _mark(record: Recorded, now_us: int) -> Mark:
    tone = "move" if isinstance(record.event, (ev.Rerouted, ev.Returned)) else "bad"
    return Mark(_x(record.at_us, now_us), tone, explain(record.event))


def _minutes(found: Pressure) -> list[Minute]:
    last = found.now_us // _MINUTE_US
    minutes = []
    for number in range(last, last - _MINUTES - 1, -1):
        used = tuple(_highest(samples, number) for _id, _label, samples in found.devices)
        happened = tuple(_happened(record) for record in found.marks if record.at_us // _MINUTE_US == number)
        if happened or any(one != NONE for one in used):
            minutes.append(Minute(moment(number * _MINUTE_US, found.now_us), used, happened))
    return minutes


def _highest(samples: Sequence[Sample], minute: int) -> str:
    """The most that was in use in a minute; a dash where nothing was read."""
    within = [one for one in samples if one.at_us // _MINUTE_US == minute]
    if not within:
        return NONE
    return _share(max(within, key=lambda one: -1 if one.used is None else one.used))


def _happened(record: Recorded) -> Happened:
    href = stream_href(record.stream)
    return Happened(explain(record.event), href, record.type)
