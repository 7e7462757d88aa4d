"""Room appears: who waits in one lane's queue moves to the other, in turn; and who stays on the CPU lane is told why.

1. Who waits in place for a GPU lane that is out goes to the CPU lane as far as that has room, by the rules of a safe
   point. Where these would only stop it, it waits on. While the lane's device is being tried, nobody moves.
2. Who only waits for the CPU lane goes back to a GPU lane that serves and has room, by the rules of a way back. What
   is computed there goes back between two chunks, which is the runner's to ask.
3. Each of these is a look, for any connection, and a unit that looks again; both may be asked as often as one likes.
"""

from collections.abc import Iterator
from typing import Final

from core import events as ev
from core import returning, safepoint
from core.decision import Decision
from core.machine import CLAIMABLE_SQL
from core.policy import Policy
from core.state import RequestState
from core.words import ACTIVE, Lane
from store import comeback, failover, laneviews, projections, rates, tables
from store.journal import Sees, Tx

_MOST: Final = 512
_WAITING: Final = (
    f"SELECT doc FROM requests WHERE {CLAIMABLE_SQL} AND lane=? AND model=? "  # noqa: S608 -- constants
    f"ORDER BY turn_us, id LIMIT {_MOST}"
)
_ON_CPU: Final = (
    f"SELECT doc FROM requests WHERE {tables.ACTIVE} AND lane='cpu' AND model=? AND cancel_asked=0 "  # noqa: S608
    f"ORDER BY turn_us, id LIMIT {_MOST}"
)
_TOLD: Final = (
    "SELECT at_us, json_extract(data, '$.reason') FROM events WHERE stream=? AND version>? AND type='Replanned' "
    "AND json_extract(data, '$.decision.facts.kind')='return' ORDER BY version DESC LIMIT 1"
)
_OF_THE_LANE: Final = frozenset({"gpu-still-out", "return-off", "gpu-under-pressure", "gpu-busy"})
"""Reasons to stay that hold for everybody on the lane."""
_MOVES: Final = frozenset({safepoint.CONTINUE, safepoint.RESTART})


def to_cpu(tx: Sees, policy: Policy) -> bool:
    """Whether anybody who waits for a GPU lane that is out may go to the CPU lane now."""
    return any(next(_leaving(tx, model, policy), None) for model in _models(tx, "cpu"))


def move_to_cpu(tx: Tx, policy: Policy, *, actor: str) -> int:
    """Move them, as many as there is room for; how many."""
    moved = 0
    for model in _models(tx, "cpu"):
        for state, fault, decision in _leaving(tx, model, policy):
            failover.follow(tx, state, decision, fault.kind, actor=actor, cause=None)
            moved += 1
    return moved


def _leaving(tx: Sees, model: str, policy: Policy) -> Iterator[tuple[RequestState, ev.FaultSeen, Decision]]:
    """Who may leave the GPU lane's queue now, one after the other: each is decided when its turn has come."""
    cpu, fault = laneviews.lane_row(tx, "cpu", model), _out(tx, model)
    if fault is None or cpu is None or not cpu.serving:
        return
    if laneviews.waiting(tx, "cpu", model) >= policy.cpu_queue_limit:
        return
    for state in _queue(tx, "gpu", model):
        decision = failover.decide(tx, state, fault, policy)
        if decision.rule == safepoint.LANE_FULL:
            return
        if decision.action in _MOVES:
            yield state, fault, decision


def _out(tx: Sees, model: str) -> ev.FaultSeen | None:
    """What keeps a model's GPU lane from working, as the fault that it is; None while it works or is being tried."""
    row = laneviews.lane_row(tx, "gpu", model)
    if row is None:
        return ev.FaultSeen("device", "no-gpu", "gpu", "", "")
    if laneviews.is_lost(tx, row.device):
        return ev.FaultSeen("device", "device-lost", "gpu", "", row.device)
    if row.serving or row.breaker == "half-open":
        return None
    return ev.FaultSeen("worker", row.out_reason or laneviews.BREAKER_OPEN, "gpu", "", row.device)


def to_gpu(tx: Sees, policy: Policy) -> bool:
    """Whether anybody who waits for the CPU lane may go back to the GPU lane now."""
    return any(next(_returning(tx, model, policy), None) for model in _models(tx, "gpu"))


