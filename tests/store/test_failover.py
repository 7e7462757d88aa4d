"""From a fault to the next event, in one transaction, over a real store."""

from typing import Any

import pytest
from desk import MODEL, Desk, lane_row

from core import events as ev
from core.replay import redecide
from store import breakers, claims, commands, failover, laneviews
from store.claims import Claim


def working(desk: Desk, units: int = 5, **changes: Any) -> tuple[str, Claim]:
    request = desk.admit(**changes)
    claim = desk.take()
    if units:
        desk.checkpoint(claim, units)
    return request, claim


def lease_of(desk: Desk, request: str) -> list[Any]:
    return desk.ask("SELECT runner FROM leases WHERE request_id=?", request)


def outcome(desk: Desk, request: str) -> tuple[str, str, str]:
    """Its state, the last event, and the rule that event's decision names."""
    last = desk.events(request)[-1]
    decision = getattr(last.event, "decision", None)
    return desk.state(request).state, last.type, decision.rule if decision else ""


# fmt: off
CASES = [
    # failover,   units, kind,     fault,    state,             event,      rule
    ("auto",      5, "killed",     "worker", "rerouted-cpu",    "Rerouted", "continue-identical"),
    ("auto",      0, "killed",     "worker", "rerouted-cpu",    "Rerouted", "restart-nothing-shown"),
    ("identical", 5, "killed",     "worker", "rerouted-cpu",    "Rerouted", "continue-identical"),
    ("boundary",  0, "crashed",    "worker", "rerouted-cpu",    "Rerouted", "restart-nothing-shown"),
    ("boundary",  5, "crashed",    "worker", "resumable-error", "Failed",   "boundary-passed"),
    ("never",     5, "crashed",    "worker", "resumable-error", "Failed",   "failover-never"),
    ("never",     0, "killed",     "worker", "admitted",        "Requeued", "stay-on-gpu"),
    ("gpu-only",  5, "killed",     "worker", "checkpointed",    "Requeued", "stay-on-gpu"),
    ("gpu-only",  5, "device-lost","device", "resumable-error", "Failed",   "gpu-only-device-lost"),
    ("auto",      5, "service-stopped", "host", "checkpointed", "Requeued", "service-restarted"),
    ("auto",      0, "service-stopped", "host", "admitted",     "Requeued", "service-restarted"),
]
# fmt: on


@pytest.mark.parametrize(("choice", "units", "kind", "fault", "state", "event", "rule"), CASES)
def test_each_action(
    desk: Desk, choice: str, units: int, kind: str, fault: str, state: str, event: str, rule: str
) -> None:
    request, _ = working(desk, units, failover=choice)
    desk.fault(request, kind, fault=fault)
    assert outcome(desk, request) == (state, event, rule)
    assert lease_of(desk, request) == []
    records = desk.events(request)
    assert records[-2].type == "FaultSeen"
    assert records[-1].cause_seq == records[-2].seq
    assert all(again.same for again in redecide(records)), "the recorded facts give the recorded decision"
    assert desk.state(request).units == units
    assert desk.verify().ok


def test_a_cancel_that_was_asked_wins_over_the_fault(desk: Desk) -> None:
    request, _ = working(desk)
    asked = desk.run(lambda tx: commands.cancel(tx, request, actor="test"))
    assert (asked.state, asked.cancel_asked) == ("checkpointed", True)
    assert desk.fault(request).state == "cancelled"
    assert desk.types(request)[-3:] == ["CancelAsked", "FaultSeen", "Cancelled"]


def test_the_poison_limit(desk: Desk) -> None:
    request, _ = working(desk, units=0)
    assert desk.fault(request, "crashed").state == "rerouted-cpu"
    desk.take("cpu")
    assert desk.fault(request, "crashed").state == "resumable-error"
    assert outcome(desk, request)[2] == "poison-limit"


def test_killed_again_and_again_without_a_word_it_stops_honestly(desk: Desk) -> None:
    """A plain kill is nobody's fault; eight in a row, on whatever lane, are enough all the same."""
    request = desk.admit()
    for number in range(8):
        lane = "gpu" if number == 0 else "cpu"
        claim = desk.take(lane)
        assert (claim.state.losses, claim.state.suspect) == (number, number > 1)
        fault = ev.FaultSeen("worker", "killed", lane, f"{lane}-1", "sim-0", ended_worker=True)
        desk.run(lambda tx, fault=fault: failover.after_fault(tx, request, fault, desk.policy, actor="test"))
    assert outcome(desk, request) == ("resumable-error", "Failed", "no-progress")
    assert desk.state(request).deaths == 0
    assert desk.verify().ok


