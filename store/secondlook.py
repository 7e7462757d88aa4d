"""The second look: just before a start on the GPU lane, are the bytes really there?

1. A request with a promise starts, unless what others took meanwhile leaves less than nothing: then it is decided anew.
2. A request that was delayed gets its promise now, if the bytes are there.
3. Whatever changes is written with the whole new picture; what stays as it was is not written again.
4. Who waits for bytes of ours keeps its place, and nobody passes it; who waits for what others hold is passed.
"""

from typing import Literal

import msgspec

from core import admission, ledger, safepoint
from core import events as ev
from core.decision import AdmissionFacts, Decision, SafepointFacts
from core.policy import Policy
from core.state import RequestState
from store import hostlane, house, laneviews, promises, reservations
from store.journal import Tx

Outcome = Literal["go", "wait", "stuck", "moved"]


def facts_for(
    tx: Tx, *, model: str, prompt_tokens: int, max_units: int, failover: str, policy: Policy, request_id: str
) -> AdmissionFacts:
    """The picture that admission decides over, without what this request may hold already."""
    gpu = laneviews.lane_row(tx, "gpu", model)
    need = reservations.need_of(tx, "gpu", model)
    accounted = gpu is not None and need is not None
    cpu_need = reservations.need_of(tx, "cpu", model)
    tokens = prompt_tokens + max_units
    takes = gpu is not None and need is not None and need.bytes_for(tokens) > 0
    device = reservations.device_facts(tx, gpu.device, policy, without=request_id) if gpu and accounted else None
    host = hostlane.facts(tx, policy, model, cpu_need.load, cpu_need.token * tokens) if cpu_need else None
    if host is not None and device is not None and reservations.shared_with_host(tx, device.id):
        host = msgspec.structs.replace(host, promised=ledger.untaken(device))
    return AdmissionFacts(
        prompt_tokens=prompt_tokens,
        max_units=max_units,
        failover=failover,  # type: ignore[arg-type]  # callers hold one of the words
        draining=house.draining(tx),
        gpu=laneviews.lane_facts(tx, "gpu", model, policy.gpu_queue_limit, policy.breaker_probes),
        cpu=msgspec.structs.replace(
            laneviews.lane_facts(tx, "cpu", model, policy.cpu_queue_limit, policy.breaker_probes),
            longest=policy.cpu_max_tokens,
        ),
        device=device,
        need=need if accounted else None,
        host=host,
        spilling=reservations.spilling(tx, gpu.device) if gpu and accounted else False,
        evictable=reservations.evictable(tx, gpu.device, model) if gpu and need and need.load else 0,
        awaited=reservations.awaited(tx, gpu.device, request_id) if gpu and takes else 0,
    )


def keep_promise(tx: Tx, request_id: str, model: str, decision: Decision, tokens: int) -> None:
    """Promise what a decision to run on the GPU lane needs: the request's bytes, and its model's if it is not there."""
    assert isinstance(decision.facts, AdmissionFacts)
    device, need = decision.facts.device, decision.facts.need
    if device is None or need is None:
        return
    if need.token:
        reservations.promise(tx, device.id, request_id, model, need.token * tokens)
    if need.load:
        load = need.load if decision.part is None else decision.part.load
        reservations.promise(tx, device.id, reservations.process_of(model), model, load)
        layers = None if decision.part is None else decision.part.layers
        tx.execute("UPDATE lanes SET gpu_layers=? WHERE lane='gpu' AND model=?", (layers, model))


def look(tx: Tx, state: RequestState, policy: Policy, *, actor: str) -> Outcome:
    """Whether the request may start on the GPU lane now.

    `moved`: it went to the CPU lane instead. `wait`: bytes of ours will come back. `stuck`: others hold them.
    """
    need = reservations.need_of(tx, "gpu", state.model)
    tokens = state.prompt_tokens + state.max_units
    if need is None or need.bytes_for(tokens) == 0:
        return "go"
    gpu = laneviews.lane_row(tx, "gpu", state.model)
    assert gpu is not None
    if need.load == 0 and reservations.promised(tx, state.id) is not None:
        picture = reservations.device_facts(tx, gpu.device, policy)
        if picture is None or not ledger.overdrawn(picture):
            return "go"
    facts = facts_for(
        tx,
        model=state.model,
        prompt_tokens=state.prompt_tokens,
        max_units=state.max_units,
        failover=state.failover,
        policy=policy,
        request_id=state.id,
    )
    failover = state.failover if _may_move(tx, state) else "never"
    decision = admission.decide(
        msgspec.structs.replace(facts, second_look=True, draining=False, failover=failover, awaited=0)
    )
    match decision.action:
        case admission.RUN_GPU | admission.OFFLOAD:
            keep_promise(tx, state.id, state.model, decision, tokens)
            return "go"
        case admission.REROUTE:
            tx.append(state.id, ev.Rerouted("gpu", state.units, decision.rule, decision), actor=actor)
            return "moved"
        case _:
            _wait(tx, state, decision, actor=actor)
            return "wait" if decision.rule in {"fits-soon", "fits-after-eviction"} else "stuck"


def _may_move(tx: Tx, state: RequestState) -> bool:
    """Whether what was shown lets it go on at the CPU lane: asked of the rules that decide it after a fault."""
    if state.units == 0:
        return True
    cpu = laneviews.lane_row(tx, "cpu", state.model)
    alike = cpu is not None and cpu.contract == state.contract
    facts = SafepointFacts(
        fault="slow",
        fault_kind="no-room",
        lane="gpu",
        units=state.units,
        failover=state.failover,
        pair=laneviews.pair(tx, state.model) if alike else "none",
        cpu_serving=cpu is not None and cpu.serving,
        deaths=0,
        poison_limit=1,
    )
    return safepoint.decide(facts).action == safepoint.CONTINUE


def _wait(tx: Tx, state: RequestState, decision: Decision, *, actor: str) -> None:
    """Give the promise back and say why it waits, once for each reason."""
    promises.give_back(tx, state.id)
    if state.waits_for != decision.rule:
        tx.append(state.id, ev.Replanned(decision.rule, decision), actor=actor)


def stopped(tx: Tx, state: RequestState, policy: Policy, kind: str, *, actor: str) -> None:
    """What would work on it is not what it was promised: `model-changed`, or `engine-changed` after shown text."""
    assert state.lane is not None
    facts = SafepointFacts(
        fault="host",
        fault_kind=kind,
        lane=state.lane,
        units=state.units,
        failover=state.failover,
        pair="none",
        cpu_serving=True,
        deaths=state.deaths,
        poison_limit=policy.poison_limit,
    )
    tx.append(state.id, ev.Failed(kind, safepoint.decide(facts)), actor=actor)


def look_again(tx: Tx, model: str, policy: Policy, *, actor: str) -> None:
    """Decide anew about each request that waits on the GPU lane for a model that is not there."""
    need = reservations.need_of(tx, "gpu", model)
    if need is None or need.load == 0:
        return
    waiting = tx.execute(
        "SELECT id FROM requests WHERE lane='gpu' AND model=? AND running=0 AND cancel_asked=0 AND "
        "state IN ('admitted','checkpointed') ORDER BY turn_us, id",
        (model,),
    ).fetchall()
    for (request_id,) in waiting:
        state = tx.state(request_id)
        assert state is not None
        look(tx, state, policy, actor=actor)