def move_to_gpu(tx: Tx, policy: Policy, *, actor: str) -> int:
    """Move them, as many as there is room for; how many."""
    moved = 0
    for model in _models(tx, "gpu"):
        for state, decision in _returning(tx, model, policy):
            tx.append(state.id, ev.Returned(decision.rule, state.units, decision), actor=actor)
            moved += 1
    return moved


def _returning(tx: Sees, model: str, policy: Policy) -> Iterator[tuple[RequestState, Decision]]:
    """Who may leave the CPU lane's queue now, one after the other."""
    if not _works(tx, model):
        return
    for state in _queue(tx, "cpu", model):
        decision = _decide(tx, state, policy)
        if decision.action == returning.RETURN:
            yield state, decision
        elif decision.rule in _OF_THE_LANE:
            return


def untold(tx: Sees, policy: Policy) -> list[str]:
    """Requests that stay on the CPU lane while the GPU lane serves, and are due to be told why."""
    found = []
    for model in _models(tx, "gpu"):
        if _works(tx, model):
            found += [one.id for one in _states(tx, _ON_CPU, (model,)) if _to_tell(tx, one, policy) is not None]
    return found


def tell(tx: Tx, request_id: str, policy: Policy, *, actor: str) -> bool:
    """Tell one, if that is still due; False when it is not."""
    state = tx.state(request_id)
    if state is None or state.lane != "cpu" or state.state not in ACTIVE or state.cancel_asked:
        return False
    decision = _to_tell(tx, state, policy) if _works(tx, state.model) else None
    if decision is None:
        return False
    tx.append(request_id, ev.Replanned(decision.rule, decision), actor=actor)
    return True


def _to_tell(tx: Sees, state: RequestState, policy: Policy) -> Decision | None:
    """Why it stays, where that is to be told now."""
    on_cpu_s = comeback.on_cpu_s(tx, state)
    moved = state.failovers[-1].version if state.failovers else 0
    row = tx.execute(_TOLD, (state.id, moved)).fetchone()
    told_s = 0.0 if row is None else max(0.0, on_cpu_s - max(0, tx.now_us - row[0]) / 1e6)
    if not returning.tell_due(on_cpu_s, told_s, same=False):
        return None
    decision = _decide(tx, state, policy)
    same = row is not None and row[1] == decision.rule
    if decision.action != returning.STAY or not returning.tell_due(on_cpu_s, told_s, same=same):
        return None
    return decision


def _decide(tx: Sees, state: RequestState, policy: Policy) -> Decision:
    cpu = laneviews.lane_row(tx, "cpu", state.model)
    out = not state.running and (cpu is None or not cpu.serving)
    return comeback.decide(tx, state, policy, _takeover_s(tx, state), cpu_out=out, waits=not state.running)


def _takeover_s(tx: Sees, state: RequestState) -> float | None:
    """What its prefix costs on the GPU lane; of one that waits, what it costs more there than here. None: unknown."""
    tokens = state.prompt_tokens + max(0, state.units - 1)
    there = rates.rates_of(tx, "gpu", state.model).prefill
    here = rates.rates_of(tx, "cpu", state.model).prefill
    if not there or not (here or state.running):
        return None
    return tokens / there - (0.0 if state.running or not here else tokens / here)


def _works(tx: Sees, model: str) -> bool:
    """Whether the model's GPU lane serves, and its device is sound."""
    row = laneviews.lane_row(tx, "gpu", model)
    return row is not None and row.serving and _out(tx, model) is None


def _models(tx: Sees, lane: Lane) -> list[str]:
    return [row[0] for row in tx.execute("SELECT model FROM lanes WHERE lane=? ORDER BY model", (lane,)).fetchall()]


def _queue(tx: Sees, lane: Lane, model: str) -> list[RequestState]:
    """Who waits in a lane's queue, the first in turn first."""
    return _states(tx, _WAITING, (lane, model))


def _states(tx: Sees, sql: str, parameters: tuple[object, ...]) -> list[RequestState]:
    return [projections.state_of(row[0]) for row in tx.execute(sql, parameters).fetchall()]