def test_a_word_between_begins_the_count_anew(desk: Desk) -> None:
    request = desk.admit()
    fault = ev.FaultSeen("worker", "killed", "gpu", "gpu-1", "sim-0", ended_worker=True)
    desk.take()
    desk.run(lambda tx: failover.after_fault(tx, request, fault, desk.policy, actor="test"))
    assert desk.state(request).losses == 1
    desk.checkpoint(desk.take("cpu"), 3)
    assert desk.state(request).losses == 0


def test_progress_between_two_deaths_is_no_poison(desk: Desk) -> None:
    request, _ = working(desk, units=0)
    desk.fault(request, "crashed")
    desk.checkpoint(desk.take("cpu"), 2)
    assert desk.fault(request, "crashed").state == "checkpointed"


def test_plain_kills_are_never_the_inputs_doing(desk: Desk) -> None:
    request, _ = working(desk, units=0)
    for _ in range(4):
        desk.fault(request, "killed")
        desk.take("cpu")
    assert desk.state(request).deaths == 0


def test_a_size_fault_on_the_last_lane_stops_honestly(desk: Desk) -> None:
    request, _ = working(desk, units=0)
    assert desk.fault(request, "allocation-failed", fault="size").state == "rerouted-cpu"
    desk.take("cpu")
    assert desk.fault(request, "allocation-failed", fault="size").state == "resumable-error"
    assert outcome(desk, request)[2] == "too-big-for-lane"


def test_a_fault_of_a_request_that_has_settled_changes_nothing(desk: Desk) -> None:
    request, claim = working(desk)
    desk.complete(claim, 6, first=5)
    before = desk.types(request)
    desk.fault(request, lane="gpu")
    assert desk.types(request) == before


def test_a_fault_of_a_request_that_only_waits(desk: Desk) -> None:
    """Such as at a start without the accelerator: who may not move stays where it is, and nothing is illegal."""
    desk.run(lambda tx: laneviews.set_serving(tx, "cpu", MODEL, "load-failed", actor="test"))
    request = desk.admit()
    state = desk.fault(request, "no-device", fault="device", lane="gpu")
    assert (state.state, desk.types(request)) == ("admitted", ["Admitted", "FaultSeen"])
    assert desk.take().state.id == request


def test_a_lane_with_another_contract_is_not_alike(desk: Desk) -> None:
    """The model was replaced since the request was admitted."""
    import msgspec

    request, _ = working(desk)
    for lane in ("gpu", "cpu"):
        row = msgspec.structs.replace(lane_row(lane), contract="of-another-model")  # type: ignore[arg-type]
        desk.run(lambda tx, row=row: laneviews.put_lane(tx, row))
    desk.fault(request)
    assert outcome(desk, request) == ("checkpointed", "Requeued", "pair-none")


def test_a_real_accelerator_has_no_proof_yet(bare: Desk) -> None:
    bare.open_lanes(simulated=False)
    request, _ = working(bare)
    bare.fault(request)
    assert outcome(bare, request) == ("checkpointed", "Requeued", "pair-none")


def test_a_runner_that_held_several(desk: Desk) -> None:
    held = [desk.admit() for _ in range(3)]
    for _ in held:
        desk.take(runner="gpu-1")
    other = desk.admit()
    desk.take(runner="gpu-2")
    fault = ev.FaultSeen("worker", "killed", "gpu", "gpu-1", "sim-0")
    moved = desk.run(lambda tx: failover.runner_lost(tx, "gpu-1", desk.policy, fault, actor="test"))
    assert sorted(moved) == sorted(held)
    assert {desk.state(request).state for request in held} == {"rerouted-cpu"}
    assert desk.state(other).state == "running-gpu"
    assert lease_of(desk, other) == [("gpu-2",)]


def lose(desk: Desk) -> bool:
    return desk.run(lambda tx: breakers.device_lost(tx, "sim-0", desk.policy, reason="device-lost", actor="test"))


