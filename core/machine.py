"""The state machine of a request: which event may follow which state, and what it makes of it.

1. The table is data; `apply` consults it before anything else. No row: `IllegalEvent`, and nothing changes.
2. After `CancelAsked` only faults, checkpoints and an end may follow (`AFTER_CANCEL`), whatever the table says.
3. The state says what is *safe*; whether something was produced is asked of `units`, never of the state's name.
4. `Checkpointed` and `Completed` never lower `units` or `visible_upto`: what was shown is never taken back.
5. A claim is legal only where `claimable` says so (time aside); the same definition is used in SQL (`CLAIMABLE_SQL`).
6. A change of lane is never silent: it leaves a mark in `failovers`, whichever event made it. What was less than asked
   for before it and is so still, another model or a shorter answer, stays told after it.
7. Who has to wait in place because its lane is out is degraded until it starts there, or is moved.
8. A `Replanned` about the way back tells why work stays where it is, and changes nothing: it may be running.

Not here: who may write (the store fences that), what should be done (the deciders), time (it is a parameter).
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from core import events as ev
from core.decision import Decision, ReturnFacts
from core.errors import IllegalEvent
from core.state import DegradedMark, FailoverMark, FailureMark, RequestState
from core.words import ACTIVE, ALL_STATES, SETTLED, TERMINAL, Lane, State


class ByUnits(msgspec.Struct, frozen=True):
    """The target depends on whether anything is durable, and on the lane chosen."""

    none_gpu: State
    none_cpu: State
    some_gpu: State
    some_cpu: State

    def pick(self, units: int, lane: Lane | None) -> State:
        """The state to go to."""
        if units == 0:
            return self.none_cpu if lane == "cpu" else self.none_gpu
        return self.some_cpu if lane == "cpu" else self.some_gpu


Target = State | ByUnits


def _same(*states: State) -> dict[State, Target]:
    return {state: state for state in states}


def _to(target: Target, *states: State) -> dict[State, Target]:
    return dict.fromkeys(states, target)


_ACTIVE: Final = tuple(s for s in ALL_STATES if s in ACTIVE)
_TAKEN_UP: Final[tuple[State, ...]] = ("running-gpu", "rerouted-cpu", "checkpointed")

START: Final[Mapping[str, State]] = {"Admitted": "admitted", "Refused": "refused"}
"""Events that begin a stream."""

TABLE: Final[Mapping[str, Mapping[State, Target]]] = {
    "Replanned": _same("admitted", "rerouted-cpu", "checkpointed"),
    "Started": _to("running-gpu", "admitted") | _same("rerouted-cpu", "checkpointed"),
    "Checkpointed": _to("checkpointed", *_TAKEN_UP),
    "Preempted": _to("admitted", "running-gpu") | _same("rerouted-cpu", "checkpointed"),
    "FaultSeen": _same(*_ACTIVE),
    "Requeued": _to("admitted", "running-gpu") | _same("rerouted-cpu", "checkpointed"),
    "Rerouted": _to("rerouted-cpu", "admitted", "running-gpu", "checkpointed"),
    "Returned": _to(ByUnits("admitted", "admitted", "checkpointed", "checkpointed"), "rerouted-cpu", "checkpointed"),
    "Completed": _to("completed", *_TAKEN_UP),
    "Failed": _to("resumable-error", *_ACTIVE),
    "Resumed": _to(ByUnits("admitted", "rerouted-cpu", "checkpointed", "rerouted-cpu"), "resumable-error"),
    "CancelAsked": _same(*_ACTIVE),
    "Cancelled": _to("cancelled", *_ACTIVE, "resumable-error"),
    "Expired": _to("cancelled", *_ACTIVE, "resumable-error"),
    "LateWriteRejected": _same(*ALL_STATES),
    "EffectDelivered": _same(*ALL_STATES),
    "ContentErased": _same(*(s for s in ALL_STATES if s in SETTLED)),
    "SnapshotSaved": _same(*_TAKEN_UP),
    "SnapshotRejected": _same(*_TAKEN_UP),
    "PrefixReady": _same(*_TAKEN_UP),
}

AFTER_CANCEL: Final = frozenset(
    {
        "FaultSeen",
        "Checkpointed",
        "Completed",
        "Cancelled",
        "LateWriteRejected",
        "EffectDelivered",
        "ContentErased",
    }
)

CLAIMABLE_SQL: Final = "running = 0 AND cancel_asked = 0 AND state IN ('admitted','rerouted-cpu','checkpointed')"
"""`claimable` for a WHERE clause; lane, model and `not_before_us` are the caller's parameters."""


