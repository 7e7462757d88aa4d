"""How a fault becomes the next event, in one transaction: evidence, decision, consequence, lease ended.

Used by whoever sees the fault first. The decision is pure (`core.safepoint`); here its facts are gathered and its
outcome is written. Where many move at once, they do so in turn: those for whom the CPU lane has no room keep their
place, and are told that this is less than they asked for (`store.moves` finds them a place later).
"""

from typing import Final

from core import events as ev
from core import safepoint
from core.decision import Decision, SafepointFacts
from core.policy import Policy
from core.state import RequestState
from core.words import ACTIVE, FaultClass
from store import claims, comeback, laneviews, outbox
from store.journal import Sees, Tx

BLAMING: Final = frozenset({"crashed", "exited", "hung", "oom-killed", "xid"})
"""Deaths that may be the input's doing. A plain kill, a stop, a lost device never are."""


def decide(tx: Sees, state: RequestState, fault: ev.FaultSeen, policy: Policy) -> Decision:
    """The safe-point decision for a request after a fault, from facts read in this transaction."""
    assert state.lane is not None
    cpu = laneviews.lane_row(tx, "cpu", state.model)
    return safepoint.decide(
        SafepointFacts(
            fault=fault.fault,
            fault_kind=fault.kind,
            lane=state.lane,
            units=state.units,
            failover=state.failover,
            pair=laneviews.pair(tx, state.model) if _same_contract(cpu, state) else "none",
            cpu_serving=cpu is not None and cpu.serving and state.prompt_tokens + state.max_units <= cpu.context,
            deaths=state.deaths,
            losses=state.losses,
            loss_limit=policy.loss_limit,
            poison_limit=policy.poison_limit,
            effects_pending=outbox.effects(tx, state.id, since_checkpoint=True),
            cancel_asked=state.cancel_asked,
            cpu_waiting=laneviews.waiting(tx, "cpu", state.model),
            cpu_limit=policy.cpu_queue_limit,
        )
    )


def _same_contract(cpu: laneviews.LaneRow | None, state: RequestState) -> bool:
    """Whether the CPU lane still computes what was promised when the request was admitted."""
    return cpu is not None and cpu.contract == state.contract


def after_fault(
    tx: Tx, request_id: str, fault: ev.FaultSeen, policy: Policy, *, actor: str, cause: int | None = None
) -> None:
    """Record a fault of an active request and what follows from it; nothing when it has settled meanwhile."""
    state = tx.state(request_id)
    if state is None or state.state not in ACTIVE:
        claims.release(tx, request_id)
        return
    seen = tx.append(request_id, fault, actor=actor, attempt=state.attempt or None, cause=cause)
    state = tx.state(request_id)
    assert state is not None
    follow(tx, state, decide(tx, state, fault, policy), fault.kind, actor=actor, cause=seen.seq)


def follow(tx: Tx, state: RequestState, decision: Decision, reason: str, *, actor: str, cause: int | None) -> None:
    """Write what a safe-point decision chose, and end the lease."""
    claims.release(tx, state.id)
    event: ev.Event
    match decision.action:
        case safepoint.CANCEL:
            event = ev.Cancelled()
        case safepoint.REQUEUE if state.state == "admitted":
            stay(tx, state, decision, _kept_by(tx, state, decision), actor=actor, cause=cause)
            return  # it waits in that queue already
        case safepoint.REQUEUE:
            event = ev.Requeued(decision, _kept_by(tx, state, decision))
        case safepoint.FAIL:
            event = ev.Failed(reason, decision)
        case _:
            event = ev.Rerouted(state.lane, state.units, reason, decision)
    tx.append(state.id, event, actor=actor, attempt=state.attempt or None, cause=cause)


def _kept_by(tx: Sees, state: RequestState, decision: Decision) -> str | None:
    """Why a request waits in the queue of the GPU lane although it should not have to; None: that lane works."""
    if decision.rule == safepoint.LANE_FULL:
        return decision.rule
    row = laneviews.lane_row(tx, "gpu", state.model) if state.lane == "gpu" else None
    return None if row is None or row.serving else row.out_reason


