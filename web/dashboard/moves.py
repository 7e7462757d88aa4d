"""Each turn a request took, in three lines: what was seen, which rule, what was chosen and what was rejected.

Also the same decisions asked again: what today's rules make of the recorded facts.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from core import events as ev
from core.decision import Decision, Rejected
from core.events import Recorded
from core.explain import explain, explain_decision, reason
from core.replay import decision_of, redecide
from core.telling import action_words
from web.dashboard.wording import Moment, lane_name, moment

_TURNS: Final = (ev.Rerouted, ev.Returned, ev.Requeued, ev.Preempted, ev.Failed)
MOVES: Final = (ev.Rerouted, ev.Returned)
"""Events that change the lane."""


class Turn(msgspec.Struct, frozen=True):
    """A turn. `seen_version` is the version of the evidence on this page, None when it is not a request's event."""

    version: int
    title: str
    tone: str
    moved: bool
    at: Moment
    seen: str
    seen_version: int | None
    rule: str
    rule_text: str
    chosen: str
    chosen_text: str
    rejected: tuple[Rejected, ...]
    then: str
    """How it got ready to go on there, and what that cost; empty as long as it has not."""


class Asked(msgspec.Struct, frozen=True):
    """A decision asked again. `differs` names what came out otherwise, empty when it is the same."""

    version: int
    rule: str
    rule_text: str
    action: str
    same: bool
    differs: str
    rejected: tuple[Rejected, ...]


def turns(history: Sequence[Recorded], causes: Mapping[int, Recorded], now_us: int) -> tuple[Turn, ...]:
    """Every turn of a history, in order."""
    places = [index for index, record in enumerate(history) if isinstance(record.event, _TURNS)]
    return tuple(
        msgspec.structs.replace(_turn(history[here], causes, now_us), then=_then(history[here + 1 : following]))
        for here, following in zip(places, [*places, len(history)][1:], strict=True)
    )


def _then(later: Sequence[Recorded]) -> str:
    return next((explain(record.event) for record in later if isinstance(record.event, ev.PrefixReady)), "")


def _turn(record: Recorded, causes: Mapping[int, Recorded], now_us: int) -> Turn:
    event, cause = record.event, causes.get(record.cause_seq or 0)
    decision = decision_of(event)
    action = decision.action if decision else "return-gpu"
    seen = cause is not None and isinstance(cause.event, ev.FaultSeen)
    return Turn(
        version=record.version,
        title=_title(event),
        tone="bad" if isinstance(event, ev.Failed) else "move",
        moved=isinstance(event, MOVES),
        at=moment(record.at_us, now_us),
        seen=explain(cause.event) if seen and cause else _reason(event),
        seen_version=cause.version if seen and cause else None,
        rule=decision.rule if decision else "returned",
        rule_text=explain_decision(decision) if decision else "",
        chosen=action,
        chosen_text=action_words(action),
        rejected=decision.rejected if decision else (),
        then="",
    )


def _title(event: ev.Event) -> str:
    if isinstance(event, ev.Rerouted):
        return f"{lane_name(event.from_lane)} → CPU" if event.from_lane else "Sent to CPU"
    if isinstance(event, ev.Returned):
        return "CPU → GPU"
    if isinstance(event, ev.Preempted):
        return "Gave way"
    return "Stopped" if isinstance(event, ev.Failed) else "Kept its lane"


def _reason(event: ev.Event) -> str:
    code = getattr(event, "reason", None)
    text = reason(code) if isinstance(code, str) else explain(event)
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def asked_again(history: Sequence[Recorded]) -> tuple[Asked, ...]:
    """Every decision of a history, asked again."""
    return tuple(
        Asked(
            version=one.version,
            rule=one.rule,
            rule_text=explain_decision(one.recorded),
            action=one.recorded.action,
            same=one.same,
            differs="" if one.same else _difference(one.recorded, one.recomputed),
            rejected=one.recorded.rejected,
        )
        for one in redecide(history)
    )


def _difference(before: Decision, after: Decision) -> str:
    parts = [f"{name}: {a} → {b}" for name, a, b in _named(before, after) if a != b]
    if before.rejected != after.rejected:
        parts.append("rejected: " + "; ".join(f"{r.action}, {r.reason}" for r in after.rejected))
    return " · ".join(parts)


def _named(before: Decision, after: Decision) -> Sequence[tuple[str, str, str]]:
    return (("action", before.action, after.action), ("rule", before.rule, after.rule))