def claimable(state: RequestState, lane: Lane, now_us: int) -> bool:
    """Whether a runner of `lane` may take the request up now."""
    return (
        state.state in {"admitted", "rerouted-cpu", "checkpointed"}
        and state.lane == lane
        and not state.running
        and not state.cancel_asked
        and (state.not_before_us is None or state.not_before_us <= now_us)
    )


def allowed(state: RequestState | None, type_: str) -> bool:
    """Whether the table has a row for this event now."""
    if state is None:
        return type_ in START
    if state.cancel_asked and state.state in ACTIVE and type_ not in AFTER_CANCEL:
        return False
    return state.state in TABLE.get(type_, {})


def apply(
    state: RequestState | None, event: ev.Event, *, stream: str, at_us: int, attempt: int | None = None
) -> RequestState:
    """The state after `event`. Raises `IllegalEvent` where the table has no row."""
    type_ = type(event).__name__
    if not allowed(state, type_):
        raise IllegalEvent("none" if state is None else state.state, type_)
    if state is None:
        return _begin(event, stream, at_us)
    changes: dict[str, object] = {"version": state.version + 1, "updated_us": at_us}
    handler = _HANDLERS.get(type_)
    if handler is not None:
        changes |= handler(state, event, at_us)
    if attempt is not None and type_ == "Started":
        changes["attempt"] = attempt
    target = TABLE[type_][state.state]
    if isinstance(target, ByUnits):
        units = changes.get("units", state.units)
        lane = changes.get("lane", state.lane)
        assert isinstance(units, int)
        target = target.pick(units, lane)  # type: ignore[arg-type]  # the handlers put a Lane there
    changes["state"] = target
    if target in SETTLED and state.state not in SETTLED:
        changes |= {"running": False, "runner": None, "settled_us": at_us, "waiting_since_us": None}
    return msgspec.structs.replace(state, **changes)


def _begin(event: ev.Event, stream: str, at_us: int) -> RequestState:
    if isinstance(event, ev.Refused):
        return RequestState(
            id=stream,
            owner=event.owner,
            workload=event.workload,
            model=event.model,
            served_model="",
            state="refused",
            version=1,
            created_us=at_us,
            updated_us=at_us,
            settled_us=at_us,
            ended_by=event.reason,
            retry_after_s=event.retry_after_s,
        )
    assert isinstance(event, ev.Admitted)
    return RequestState(
        id=stream,
        owner=event.owner,
        workload=event.workload,
        model=event.served_model,
        asked_model=event.model if event.model != event.served_model else None,
        served_model=event.served_model,
        engine=event.engine,
        contract=event.contract,
        state="admitted",
        lane="gpu",
        version=1,
        created_us=at_us,
        updated_us=at_us,
        waiting_since_us=at_us,
        max_units=event.max_units,
        asked_units=event.asked_units,
        shorter=event.shorter,
        waits_for=event.decision.rule if event.decision.action == "delay" else None,
        degraded=_degraded_from_start(event, at_us),
        prompt_tokens=event.prompt_tokens,
        chunk_cap=event.chunk_cap,
        whole=event.whole,
        priority=event.priority,
        failover=event.failover,
        deadline_us=event.deadline_us,
    )