def stay(
    tx: Tx, state: RequestState, decision: Decision, why: str | None, *, actor: str, cause: int | None = None
) -> None:
    """It waits where it is, and for what is said once."""
    if why is not None and state.waits_for != why and not state.cancel_asked:
        tx.append(state.id, ev.Replanned(why, decision, lane_out=True), actor=actor, cause=cause)


def runner_lost(
    tx: Tx, runner: str, policy: Policy, fault: ev.FaultSeen, *, actor: str, cause: int | None = None
) -> list[str]:
    """A runner is gone: every request it held goes on by rule. Answers their ids."""
    held = claims.held_by(tx, runner)
    for request_id in held:
        after_fault(tx, request_id, fault, policy, actor=actor, cause=cause)
    return held


def leave_device(
    tx: Tx,
    device: str,
    policy: Policy,
    *,
    kind: str,
    fault_class: FaultClass,
    actor: str,
    cause: int | None = None,
    running: bool = False,
) -> None:
    """Nothing begins on a device any more: who waits for it goes on by rule; with `running`, who is worked on as well.

    A device that serves a CPU lane is left the same way.
    """
    rows = tx.execute("SELECT lane, model FROM lanes WHERE device=?", (device,)).fetchall()
    for lane, model in rows:
        if lane == "gpu":
            _move_all(
                tx, device, model, policy, actor=actor, cause=cause, kind=kind, fault_class=fault_class, running=running
            )
        else:
            _leave_cpu_lane(tx, model, policy, actor=actor)


def lane_lost(tx: Tx, model: str, device: str, reason: str, policy: Policy, *, actor: str) -> None:
    """The GPU lane cannot work for this model: take it out, and move who waits there."""
    laneviews.set_serving(tx, "gpu", model, reason, actor=actor)
    _move_all(tx, device, model, policy, actor=actor, kind=reason, fault_class="worker")


def _move_all(
    tx: Tx,
    device: str,
    model: str,
    policy: Policy,
    *,
    actor: str,
    cause: int | None = None,
    kind: str,
    fault_class: FaultClass,
    running: bool = True,
) -> None:
    waiting = tx.execute(
        "SELECT id FROM requests WHERE lane='gpu' AND model=? AND running<=? AND "
        "state IN ('admitted','running-gpu','checkpointed','rerouted-cpu') ORDER BY turn_us, id",
        (model, int(running)),
    ).fetchall()
    for (request_id,) in waiting:
        state = tx.state(request_id)
        assert state is not None
        fault = ev.FaultSeen(fault_class, kind, "gpu", state.runner or "", device)
        decision = decide(tx, state, fault, policy)
        if decision.action == safepoint.REQUEUE and not state.running:
            full = decision.rule == safepoint.LANE_FULL
            stay(tx, state, decision, decision.rule if full else kind, actor=actor, cause=cause)
            continue
        after_fault(tx, request_id, fault, policy, actor=actor, cause=cause)


def cpu_lane_out(tx: Tx, model: str, reason: str, policy: Policy, *, actor: str) -> None:
    """The CPU lane cannot work for this model: it takes no new work, and who waits there goes where the GPU lane can.

    Who cannot go there waits on: the lane is tried again.
    """
    laneviews.set_serving(tx, "cpu", model, reason, actor=actor)
    _leave_cpu_lane(tx, model, policy, actor=actor)


def _leave_cpu_lane(tx: Tx, model: str, policy: Policy, *, actor: str) -> None:
    waiting = tx.execute(
        "SELECT id FROM requests WHERE lane='cpu' AND model=? AND running=0 AND cancel_asked=0 AND "
        "state IN ('checkpointed','rerouted-cpu') ORDER BY turn_us",
        (model,),
    ).fetchall()
    for (request_id,) in waiting:
        state = tx.state(request_id)
        assert state is not None
        comeback.lane_out(tx, state, policy, actor=actor)