def test_a_lost_device_moves_all_that_was_on_it(desk: Desk) -> None:
    running, claim = working(desk, 5)
    started, _ = working(desk, 0)
    on_cpu = desk.admit()
    desk.take()
    desk.fault(on_cpu)
    waiting = [desk.admit() for _ in range(3)]
    never = desk.admit(failover="never")
    gpu_only = desk.admit(failover="gpu-only")
    before = desk.types(on_cpu)
    assert lose(desk)
    assert desk.types(on_cpu) == before, "what is on the CPU lane is not touched"
    for request in (running, started, *waiting):
        assert outcome(desk, request)[:2] == ("rerouted-cpu", "Rerouted")
        lost = desk.events(request)[-2]
        assert lost.cause_seq == desk.events("device-sim-0")[-1].seq
    assert outcome(desk, never) == ("resumable-error", "Failed", "failover-never")
    assert outcome(desk, gpu_only) == ("resumable-error", "Failed", "gpu-only-device-lost")
    assert desk.ask("SELECT count(*) FROM leases") == [(0,)]
    assert desk.ask("SELECT state, epoch FROM devices") == [("lost", 2)]
    assert desk.ask("SELECT serving, out_reason FROM lanes WHERE lane='gpu'") == [(0, "device-lost")]
    head = desk.ask("SELECT seq FROM head")
    assert not lose(desk), "that is known already"
    assert desk.ask("SELECT seq FROM head") == head
    with pytest.raises(Exception, match="no longer the owner"):
        desk.checkpoint(claim, 7, first=5)
    assert desk.verify().ok


def test_without_a_cpu_lane_what_can_wait_waits(bare: Desk) -> None:
    bare.open_lanes(cpu=None)
    shown, _ = working(bare, 5)
    started, _ = working(bare, 0)
    waiting = bare.admit()
    lose(bare)
    assert outcome(bare, shown) == ("resumable-error", "Failed", "no-cpu-lane")
    assert outcome(bare, started) == ("admitted", "Requeued", "no-cpu-lane")
    assert bare.types(waiting) == ["Admitted", "Replanned"]
    assert bare.state(waiting).waits_for == "device-lost"
    assert bare.claim() is None
    bare.run(lambda tx: breakers.device_back(tx, "sim-0", "it answers again", actor="test"))
    assert bare.claim() is None, "it is tried with canaries first"
    bare.sing()
    assert bare.take().state.id == started


def test_a_lane_that_cannot_load_sends_its_queue_on(desk: Desk) -> None:
    waiting = desk.admit()
    only = desk.admit(failover="gpu-only")
    desk.run(lambda tx: failover.lane_lost(tx, MODEL, "sim-0", "load-failed", desk.policy, actor="test"))
    assert desk.state(waiting).state == "rerouted-cpu"
    assert desk.types(only) == ["Admitted", "Replanned"], "a sound device: it waits where it is, and for what is told"
    assert desk.state(only).waits_for == "load-failed"
    desk.run(lambda tx: failover.lane_lost(tx, MODEL, "sim-0", "load-failed", desk.policy, actor="test"))
    assert desk.types(only) == ["Admitted", "Replanned"], "once"
    assert desk.ask("SELECT serving, out_reason FROM lanes WHERE lane='gpu'") == [(0, "load-failed")]
    desk.run(lambda tx: laneviews.set_serving(tx, "gpu", MODEL, None, actor="test"))
    assert desk.types("lane-gpu") == ["LaneOut", "LaneIn"]
    desk.run(lambda tx: laneviews.set_serving(tx, "gpu", MODEL, None, actor="test"))
    assert desk.types("lane-gpu") == ["LaneOut", "LaneIn"], "no news, no event"


def test_a_failed_decision_undoes_the_evidence_too(desk: Desk) -> None:
    """Fault, decision and consequence are one unit."""
    request, claim = working(desk)

    def unit(tx: Any) -> None:
        failover.after_fault(
            tx, request, ev.FaultSeen("worker", "killed", "gpu", "r", "sim-0"), desk.policy, actor="test"
        )
        raise KeyError

    with pytest.raises(KeyError):
        desk.run(unit)
    assert desk.types(request) == ["Admitted", "Started", "Checkpointed"]
    desk.run(lambda tx: claims.check(tx, claim.fence))