SMALLER: Final = "fallback-model"
"""The rule of a request that a smaller model serves: it stays one wherever the request goes."""


def _whatever_lane(state: RequestState, at_us: int) -> DegradedMark | None:
    """What stays less than was asked for on the GPU lane too: another model, a shorter answer."""
    rule = SMALLER if state.asked_model is not None else state.shorter
    if rule is None:
        return None
    return DegradedMark(at_us, state.version + 1, rule, rule, "gpu", state.served_model)


def _degraded_from_start(event: ev.Admitted, at_us: int) -> DegradedMark | None:
    """A smaller model, a shorter answer, a model only partly on the device: less than was asked for, and told."""
    decision = event.decision
    if event.instead is not None:
        return DegradedMark(at_us, 1, event.instead.rule, SMALLER, "gpu", event.served_model)
    if decision.action not in {"shrink", "offload"}:
        return None
    return DegradedMark(at_us, 1, decision.rule, decision.rule, "gpu", event.served_model)


def _released(at_us: int) -> dict[str, object]:
    return {"running": False, "runner": None, "waiting_since_us": at_us, "waits_for": None}


def _started(state: RequestState, event: ev.Event, at_us: int) -> dict[str, object]:
    assert isinstance(event, ev.Started)
    if state.running or event.lane != state.lane:
        raise IllegalEvent(state.state, f"Started on the {event.lane} lane beside another owner or lane")
    mark = state.degraded
    return {
        "running": True,
        "runner": event.runner,
        "device": event.device,
        "waiting_since_us": None,
        "not_before_us": None,
        "waits_for": None,
        "started_us": state.started_us or at_us,
        "degraded": mark.before if mark is not None and mark.waits else mark,
    }


def _progress(state: RequestState, event: ev.Event, _at_us: int) -> dict[str, object]:
    assert isinstance(event, ev.Checkpointed | ev.Completed)
    if event.units < state.units or event.visible_upto < state.visible_upto:
        raise IllegalEvent(state.state, f"{type(event).__name__} that takes back what was shown")
    changes: dict[str, object] = {"units": event.units, "visible_upto": event.visible_upto}
    if event.units > state.units:
        changes |= {"deaths": 0, "losses": 0}
    if isinstance(event, ev.Completed):
        changes["finish_reason"] = event.finish_reason
    return changes


def _fault(state: RequestState, event: ev.Event, _at_us: int) -> dict[str, object]:
    assert isinstance(event, ev.FaultSeen)
    return {
        "deaths": state.deaths + event.blames_input,
        "losses": state.losses + event.ended_worker,
        "fault_device": event.device,
    }


def _moved(
    state: RequestState, event: ev.Event, at_us: int, to_lane: Lane, rule: str, reason: str
) -> dict[str, object]:
    from_lane = event.from_lane if isinstance(event, ev.Rerouted) else state.lane
    mark = FailoverMark(state.version + 1, at_us, from_lane, to_lane, rule, reason)
    return _released(at_us) | {"lane": to_lane, "failovers": (*state.failovers, mark), "device": None}


def _rerouted(state: RequestState, event: ev.Event, at_us: int) -> dict[str, object]:
    assert isinstance(event, ev.Rerouted)
    rule = event.decision.rule
    degraded = DegradedMark(at_us, state.version + 1, event.reason, rule, "cpu", state.served_model)
    return _moved(state, event, at_us, "cpu", rule, event.reason) | {"degraded": degraded}


def _returned(state: RequestState, event: ev.Event, at_us: int) -> dict[str, object]:
    assert isinstance(event, ev.Returned)
    rule = event.decision.rule if event.decision else "returned"
    return _moved(state, event, at_us, "gpu", rule, event.reason) | {"degraded": _whatever_lane(state, at_us)}


