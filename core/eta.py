"""How long a request may still take: a range with what it rests on, or `unknown`.

1. Work is tokens to read (the prompt, and text of its own that a takeover reads again) and tokens to write, at the
   rates that its lane was seen to have.
2. High: everybody who goes first, and the request itself, writes as much as it may. Low: all of them write what short
   answers of the model came to; where those are not known, nobody goes first and the request writes all it may.
3. Places work side by side: whoever is next takes the place that is free first.
4. Reading was not seen: it is no slower than writing (high), and takes no time (low).
5. What has an end that nobody knows has no high; without a rate for writing neither end is known.

Not here: where the numbers come from (`store.waits`), who goes first (`core.lanes`).
"""

import heapq
import math
from collections.abc import Sequence
from typing import Final

import msgspec

from core.words import Lane

LONGEST_S: Final = 120
"""Callers are never told to stay away for longer: clients give up beyond."""


class Work(msgspec.Struct, frozen=True):
    """What is left to do for one request, in tokens. A saved state may spare reading: that is the low number."""

    read_low: int
    read: int
    write: int
    """At most."""
    done: int = 0
    """Written already; they count as part of a short answer."""


class Pace(msgspec.Struct, frozen=True):
    """How fast a lane computes a model. Rates in tokens a second, None where not seen."""

    lane: Lane
    prefill: float | None = None
    decode: float | None = None
    places: int = 1
    """Requests worked on at once."""
    short: int | None = None
    """Tokens that a quarter of the model's last answers did not exceed."""
    answers: int = 0
    """How many answers that rests on."""


class Hold(msgspec.Struct, frozen=True):
    """What must pass before the lane begins anything: seconds, None where nobody knows, and why in a clause."""

    low_s: float
    high_s: float | None
    why: str


class Eta(msgspec.Struct, frozen=True):
    """Seconds until its end, and until somebody takes it up; None: not known."""

    low_s: float | None
    high_s: float | None
    basis: str
    start_low_s: float | None = None
    start_high_s: float | None = None


class Line(msgspec.Struct, frozen=True):
    """A lane's queue: when whoever waits at each position is taken up, the last one being who comes next."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    read: tuple[int, ...]
    """Tokens to read, of all before a position, those at work included."""
    write: tuple[int, ...]


def unknown(why: str) -> Eta:
    """No range, and why there is none."""
    return Eta(None, None, f"unknown: {why}")


def low_s(work: Work, pace: Pace) -> float:
    """The least time one request takes once it is taken up; its rates are known."""
    assert pace.decode is not None
    write = work.write if pace.short is None else min(work.write, max(1, pace.short - work.done))
    return (work.read_low / pace.prefill if pace.prefill else 0.0) + write / pace.decode


def high_s(work: Work, pace: Pace) -> float:
    """The most time one request takes once it is taken up."""
    assert pace.decode is not None
    return work.read / (pace.prefill or pace.decode) + work.write / pace.decode


def line_up(running: Sequence[Work], waiting: Sequence[Work], pace: Pace) -> Line | None:
    """The queue behind those at work; None where the lane's speed is not known."""
    if not pace.decode:
        return None
    low = _starts([low_s(one, pace) for one in running], [low_s(one, pace) for one in waiting], pace.places)
    high = _starts([high_s(one, pace) for one in running], [high_s(one, pace) for one in waiting], pace.places)
    return Line(
        low if pace.short is not None else (0.0,) * len(low),
        high,
        _sums([one.read for one in running], [one.read for one in waiting]),
        _sums([one.write for one in running], [one.write for one in waiting]),
    )


