"""A breaker for each device: after which faults nothing new begins there, and what brings it back.

1. Closed: faults of workers count within a window, and so many of them open it. A fault of the device, or slowness,
   opens it at once. What is the input's doing, or the host's, or a matter of size, never counts.
2. Open: nothing begins there. After its cooldown it is half-open, unless it is held: after a fault of the device it
   waits until that was found anew, or until somebody says so.
3. Half-open: canaries are asked, short prompts whose answers were recorded in good days; no request reaches the device.
   So many right answers in a row close it. A wrong one, one that is far slower than it was, or a fault opens it again
   for twice as long.
4. Closed again, it is on probation until a request was completed there: canaries are short, and the first worker that
   fails then opens it again.

Not here: what a fault is and whom it blames (the shell gathers that), who waits where meanwhile (admission, safepoint).
"""

from typing import Final, Literal

import msgspec

from core import house_events as ev
from core.decision import BreakerFacts, Decision, Rejected
from core.event import Event
from core.words import FaultClass

Word = Literal["closed", "open", "half-open"]

OPEN: Final = "open"
CLOSE: Final = "close"
COUNT: Final = "count"
IGNORE: Final = "ignore"

_BAD: Final = frozenset({"wrong", "slow"})
"""Verdicts on canaries that do not speak for the device."""
_COUNTS: Final[frozenset[FaultClass]] = frozenset({"worker", "slow", "device"})


class Breaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one device's breaker: the fold of its events. Times in microseconds of the wall clock."""

    state: Word = "closed"
    since_us: int = 0
    faults_us: tuple[int, ...] = ()
    """When faults were counted, oldest first, since it closed."""
    trips: int = 0
    """Openings in a row, without a calm window after closing."""
    right: int = 0
    """Canaries answered right in a row while half-open."""
    reason: str = ""
    """Why it is not closed: the kind of the fault that opened it."""
    rule: str = ""
    held: bool = False
    """Open without an end."""
    cooldown_us: int = 0
    """How long it is open for, unless held."""

    def until_us(self) -> int | None:
        """When it is asked again; None while it is not open, or held."""
        return self.since_us + self.cooldown_us if self.state == "open" and not self.held else None

    def counted(self, now_us: int, window_us: int) -> int:
        """Faults within the window that ends now; one that lies ahead, since the clock was set back, is over."""
        return sum(1 for at_us in self.faults_us if 0 <= now_us - at_us < window_us)


def decide(facts: BreakerFacts) -> Decision:
    """`open`, `close`, `count` or `ignore`, by the first rule that applies."""
    action, rule, rejected = _fault(facts) if facts.fault is not None else _canary(facts)
    return Decision(action, rule, facts, tuple(Rejected(other, why) for other, why in rejected))


def cooldown_s(facts: BreakerFacts) -> float:
    """How long it is open for: doubles with each opening in a row, up to the longest."""
    return min(facts.cooldown_max_s, facts.cooldown_s * 2.0 ** min(facts.trips, 30))


_Ruling = tuple[str, str, list[tuple[str, str]]]


def _fault(f: BreakerFacts) -> _Ruling:  # noqa: PLR0911 -- one return for each rule
    """Rules for a fault that was seen."""
    if f.fault not in _COUNTS or f.input_blamed:
        why = "its input has done that before" if f.input_blamed else f"a fault of class `{f.fault}` says nothing of it"
        return IGNORE, "not-the-device", [(COUNT, why)]
    if f.fault == "device":
        if f.state == "open" and f.held:
            return COUNT, "is-open", [(OPEN, "it is open already, and held")]
        return OPEN, "device-fault", [(COUNT, "the device itself has failed; one such fault is enough")]
    if f.state == "open":
        return COUNT, "is-open", [(OPEN, "it is open already")]
    if f.state == "half-open":
        return OPEN, "still-faulty", [(CLOSE, "it failed again while it was tried")]
    if f.fault == "slow":
        return OPEN, "slow", [(COUNT, "it computes, and far slower than it did; waiting for more would not tell more")]
    if f.limit and f.probation:
        return OPEN, "relapse", [(COUNT, "canaries were answered rightly, and the first request failed all the same")]
    if f.limit and f.counted >= f.limit:
        return OPEN, "worker-faults", [(COUNT, f"{f.counted} faults within {f.window_s:g} s; the limit is {f.limit}")]
    limit = f"the limit is {f.limit}" if f.limit else "no number of them opens it, by policy"
    return COUNT, "below-limit", [(OPEN, f"{f.counted} within {f.window_s:g} s; {limit}")]


def _canary(f: BreakerFacts) -> _Ruling:  # noqa: PLR0911 -- one return for each rule
    """Rules for a canary that was answered."""
    if f.right == 0:
        if f.state == "open":
            return COUNT, "is-open", [(OPEN, "it is open already")]
        if f.fault_kind == "slow":
            return OPEN, "canary-slow", [(COUNT, "it answered rightly, and as slowly as before")]
        return OPEN, "canary-wrong", [(COUNT, "what it computes is not to be trusted")]
    if f.state == "closed":
        return IGNORE, "is-closed", [(CLOSE, "it is closed already")]
    if f.state == "open":
        return IGNORE, "is-open", [(CLOSE, "its cooldown is not over")]
    if f.right >= f.wanted:
        return CLOSE, "canaries-right", [(OPEN, f"{f.right} right answers in a row; {f.wanted} are asked for")]
    return COUNT, "one-more", [(CLOSE, f"{f.right} of {f.wanted} right answers")]


_LONGEST_WINDOW_US: Final = 3_600_000_000
"""The longest that policy lets a fault count for; older ones are not kept."""


def apply(before: Breaker, event: Event, at_us: int) -> Breaker:
    """The breaker after an event of its device; events that do not concern it change nothing."""
    match event:
        case ev.FaultCounted():
            kept = tuple(us for us in before.faults_us if at_us - us < _LONGEST_WINDOW_US)
            return msgspec.structs.replace(before, faults_us=(*kept, at_us))
        case ev.BreakerOpened():
            return msgspec.structs.replace(
                before,
                state="open",
                since_us=at_us,
                trips=before.trips + 1,
                right=0,
                reason=event.reason,
                rule=event.decision.rule,
                held=event.held,
                cooldown_us=event.cooldown_us,
            )
        case ev.BreakerHalfOpened():
            return msgspec.structs.replace(before, state="half-open", since_us=at_us, right=0, held=False)
        case ev.CanaryAnswered() if before.state == "half-open":
            return msgspec.structs.replace(before, right=before.right + 1 if event.verdict not in _BAD else 0)
        case ev.BreakerClosed():
            return Breaker(since_us=at_us, trips=before.trips)
        case _:
            return before


def calm(before: Breaker, now_us: int, window_us: int) -> Breaker:
    """The same breaker, whose openings are forgotten once it has been closed for a whole window."""
    if before.state == "closed" and before.trips and abs(now_us - before.since_us) >= window_us:
        return msgspec.structs.replace(before, trips=0)
    return before
