"""A lane that is slow: its device's breaker hears of it, and who is computed there leaves, if that is better for it.

1. It is a fault only where the CPU lane is known to compute faster than what is seen; else nobody would gain.
2. The breaker opens in any case then, since new work is free to go elsewhere. Work that was begun leaves where the
   safe-point rules let it go on; else it goes on where it is, under the same lease.
"""

from typing import Literal

from core import events as ev
from core import safepoint
from core.policy import Policy
from core.slowness import Spell
from store import breakers, canaries, claims, failover, laneviews, rates
from store.claims import Fence
from store.journal import Sees, Tx

Outcome = Literal["left", "stays", "nowhere-better"]


def better_elsewhere(tx: Sees, model: str, seen_tps: float) -> bool:
    """Whether the CPU lane serves the model, and is known to compute it faster than that."""
    row = laneviews.lane_row(tx, "cpu", model)
    if row is None or not row.serving:
        return False
    known = rates.rates_of(tx, "cpu", model).decode or _by_canary(tx, row)
    return known is not None and known > seen_tps


def _by_canary(tx: Sees, row: laneviews.LaneRow) -> float | None:
    """What a lane that has not worked yet has shown: less than its rate, since the prompt took its time too."""
    known = canaries.recorded(tx, laneviews.path_of(tx, row), row.device)
    return len(known.units) * 1e6 / known.took_us if known is not None and known.took_us > 0 else None


def leave(tx: Tx, fence: Fence, spell: Spell, policy: Policy) -> Outcome:
    """Tell it, and move what is computed if it may go on elsewhere; then the lease is over. Raises `Fenced`."""
    claims.check(tx, fence)
    state = tx.state(fence.request_id)
    if state is None or state.cancel_asked or not better_elsewhere(tx, state.model, spell.tps):
        return "nowhere-better"
    evidence: dict[str, str | int | float] = {
        "units_per_s": round(spell.tps, 3),
        "usual_units_per_s": round(spell.expected_tps, 3),
        "for_s": round(spell.spent_s, 1),
    }
    fault = ev.FaultSeen("slow", "slow", "gpu", fence.runner, fence.device, evidence=evidence)
    seen = tx.append(fence.request_id, fault, actor=fence.runner, attempt=fence.attempt)
    counted = ev.FaultCounted("slow", "slow", fence.runner, evidence)
    breakers.fault(tx, fence.device, counted, policy, actor=fence.runner, cause=seen.seq)
    state = tx.state(fence.request_id)
    assert state is not None
    decision = failover.decide(tx, state, fault, policy)
    if decision.action not in {safepoint.CONTINUE, safepoint.RESTART}:
        return "stays"
    failover.follow(tx, state, decision, fault.kind, actor=fence.runner, cause=seen.seq)
    return "left"
