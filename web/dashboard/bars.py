"""A device's memory as two bars on one scale: what is promised to our runners, and what is observed.

1. The scale is the device's size; without it there is no bar, only what is known in words.
2. An unknown number makes its bar grey over the whole scale. Unknown is never drawn as zero.
3. The same numbers stand in a table beside the bars.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from web.dashboard.wording import UNKNOWN, size

WIDTH: Final = 1000
"""Width of the drawing in its own units; the page stretches it."""


class Segment(msgspec.Struct, frozen=True):
    """A part of a bar; `tone` is one of `ours`, `foreign`, `promised`, `kept`, `unknown`."""

    x: float
    width: float
    tone: str
    label: str


class Number(msgspec.Struct, frozen=True):
    """A row of the table beside the bars."""

    name: str
    value: str
    tone: str


class Bar(msgspec.Struct, frozen=True):
    """One bar with its name."""

    name: str
    segments: tuple[Segment, ...]


class Bars(msgspec.Struct, frozen=True):
    """The bars, none without a scale, and the numbers."""

    rows: tuple[Bar, ...]
    numbers: tuple[Number, ...]
    summary: str


def device_bars(
    total: int | None, reading: Mapping[str, Any] | None, promised: Sequence[tuple[str, int | None]]
) -> Bars:
    """Bars of an accelerator. `reading` as the monitor wrote it, `promised` as (runner, bytes) of those on it."""
    seen = reading or {}
    total = total if total is not None else seen.get("total")
    used, ours, foreign = seen.get("used"), seen.get("ours"), seen.get("foreign")
    given = None if any(held is None for _, held in promised) else sum(held or 0 for _, held in promised)
    numbers = (
        Number("Promised", size(given), "promised"),
        Number("In use", size(used), "plain"),
        Number("Ours", size(ours), "ours"),
        Number("Foreign", size(foreign), "foreign"),
        Number("Size", size(total), "plain"),
    )
    summary = f"Promised {size(given)}, in use {size(used)} of {size(total)}"
    if not total:
        return Bars((), numbers, summary)
    pieces = [("promised", held or 0, f"{name}: {size(held)}") for name, held in promised]
    left = stacked(pieces, total) if given is not None else _unknown("Promised")
    bars = (Bar("Promised", left), Bar("Observed", _observed(total, used, ours, foreign)))
    return Bars(bars, numbers, summary)


def host_bars(reading: Mapping[str, Any] | None) -> Bars:
    """One bar of the host's memory: what may not be used any more, and what still may."""
    seen = reading or {}
    total, available = seen.get("total"), seen.get("available")
    known = total is not None and available is not None
    used = max(0, total - available) if known and total and available is not None else None
    numbers = (
        Number("In use", size(used), "ours"),
        Number("Available", size(available), "plain"),
        Number("Size", size(total), "plain"),
        Number("Limited by", str(seen.get("limited_by") or UNKNOWN), "plain"),
    )
    summary = f"In use {size(used)} of {size(total)}"
    if not total:
        return Bars((), numbers, summary)
    row = _unknown("In use") if used is None else stacked([("ours", used, f"In use: {size(used)}")], total)
    return Bars((Bar("Observed", row),), numbers, summary)


def _observed(total: int, used: int | None, ours: int | None, foreign: int | None) -> tuple[Segment, ...]:
    if used is None:
        return _unknown("In use")
    if ours is None:
        return stacked([("unknown", used, f"In use, by whom is unknown: {size(used)}")], total)
    rest = used - ours if foreign is None else foreign
    return stacked([("ours", ours, f"Ours: {size(ours)}"), ("foreign", rest, f"Foreign: {size(rest)}")], total)


def stacked(pieces: Sequence[tuple[str, int, str]], total: int) -> tuple[Segment, ...]:
    """(tone, bytes, label) one after the other, on a scale of `total` bytes; what goes beyond it is cut."""
    x, row = 0.0, []
    for tone, held, label in pieces:
        width = max(0.0, min(WIDTH - x, WIDTH * held / total))
        if width > 0:
            row.append(Segment(round(x, 1), round(width, 1), tone, label))
        x += width
    return tuple(row)


def _unknown(name: str) -> tuple[Segment, ...]:
    return (Segment(0, WIDTH, "unknown", f"{name}: {UNKNOWN}"),)