def estimate(own: Work, line: Line, position: int, pace: Pace, hold: Hold | None = None) -> Eta:
    """For one that waits at a position; beyond the end of the line the others are taken to be like those in it."""
    at = min(position, len(line.low) - 1)
    share = position / at if 0 < at < position else 1.0
    hold = hold or Hold(0.0, 0.0, "")
    start_low = hold.low_s + line.low[at] * share
    start_high = None if hold.high_s is None else hold.high_s + line.high[at] * share
    read, write = round(line.read[at] * share) + own.read, round(line.write[at] * share) + own.write
    first = "nobody waits before it" if position == 0 else f"{position:,} wait before it"
    low_end = _low_end(own, pace, alone=write == own.write)
    basis = "; ".join(part for part in (hold.why, first, _tokens(read, write, pace), low_end) if part)
    return Eta(
        round(start_low + low_s(own, pace), 3),
        None if start_high is None else round(start_high + high_s(own, pace), 3),
        basis,
        round(start_low, 3),
        None if start_high is None else round(start_high, 3),
    )


def taken_up(own: Work, pace: Pace) -> Eta:
    """For one that was taken up, and of which no chunk was measured yet: where in its reading it is, nobody knows."""
    if not pace.decode:
        return unknown(f"how fast the {pace.lane.upper()} lane is was not measured yet")
    low = low_s(msgspec.structs.replace(own, read_low=0), pace)
    parts = (_tokens(own.read, own.write, pace), _low_end(own, pace, alone=True))
    return Eta(round(low, 3), round(high_s(own, pace), 3), "; ".join(part for part in parts if part), 0.0, 0.0)


def by_chunks(left: int, seconds_per_unit: Sequence[float], lane: Lane) -> Eta:
    """For one at work, by its own chunks: at the fastest and the slowest of them. An answer may end earlier."""
    rates = [one for one in seconds_per_unit if one > 0]
    basis = f"{left} units left at most, at the rates of its own last {len(rates)} chunks on the {lane.upper()} lane"
    return Eta(round(left * min(rates), 3), round(left * max(rates), 3), basis, 0.0, 0.0)


def wait_s(start: float | None) -> int | None:
    """A start as the whole seconds that a caller is told to wait: 1 to 120; None where it is not known."""
    return None if start is None else min(LONGEST_S, max(1, math.ceil(start)))


def next_place_s(line: Line, pace: Pace) -> float:
    """Seconds until the first in line is taken up, which frees a place behind the last."""
    return line.high[0] if pace.short is None else line.low[0]


def _starts(running: Sequence[float], waiting: Sequence[float], places: int) -> tuple[float, ...]:
    free = [0.0] * max(1, places)
    starts = []
    for took in running:
        heapq.heapreplace(free, free[0] + took)
    for took in waiting:
        starts.append(free[0])
        heapq.heapreplace(free, free[0] + took)
    return (*starts, free[0])


def _sums(running: Sequence[int], waiting: Sequence[int]) -> tuple[int, ...]:
    sums = [sum(running)]
    for one in waiting:
        sums.append(sums[-1] + one)
    return tuple(sums)


def _tokens(read: int, write: int, pace: Pace) -> str:
    assert pace.decode is not None
    speed = f"at {_rate(pace.decode)}"
    if pace.prefill:
        speed = f"at {_rate(pace.prefill)} and {_rate(pace.decode)}"
    places = f", {pace.places} at once" if pace.places > 1 else ""
    return (
        f"{read:,} tokens to read and at most {write:,} to write, {speed} as the {pace.lane.upper()} lane did{places}"
    )


def _rate(per_s: float) -> str:
    """Tokens a second with three digits."""
    rough = float(f"{per_s:.3g}")
    return f"{rough:,.0f} tokens/s" if rough >= 100 else f"{rough:g} tokens/s"


def _low_end(own: Work, pace: Pace, *, alone: bool) -> str:
    """Nothing where it is `alone` and may not even write as much as a short answer has."""
    if pace.short is None:
        return "the low end is its own work alone"
    if alone and own.write <= pace.short - own.done:
        return ""
    return f"the low end takes answers of {pace.short} tokens, as a quarter of the last {pace.answers} were or shorter"
