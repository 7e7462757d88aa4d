"""A mass reroute has a bound, and who had to wait in place, or only waits on the CPU lane, gets a place in turn."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from desk import MODEL, Desk, HandClock, lane_row

from core.policy import Policy
from core.replay import redecide
from store import breakers, commands, failover, laneviews, moves, rates, roster
from store.journal import Look, Tx

POLICY = Policy(cpu_queue_limit=3, return_after_s=1e-6)


@pytest.fixture
def full(timed: Desk) -> Desk:
    """Two lanes, by the clock that is set by hand; three may wait for the CPU lane."""
    timed.policy = POLICY
    return timed


def lose(desk: Desk) -> None:
    desk.run(lambda tx: breakers.device_lost(tx, "sim-0", desk.policy, reason="device-lost", actor="test"))


def find(desk: Desk) -> None:
    """The device answers again, a runner has the model, and the canaries are right."""
    desk.run(lambda tx: breakers.device_back(tx, "sim-0", "it answers again", actor="test"))
    runner(desk)
    desk.run(lambda tx: laneviews.set_serving(tx, "gpu", MODEL, None, actor="gpu-1"))
    desk.sing()


def runner(desk: Desk) -> None:
    def unit(tx: Tx) -> None:
        if tx.execute("SELECT 1 FROM runners WHERE id='gpu-1'").fetchone() is None:
            roster.enlist(tx, roster.Enlisted("gpu-1", "gpu", MODEL, "sim-0", "null/1", 1, 1))
        roster.ready(tx, "gpu-1")

    desk.run(unit)


def lanes(desk: Desk, requests: list[str]) -> list[str | None]:
    return [desk.state(one).lane for one in requests]


def asks(desk: Desk, question: Callable[..., Any]) -> Any:
    """The look, over a transaction that changes nothing."""
    return desk.run(lambda tx: question(Look(tx, tx.now_us), desk.policy))  # type: ignore[arg-type]


def to_cpu(desk: Desk) -> int:
    due = asks(desk, moves.to_cpu)
    moved = desk.run(lambda tx: moves.move_to_cpu(tx, desk.policy, actor="test"))
    assert due is (moved > 0), "the look and the unit agree"
    return moved


def to_gpu(desk: Desk) -> int:
    due = asks(desk, moves.to_gpu)
    moved = desk.run(lambda tx: moves.move_to_gpu(tx, desk.policy, actor="test"))
    assert due is (moved > 0), "the look and the unit agree"
    return moved


def test_a_mass_reroute_has_a_bound_and_goes_by_turns(full: Desk) -> None:
    """Six, of which two were begun; three places: the first three in turn have them, and nobody is lost."""
    requests = sorted(full.admit() for _ in range(6))
    for units in (5, 0):
        claim = full.take()
        if units:
            full.checkpoint(claim, units)
    lose(full)
    assert lanes(full, requests) == ["cpu"] * 3 + ["gpu"] * 3
    for request in requests[3:]:
        state = full.state(request)
        assert (state.state, state.waits_for) == ("admitted", "cpu-lane-full")
        assert state.degraded is not None
        assert (state.degraded.reason, state.degraded.rule, state.degraded.lane) == (*["cpu-lane-full"] * 2, "gpu")
        (last,) = full.events(request)[-1:]
        assert last.type == "Replanned"
        assert last.cause_seq == full.events("device-sim-0")[-1].seq
        assert all(again.same for again in redecide(full.events(request)))
    assert full.verify().ok


def test_who_was_begun_gives_up_its_lease_and_keeps_its_place(full: Desk) -> None:
    running = sorted(full.admit() for _ in range(5))
    for _ in running:
        claim = full.take()
    full.checkpoint(claim, 4)
    lose(full)
    assert lanes(full, running) == ["cpu"] * 3 + ["gpu"] * 2
    fresh, shown = sorted((full.state(one) for one in running[3:]), key=lambda state: state.units)
    assert [fresh.state, shown.state] == ["admitted", "checkpointed"]
    for state in (fresh, shown):
        assert full.types(state.id)[-2:] == ["FaultSeen", "Requeued"]
        assert (state.running, state.waits_for, state.degraded is not None) == (False, "cpu-lane-full", True)
    assert full.ask("SELECT count(*) FROM leases") == [(0,)]
    assert full.verify().ok


def test_a_worker_that_dies_beside_a_full_cpu_lane_goes_on_where_it_was(full: Desk) -> None:
    """The device is sound and gets a new worker; until then it waits there, and is told."""
    for _ in range(3):
        full.fault(full.admit())
    last = full.admit()
    full.checkpoint(full.take(), 4)
    state = full.fault(last)
    assert (state.lane, state.state, state.waits_for) == ("gpu", "checkpointed", "cpu-lane-full")
    again = full.take()
    assert (again.state.id, len(again.done), again.state.degraded) == (last, 4, None)


def test_room_is_filled_in_turn_and_no_further(full: Desk) -> None:
    requests = sorted(full.admit() for _ in range(6))
    lose(full)
    assert to_cpu(full) == 0
    full.take("cpu")
    assert to_cpu(full) == 1
    assert lanes(full, requests) == ["cpu"] * 4 + ["gpu"] * 2
    moved = full.events(requests[3])[-1]
    assert moved.type == "Rerouted"
    state = full.state(requests[3])
    assert state.degraded is not None
    assert (state.degraded.lane, state.degraded.reason, state.waits_for) == ("cpu", "device-lost", None)
    assert to_cpu(full) == 0, "asked again, it changes nothing"
    full.take("cpu")
    full.take("cpu")
    assert to_cpu(full) == 2
    assert full.verify().ok


def test_who_may_not_move_is_passed_and_nobody_ends_for_it(full: Desk) -> None:
    """The model cannot be loaded over there, on a sound device."""
    only, after = full.admit(failover="gpu-only"), full.admit()
    for _ in range(3):
        full.fault(full.admit())
    full.run(lambda tx: failover.lane_lost(tx, MODEL, "sim-0", "load-failed", full.policy, actor="test"))
    assert [full.state(one).waits_for for one in (only, after)] == ["load-failed", "cpu-lane-full"]
    assert full.state(only).degraded is not None, "its lane is out, which is less than it asked for"
    full.take("cpu")
    assert to_cpu(full) == 1
    assert lanes(full, [only, after]) == ["gpu", "cpu"]
    assert full.types(only) == ["Admitted", "Replanned"]


def test_nobody_moves_while_the_device_is_being_tried(full: Desk) -> None:
    requests = sorted(full.admit() for _ in range(5))
    lose(full)
    full.take("cpu")
    full.run(lambda tx: breakers.device_back(tx, "sim-0", "it answers again", actor="test"))
    assert to_cpu(full) == 0
    assert lanes(full, requests) == ["cpu"] * 3 + ["gpu"] * 2
    full.sing((9, 9, 9))
    assert full.state(requests[-1]).lane == "gpu"


def test_who_waited_in_place_starts_there_and_the_others_come_back_in_turn(full: Desk, clock: HandClock) -> None:
    requests = sorted(full.admit() for _ in range(5))
    lose(full)
    find(full)
    clock.go(1)
    assert to_gpu(full) == 0, "two wait there already, who kept their place"
    for expected in requests[3:]:
        claim = full.take()
        assert (claim.state.id, claim.state.degraded) == (expected, None)
    assert to_gpu(full) == 1
    assert lanes(full, requests[:3]) == ["gpu", "cpu", "cpu"]
    back = full.events(requests[0])[-1]
    assert (back.type, back.event.decision.rule) == ("Returned", "gpu-is-back")  # type: ignore[attr-defined]
    assert to_gpu(full) == 0, "one waits there now"
    full.complete(claim)
    assert full.take().state.id == requests[0]
    assert to_gpu(full) == 1
    assert full.state(requests[1]).lane == "gpu"
    assert all(again.same for one in requests for again in redecide(full.events(one)))
    assert full.verify().ok


def test_what_is_computed_on_the_cpu_lane_is_not_taken_from_its_runner(full: Desk, clock: HandClock) -> None:
    request = full.admit()
    lose(full)
    claim = full.take("cpu")
    find(full)
    clock.go(60)
    assert to_gpu(full) == 0
    full.checkpoint(claim, 3)
    assert full.state(request).running


def test_shown_text_goes_back_only_where_the_lanes_are_alike(full: Desk, clock: HandClock) -> None:
    request = full.admit()
    full.checkpoint(full.take(), 4)
    lose(full)
    row = msgspec.structs.replace(lane_row("cpu"), engine="other/1")
    full.run(lambda tx: laneviews.put_lane(tx, row))
    find(full)
    clock.go(60)
    assert to_gpu(full) == 0
    assert full.state(request).lane == "cpu"


def test_a_prefix_that_costs_far_more_over_there_is_not_computed_again(full: Desk, clock: HandClock) -> None:
    """5 tokens of a prompt and 3 of the answer at 1 a second are 8 s there, and none to speak of here; 60 units at 10 a
    second are 6 s on either lane. 8 s would be lost, and 5 s may be."""
    request = full.admit()
    full.checkpoint(full.take(), 4)
    lose(full)

    def measured(tx: Tx) -> None:
        rates.see(tx, "cpu", MODEL, rates.Rates(1e6, 10.0))
        rates.see(tx, "gpu", MODEL, rates.Rates(1.0, 10.0))

    full.run(measured)
    find(full)
    clock.go(11)
    assert to_gpu(full) == 0
    assert tell(full) == [request]
    said = full.events(request)[-1].event
    assert said.reason == "not-worth-it"  # type: ignore[attr-defined]
    full.policy = msgspec.structs.replace(POLICY, return_gain_s=8.1)
    assert to_gpu(full) == 1


def test_a_lane_that_comes_and_goes_does_not_toss_work_about(full: Desk, clock: HandClock) -> None:
    """For 600 s the device goes and comes back every 20 s. With 10 s, doubled with every move, it can go back after 10,
    40, 160, 640 s on the CPU lane: three times at most."""
    full.policy = msgspec.structs.replace(POLICY, return_after_s=10.0)
    request = full.admit()
    for _ in range(30):
        lose(full)
        to_cpu(full)
        clock.go(10)
        find(full)
        to_gpu(full)
        clock.go(10)
        to_gpu(full)
    back = full.types(request).count("Returned")
    assert 1 <= back <= 3
    assert full.types(request).count("Rerouted") <= back + 1
    assert full.verify().ok


def tell(desk: Desk) -> list[str]:
    """Tell all that are due; who was told."""
    due = asks(desk, moves.untold)
    for request in due:
        assert desk.run(lambda tx, one=request: moves.tell(tx, one, desk.policy, actor="test"))
    return list(due)


def said(desk: Desk, request: str) -> list[str]:
    return [one.event.reason for one in desk.events(request) if one.type == "Replanned"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("running", [False, True])
def test_it_is_told_why_it_is_still_on_the_cpu_lane(full: Desk, clock: HandClock, running: bool) -> None:
    full.policy = msgspec.structs.replace(POLICY, return_to_gpu=False)
    request = full.admit()
    lose(full)
    if running:
        full.take("cpu")
    clock.go(30)
    assert tell(full) == [], "the GPU lane is out, and that is told elsewhere"
    find(full)
    before = full.state(request)
    assert tell(full) == [request]
    assert tell(full) == [], "once"
    clock.go(29.9)
    assert tell(full) == []
    clock.go(0.2)
    assert tell(full) == [request], "a full minute"
    clock.go(60)
    assert tell(full) == [request], "and the next"
    assert said(full, request) == ["return-off"] * 3
    after = full.state(request)
    assert (after.running, after.waits_for, after.degraded) == (before.running, None, before.degraded)
    assert all(again.same for again in redecide(full.events(request)))
    assert full.verify().ok


def test_another_reason_is_told_but_not_at_once(full: Desk, clock: HandClock) -> None:
    request = full.admit()
    lose(full)
    find(full)
    full.policy = msgspec.structs.replace(POLICY, return_after_s=500.0)
    clock.go(10)
    assert tell(full) == [request]
    full.policy = msgspec.structs.replace(POLICY, return_to_gpu=False)
    clock.go(9)
    assert tell(full) == []
    clock.go(1)
    assert tell(full) == [request]
    assert said(full, request) == ["too-soon", "return-off"]


def test_nothing_is_told_once_a_cancel_was_asked(full: Desk, clock: HandClock) -> None:
    full.policy = msgspec.structs.replace(POLICY, return_to_gpu=False)
    request = full.admit()
    lose(full)
    full.take("cpu")
    find(full)
    clock.go(61)
    full.run(lambda tx: commands.cancel(tx, request, actor="test"))
    assert tell(full) == []
    assert not full.run(lambda tx: moves.tell(tx, request, full.policy, actor="test"))
    assert full.types(request)[-1] == "CancelAsked"
