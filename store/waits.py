"""What a request waits for and how long that may take, from what is in the store now.

1. A lane is looked at once for all requests of it that are asked about (`picture`); nothing here writes.
2. Of a long queue the first `MOST` are looked at one by one; those beyond are taken to be like them.
3. Who goes first in a lane is asked with the same words as a claim (`CLAIMABLE_SQL`, `turn_us`).

Not here: the arithmetic (`core.eta`), what *stuck* means (`core.standing`).
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from core import eta
from core.breaker import Breaker
from core.eta import Eta, Hold, Line, Pace, Work
from core.machine import CLAIMABLE_SQL
from core.standing import Standing, StandingFacts, standing
from core.state import RequestState
from core.words import SETTLED, Lane
from store import breakers, house, laneviews, rates, roster
from store.journal import Sees

MOST: Final = 512
_WORK: Final = (
    "SELECT id, coalesce(json_extract(doc, '$.prompt_tokens'), 0), coalesce(json_extract(doc, '$.units'), 0), "
    "coalesce(json_extract(doc, '$.max_units'), 0) FROM requests WHERE lane=? AND model=? AND "
)
_RUNNING: Final = (
    f"{_WORK} running=1 AND state IN ('admitted','running-gpu','checkpointed','rerouted-cpu') LIMIT {MOST}"
)
_WAITING: Final = f"{_WORK} {CLAIMABLE_SQL} ORDER BY turn_us, id LIMIT {MOST}"
_LOADED: Final = (
    "SELECT json_extract(data, '$.took_us') FROM events WHERE type='RunnerLoaded' "
    "AND substr(stream, 1, length(?))=? ORDER BY seq DESC LIMIT 1"
)


_LEAST: Final = 4
"""Answers from which on a short one is known."""
_ANSWERS: Final = (
    "SELECT units FROM (SELECT model, coalesce(json_extract(doc, '$.units'), 0) AS units, created_us FROM requests "
    "WHERE state='completed' ORDER BY created_us DESC LIMIT 256) WHERE model=? ORDER BY created_us DESC LIMIT 64"
)
"""The last 64 of a model among the last 256 of all."""


class Picture(msgspec.Struct, frozen=True):
    """A lane for one model as it is now."""

    lane: Lane
    present: bool
    out_reason: str | None
    breaker: Breaker
    lost: bool
    """Its device is gone by the record."""
    up: bool
    """A runner has the model in memory."""
    load_s: float | None
    """What the last load took; None: none was seen."""
    pace: Pace
    line: Line | None
    places: dict[str, int]
    """Who waits at which position, as far as it was looked."""
    draining: bool
    at_work: frozenset[str] = frozenset()
    """Who is computed right now: of one that was read as waiting a moment ago, too."""

    @property
    def held(self) -> bool:
        """Nothing but its device, or a person, brings it back."""
        return self.lost or (self.breaker.state == "open" and self.breaker.held)


class Outlook(msgspec.Struct, frozen=True):
    """How a request stands, and how long it may take still; `takeover_s`: until it goes on where it was moved to.

    `position` counts who goes first in its lane's queue, None when it does not wait in one.
    """

    standing: Standing
    eta: Eta
    position: int | None = None
    takeover_s: float | None = None


def picture(tx: Sees, lane: Lane, model: str) -> Picture:
    """Look at a lane."""
    row = laneviews.lane_row(tx, lane, model)
    device = row.device if row is not None else ""
    seen, answers = rates.rates_of(tx, lane, model), answers_of(tx, model)
    pace = Pace(lane, seen.prefill, seen.decode, row.slots if row is not None else 1, short_of(answers), len(answers))
    before = f"runner-{lane}-{model}-"
    loaded = tx.execute(_LOADED, (before, before)).fetchone()
    taken = tx.execute(_RUNNING, (lane, model)).fetchall()
    running = [_work(*found[1:], running=True) for found in taken]
    queue = tx.execute(_WAITING, (lane, model)).fetchall()
    waiting = [_work(*found[1:]) for found in queue]
    return Picture(
        lane=lane,
        present=row is not None,
        out_reason=None if row is None or row.serving else row.out_reason or "starting",
        breaker=breakers.breaker_of(tx, device) or Breaker(),
        lost=laneviews.is_lost(tx, device),
        up=roster.has_model(tx, lane, model),
        load_s=None if loaded is None else loaded[0] / 1e6,
        pace=pace,
        line=eta.line_up(running, waiting, pace),
        places={found[0]: place for place, found in enumerate(queue)},
        draining=house.draining(tx),
        at_work=frozenset(found[0] for found in taken),
    )


def answers_of(tx: Sees, model: str) -> list[int]:
    """How many tokens the last answers of a model had, the fewest first."""
    return sorted(row[0] for row in tx.execute(_ANSWERS, (model,)).fetchall())


def short_of(answers: list[int]) -> int | None:
    """Tokens that a quarter of them did not exceed; None where there are too few."""
    return answers[(len(answers) - 1) // 4] if len(answers) >= _LEAST else None


def outlook(tx: Sees, state: RequestState, seen: Picture) -> Outlook:
    """How an active request stands; `seen` is its lane."""
    found = standing(_facts(state, seen))
    own = _own(tx, state)
    if state.running or state.id in seen.at_work:
        return Outlook(found, eta.taken_up(own, seen.pace), takeover_s=_takeover_s(own, seen, loaded=True))
    place = seen.places.get(state.id)
    place = laneviews.position(tx, state) if place is None else place
    takeover_s = _takeover_s(own, seen, loaded=seen.up) if state.failovers else None
    return Outlook(found, _eta(own, seen, found, place, tx.now_us), place, takeover_s)


def look(tx: Sees, states: Iterable[RequestState]) -> dict[str, Outlook]:
    """How each of them stands, by id; each lane is looked at once. Of one that has settled there is nothing to tell."""
    pictures: dict[tuple[Lane, str], Picture] = {}
    found = {}
    for state in states:
        if state.state in SETTLED or state.lane is None:
            continue
        key = (state.lane, state.model)
        if key not in pictures:
            pictures[key] = picture(tx, *key)
        found[state.id] = outlook(tx, state, pictures[key])
    return found


def newcomer(seen: Picture, now_us: int) -> Eta:
    """When a new request with no work of its own would be taken up by a lane: its `start_low_s`, `start_high_s`."""
    found = standing(StandingFacts(running=False, lane=seen.lane, waits_for=None, **_lane_facts(seen)))
    last = 0 if seen.line is None else len(seen.line.low) - 1
    return _eta(Work(0, 0, 0), seen, found, last, now_us)


def place_after_s(seen: Picture, now_us: int) -> int | None:
    """Seconds after which a caller who was turned away may find a place in a lane; None: nobody knows.

    Of a lane that is out, what its breaker says; of one that serves, when its full queue moves on.
    """
    if seen.held:
        return eta.LONGEST_S
    until_us = seen.breaker.until_us()
    if until_us is not None:
        return eta.wait_s((until_us - now_us) / 1e6)
    if seen.out_reason is not None or seen.line is None:
        return None
    return eta.wait_s(eta.next_place_s(seen.line, seen.pace))


def _eta(own: Work, seen: Picture, found: Standing, position: int | None, now_us: int) -> Eta:
    if found.status == "stuck":
        return eta.unknown("nothing will move it by itself as things are")
    if seen.line is None:
        return eta.unknown(f"how fast the {seen.lane.upper()} lane is was not measured yet")
    if position is None:
        return eta.unknown("it has no place in a queue")
    return eta.estimate(own, seen.line, position, seen.pace, _hold(seen, now_us))


def _hold(seen: Picture, now_us: int) -> Hold | None:
    """What must pass before the lane begins anything."""
    until_us = seen.breaker.until_us()
    if until_us is not None:
        left = max(0.0, (until_us - now_us) / 1e6)
        return Hold(left, None, f"its device is tried again in {left:.0f} s, and whether it is well then nobody knows")
    if seen.breaker.state == "half-open":
        return Hold(0.0, None, "its device is being tried, and whether it is well nobody knows")
    if seen.out_reason is not None:
        return Hold(0.0, None, "the lane is out, and when it is back nobody knows")
    if seen.up:
        return None
    if seen.load_s is None:
        return Hold(0.0, None, "its model has yet to be loaded, and how long that takes was never seen")
    return Hold(
        seen.load_s, seen.load_s, f"its model has yet to be loaded, which took {seen.load_s:.1f} s the last time"
    )


def _takeover_s(own: Work, seen: Picture, *, loaded: bool) -> float | None:
    """Seconds from being next in turn to the first new word, a model that has yet to be loaded included."""
    rate = seen.pace.prefill or seen.pace.decode
    load_s = 0.0 if loaded else seen.load_s
    return None if rate is None or load_s is None else round(load_s + own.read / rate, 3)


def _own(tx: Sees, state: RequestState) -> Work:
    read = state.prompt_tokens + state.units
    saved = tx.execute("SELECT tokens FROM snapshots WHERE request_id=?", (state.id,)).fetchone() if read else None
    spared = min(read, saved[0]) if saved is not None else 0
    return Work(read - spared, read, max(0, state.max_units - state.units), state.units)


def _work(prompt: int, units: int, most: int, *, running: bool = False) -> Work:
    """One who goes first. Of one at work that has written something, the reading is over."""
    read = 0 if running and units else prompt + units
    return Work(0 if running else read, read, max(0, most - units), units)


def _facts(state: RequestState, seen: Picture) -> StandingFacts:
    return StandingFacts(running=state.running, lane=state.lane, waits_for=state.waits_for, **_lane_facts(seen))


def _lane_facts(seen: Picture) -> dict[str, Any]:
    return {
        "draining": seen.draining,
        "present": seen.present,
        "out_reason": seen.out_reason,
        "breaker": seen.breaker.state,
        "breaker_reason": seen.breaker.reason,
        "up": seen.up,
        "held": seen.held,
    }
