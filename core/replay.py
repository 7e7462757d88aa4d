"""Folding a history, and asking old decisions again."""

from collections.abc import Iterable

import msgspec

from core import admission, breaker, pool, returning, safepoint
from core.decision import AdmissionFacts, BreakerFacts, Decision, PoolFacts, ReturnFacts
from core.events import Admitted, Event, Recorded
from core.machine import apply
from core.state import RequestState


class Redecided(msgspec.Struct, frozen=True):
    """A stored decision beside what today's rules make of the same facts."""

    version: int
    rule: str
    same: bool
    recorded: Decision
    recomputed: Decision


def fold(history: Iterable[Recorded]) -> RequestState | None:
    """The state after a request's events, in order; None for none. Raises `IllegalEvent` for an illegal history."""
    state: RequestState | None = None
    for record in history:
        state = apply(state, record.event, stream=record.stream, at_us=record.at_us, attempt=record.attempt)
    return state


def decide_again(decision: Decision) -> Decision:
    """The same rule, asked again with the recorded facts."""
    facts = decision.facts
    if isinstance(facts, AdmissionFacts):
        return admission.decide(facts)
    if isinstance(facts, PoolFacts):
        return pool.decide(facts)
    if isinstance(facts, ReturnFacts):
        return returning.decide(facts)
    if isinstance(facts, BreakerFacts):
        return breaker.decide(facts)
    return safepoint.decide(facts)


def decision_of(event: Event) -> Decision | None:
    """The decision an event carries, if it carries one."""
    found = getattr(event, "decision", None)
    return found if isinstance(found, Decision) else None


def _decisions(event: Event) -> list[Decision]:
    """All decisions of an event: a request that another model serves carries the refusal of the one asked for too."""
    own = decision_of(event)
    refusal = event.instead if isinstance(event, Admitted) else None
    return [one for one in (refusal, own) if one is not None]


def redecide(history: Iterable[Recorded]) -> list[Redecided]:
    """Every decision of a history, re-run."""
    again = []
    for record in history:
        for recorded in _decisions(record.event):
            fresh = decide_again(recorded)
            again.append(Redecided(record.version, recorded.rule, fresh == recorded, recorded, fresh))
    return again
