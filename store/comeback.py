"""Going back to the GPU lane: the facts, and the move, in one transaction."""

from typing import Final

from core import events as ev
from core import returning
from core.decision import Decision, ReturnFacts
from core.policy import Policy
from core.state import RequestState
from store import claims, laneviews, rates, reservations, roster
from store.claims import Fence
from store.journal import Sees, Tx


def decide(
    tx: Sees,
    state: RequestState,
    policy: Policy,
    takeover_s: float | None,
    *,
    cpu_out: bool = False,
    waits: bool = False,
) -> Decision:
    """Whether a request on the CPU lane is to go back now; `takeover_s` is what that would cost."""
    gpu, cpu = laneviews.lane_row(tx, "gpu", state.model), laneviews.lane_row(tx, "cpu", state.model)
    device = gpu.device if gpu is not None else ""
    alike = gpu is not None and cpu is not None and gpu.contract == state.contract == cpu.contract
    return returning.decide(
        ReturnFacts(
            wanted=policy.return_to_gpu,
            failover=state.failover,
            units=state.units,
            units_left=state.max_units - state.units,
            pair=laneviews.pair(tx, state.model) if alike else "none",
            gpu_serving=gpu is not None and gpu.serving and _works(tx, device, state.model),
            gpu_waiting=laneviews.waiting(tx, "gpu", state.model) if gpu is not None else 0,
            gpu_slots=gpu.slots if gpu is not None else 1,
            spilling=reservations.spilling(tx, device),
            moves=len(state.failovers),
            on_cpu_s=on_cpu_s(tx, state),
            least_s=policy.return_after_s,
            least_gain_s=policy.return_gain_s,
            cpu_tps=rates.rates_of(tx, "cpu", state.model).decode or _own_tps(tx, state),
            gpu_tps=rates.rates_of(tx, "gpu", state.model).decode,
            takeover_s=takeover_s,
            cannot=_cannot(tx, state.id),
            cpu_out=cpu_out,
            waits=waits,
        )
    )


def on_cpu_s(tx: Sees, state: RequestState) -> float:
    """Seconds since its last move, which brought it to the CPU lane."""
    moved_us = state.failovers[-1].at_us if state.failovers else state.created_us
    return max(0, tx.now_us - moved_us) / 1e6


_CHUNKS: Final = (
    "SELECT json_extract(data, '$.units'), json_extract(data, '$.took_us') FROM events "
    "WHERE stream=? AND type='Checkpointed' AND attempt=? ORDER BY version DESC LIMIT 2"
)


def _own_tps(tx: Sees, state: RequestState) -> float | None:
    """Tokens a second of its own last chunk: all that is known of a lane that has completed nothing yet."""
    chunks = tx.execute(_CHUNKS, (state.id, state.attempt)).fetchall()
    if len(chunks) < 2 or not chunks[0][1]:
        return None
    return float((chunks[0][0] - chunks[1][0]) / chunks[0][1] * 1e6)


_CANNOT: Final = (
    "SELECT 1 FROM events WHERE stream=? AND type='FaultSeen' AND json_extract(data, '$.kind')='cannot-continue' "
    "AND json_extract(data, '$.lane')='gpu' LIMIT 1"
)


def _cannot(tx: Sees, request_id: str) -> bool:
    """Whether the GPU lane was seen to be unable to go on with this request's text."""
    return tx.execute(_CANNOT, (request_id,)).fetchone() is not None


def lane_out(tx: Tx, state: RequestState, policy: Policy, *, actor: str) -> bool:
    """Its CPU lane is out: it goes back where the GPU lane can take it, whatever that costs; False when it stays."""
    decision = decide(tx, state, policy, None, cpu_out=True)
    if decision.action != returning.RETURN:
        return False
    tx.append(state.id, ev.Returned(decision.rule, state.units, decision), actor=actor)
    return True


def _works(tx: Sees, device: str, model: str) -> bool:
    """Whether the GPU lane's device is there, and a runner has the model: waiting for one costs more than going on."""
    return not laneviews.is_lost(tx, device) and roster.has_model(tx, "gpu", model)


def go_back(tx: Tx, fence: Fence, policy: Policy, takeover_s: float | None) -> bool:
    """Move it, if that still holds now; False when it stays, and goes on under the same lease. Raises `Fenced`."""
    claims.check(tx, fence)
    state = tx.state(fence.request_id)
    if state is None or state.cancel_asked:
        return False
    decision = decide(tx, state, policy, takeover_s)
    if decision.action != returning.RETURN:
        return False
    claims.write(tx, fence, ev.Returned(decision.rule, state.units, decision))
    claims.release(tx, fence.request_id)
    return True