def _failed(state: RequestState, event: ev.Event, _at_us: int) -> dict[str, object]:
    assert isinstance(event, ev.Failed)
    failure = FailureMark(state.version + 1, event.reason, event.decision.rule)
    return {"failure": failure, "deadline_us": None, "resumed_version": None}


def _resumed(state: RequestState, event: ev.Event, at_us: int) -> dict[str, object]:
    assert isinstance(event, ev.Resumed)
    changes: dict[str, object] = {
        "lane": event.lane,
        "failure": None,
        "deaths": 0,
        "losses": 0,
        "not_before_us": None,
        "settled_us": None,
        "waiting_since_us": at_us,
        "deadline_us": event.deadline_us,
        "resumed_version": state.version + 1,
    }
    if event.lane != state.lane:
        why = "gpu-out" if event.lane == "cpu" else "asked"
        mark = FailoverMark(state.version + 1, at_us, state.lane, event.lane, "resumed", why)
        changes |= {"failovers": (*state.failovers, mark), "device": None}
        if event.lane == "cpu":
            changes["degraded"] = DegradedMark(at_us, state.version + 1, why, "resumed", "cpu", state.served_model)
    if event.lane == "gpu":
        changes["degraded"] = _whatever_lane(state, at_us)
    if event.origin == "start":
        changes |= {"units": 0, "visible_upto": 0, "output_epoch": state.output_epoch + 1}
    return changes


def _ended(_state: RequestState, event: ev.Event, _at_us: int) -> dict[str, object]:
    assert isinstance(event, ev.Cancelled | ev.Expired)
    return {"ended_by": event.reason}


def _replanned(state: RequestState, event: ev.Event, at_us: int) -> dict[str, object]:
    assert isinstance(event, ev.Replanned)
    if event.decision is not None and isinstance(event.decision.facts, ReturnFacts):
        return {}
    changes: dict[str, object] = {"not_before_us": event.not_before_us, "waits_for": event.reason}
    if event.lane_out:
        changes["degraded"] = _in_place(state, event.reason, event.decision, at_us)
    return changes


def _requeued(state: RequestState, event: ev.Event, at_us: int) -> dict[str, object]:
    assert isinstance(event, ev.Requeued)
    changes = _released(at_us)
    if event.waits_for is not None:
        changes["waits_for"] = event.waits_for
        changes["degraded"] = _in_place(state, event.waits_for, event.decision, at_us)
    return changes


def _in_place(state: RequestState, reason: str, decision: Decision | None, at_us: int) -> DegradedMark:
    """It waits where it is. Since when, is told from the first reason on; what was less before comes back later."""
    mark = state.degraded
    waited = mark is not None and mark.waits
    return DegradedMark(
        since_us=mark.since_us if mark is not None and waited else at_us,
        version=state.version + 1,
        reason=reason,
        rule=decision.rule if decision is not None else reason,
        lane=state.lane or "gpu",
        model=state.served_model,
        waits=True,
        before=mark.before if mark is not None and waited else mark,
    )


_HANDLERS: Final[Mapping[str, Callable[[RequestState, ev.Event, int], dict[str, object]]]] = {
    "Replanned": _replanned,
    "Started": _started,
    "Checkpointed": _progress,
    "Completed": _progress,
    "FaultSeen": _fault,
    "Preempted": lambda s, _e, at: _released(at) | {"preemptions": s.preemptions + 1},
    "Requeued": _requeued,
    "Rerouted": _rerouted,
    "Returned": _returned,
    "Failed": _failed,
    "Resumed": _resumed,
    "CancelAsked": lambda _s, _e, _at: {"cancel_asked": True},
    "Cancelled": _ended,
    "Expired": _ended,
    "ContentErased": lambda _s, _e, _at: {"erased": True},
}

__all__ = [
    "ACTIVE",
    "AFTER_CANCEL",
    "CLAIMABLE_SQL",
    "SETTLED",
    "START",
    "TABLE",
    "TERMINAL",
    "allowed",
    "apply",
    "claimable",
]
