"""What another policy would have decided: a recorded decision asked again, with numbers in its facts replaced.

1. One decision at a time, without what would have followed from it: had a request run elsewhere, what was free for the
   next one would have been different too. Whoever shows the answer says so.
2. Only numbers that the facts hold can be replaced. Spilling under pressure is a state with a past that one decision
   does not know; it can be ignored altogether, and not be computed from other marks.
3. A risk is a decision to run that would have promised more than the record says was free to promise.
"""

import math
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from core import admission, ledger
from core.decision import AdmissionFacts, Decision, HostFacts, LaneFacts

NOTE: Final = (
    "Each decision was asked again by itself over its recorded facts. What would have followed is not in it: had one "
    "request run elsewhere, less or more would have been free for the next."
)
EXAMPLES: Final = 20
_RUNS: Final = frozenset({admission.RUN_GPU, admission.SHRINK, admission.OFFLOAD})
_KEEPS_GPU: Final = _RUNS | {admission.DELAY}

Size = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class OtherPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The values to try, by their names in the policy; what is not named stays as it was."""

    headroom_bytes: Size | None = None
    device_cap_bytes: Size | None = None
    """0 takes a cap away."""
    reading_max_age_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    unseen_margin_bytes: Size | None = None
    blind_takes_work: bool | None = None
    gpu_queue_limit: Count | None = None
    cpu_queue_limit: Count | None = None
    shrink_floor: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    host_floor: Annotated[float, msgspec.Meta(ge=0, le=0.9)] | None = None
    ignore_pressure: bool = False
    """As if memory pressure had never been high."""


class Asked(msgspec.Struct, frozen=True):
    """A recorded decision, and where it is."""

    request_id: str
    version: int
    at_us: int
    decision: Decision


class Changed(msgspec.Struct, frozen=True):
    """A decision that would have been another. `over` are bytes promised beyond what the record says was free."""

    request_id: str
    version: int
    at_us: int
    action: str
    rule: str
    other_action: str
    other_rule: str
    over: int


class Tally(msgspec.Struct):
    """What became of the decisions so far. Counts; bytes where it says so."""

    decisions: int = 0
    same: int = 0
    changed: int = 0
    moves: dict[str, int] = {}
    """`action -> action`, and how often."""
    failovers_avoided: int = 0
    failovers_added: int = 0
    refusals_avoided: int = 0
    refusals_added: int = 0
    risks: int = 0
    most_over_bytes: int = 0
    examples: list[Changed] = []


def with_policy(facts: AdmissionFacts, other: OtherPolicy) -> AdmissionFacts:
    """The same facts, had that policy been in force."""
    changes: dict[str, object] = {
        "gpu": _lane(facts.gpu, other.gpu_queue_limit),
        "cpu": _lane(facts.cpu, other.cpu_queue_limit),
        "device": _device(facts, other),
        "host": _host(facts.host, other.host_floor),
    }
    if other.shrink_floor is not None and facts.need is not None:
        changes["least_units"] = max(1, math.ceil(facts.max_units * other.shrink_floor))
    if other.ignore_pressure:
        changes["spilling"] = False
    return msgspec.structs.replace(facts, **changes)


def ask(asked: Asked, other: OtherPolicy) -> Changed | None:
    """The decision that would have been made, or None where it is the same."""
    facts = asked.decision.facts
    assert isinstance(facts, AdmissionFacts)
    decision = admission.decide(with_policy(facts, other))
    before = asked.decision
    if (decision.action, decision.rule, decision.units, decision.part) == (
        before.action,
        before.rule,
        before.units,
        before.part,
    ):
        return None
    return Changed(
        asked.request_id,
        asked.version,
        asked.at_us,
        before.action,
        before.rule,
        decision.action,
        decision.rule,
        _over(facts, decision),
    )


def count(tally: Tally, asked: Iterable[Asked], other: OtherPolicy) -> None:
    """Ask decisions again and count them in."""
    for one in asked:
        tally.decisions += 1
        changed = ask(one, other)
        if changed is None:
            tally.same += 1
            continue
        tally.changed += 1
        move = f"{changed.action} -> {changed.other_action}"
        tally.moves[move] = tally.moves.get(move, 0) + 1
        tally.failovers_avoided += changed.action == admission.REROUTE and changed.other_action in _KEEPS_GPU
        tally.failovers_added += changed.action in _KEEPS_GPU and changed.other_action == admission.REROUTE
        tally.refusals_avoided += changed.action == admission.REFUSE and changed.other_action != admission.REFUSE
        tally.refusals_added += changed.action != admission.REFUSE and changed.other_action == admission.REFUSE
        tally.risks += changed.over > 0
        tally.most_over_bytes = max(tally.most_over_bytes, changed.over)
        if len(tally.examples) < EXAMPLES:
            tally.examples.append(changed)


def _lane(lane: LaneFacts, limit: int | None) -> LaneFacts:
    return lane if limit is None else msgspec.structs.replace(lane, limit=limit)


def _device(facts: AdmissionFacts, other: OtherPolicy) -> ledger.DeviceFacts | None:
    if facts.device is None:
        return None
    changes: dict[str, object] = {}
    if other.headroom_bytes is not None:
        changes["headroom"] = other.headroom_bytes
    if other.device_cap_bytes is not None:
        changes["cap"] = other.device_cap_bytes or None
    if other.reading_max_age_s is not None:
        changes["max_age_s"] = other.reading_max_age_s
    if other.unseen_margin_bytes is not None:
        changes["margin"] = min(other.unseen_margin_bytes, (facts.device.total or 0) // 8)
    if other.blind_takes_work is not None:
        changes["blind_takes_work"] = other.blind_takes_work
    return msgspec.structs.replace(facts.device, **changes)


def _host(host: HostFacts | None, share: float | None) -> HostFacts | None:
    if host is None or share is None or host.total is None:
        return host
    return msgspec.structs.replace(host, floor=int(host.total * share))


def _over(facts: AdmissionFacts, decision: Decision) -> int:
    """Bytes that the decision promises beyond what was free to promise by the recorded policy."""
    if decision.action not in _RUNS or facts.device is None or facts.need is None:
        return 0
    units = facts.max_units if decision.units is None else decision.units
    load = facts.need.load if decision.part is None else decision.part.load
    need = load + facts.need.token * (facts.prompt_tokens + units)
    return max(0, need - (ledger.available(facts.device) or 0))
