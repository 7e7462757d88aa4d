"""Going back to the GPU lane, over the store: the facts are what is there, and the move is decided where it is made."""

import msgspec
import pytest
from desk import Desk

from core.decision import ReturnFacts
from core.errors import Fenced
from core.policy import Policy
from core.state import RequestState
from store import comeback, failover, laneviews, rates, roster
from store.journal import Tx

EAGER = Policy(return_after_s=1e-6, return_gain_s=-1.0)


def runner_is_up(desk: Desk) -> None:
    def unit(tx: Tx) -> None:
        roster.enlist(tx, roster.Enlisted("gpu-1", "gpu", "null", "sim-0", "null/1", 1, 1))
        roster.ready(tx, "gpu-1")

    desk.run(unit)


def moved(desk: Desk, units: int = 4) -> str:
    """A request that showed some text on the GPU lane, and now waits for the CPU lane."""
    request_id = desk.admit()
    claim = desk.take()
    if units:
        desk.checkpoint(claim, units)
    desk.fault(request_id)
    assert desk.state(request_id).lane == "cpu"
    return request_id


@pytest.mark.parametrize("units", [0, 4])
def test_it_goes_back_under_its_fence_and_goes_on_from_its_checkpoint(desk: Desk, units: int) -> None:
    runner_is_up(desk)
    request_id = moved(desk, units)
    claim = desk.take("cpu")
    assert desk.run(lambda tx: comeback.go_back(tx, claim.fence, EAGER, None))
    state = desk.state(request_id)
    assert (state.lane, state.state, state.running) == ("gpu", "checkpointed" if units else "admitted", False)
    assert state.degraded is None
    with pytest.raises(Fenced):
        desk.checkpoint(claim, 8)
    again = desk.take("gpu")
    assert (again.fence.request_id, len(again.done)) == (request_id, units)
    assert desk.verify().ok


def test_it_stays_while_no_runner_has_the_model(desk: Desk) -> None:
    request_id = moved(desk)
    claim = desk.take("cpu")
    assert not desk.run(lambda tx: comeback.go_back(tx, claim.fence, EAGER, None))
    decision = desk.run(lambda tx: comeback.decide(tx, desk_state(tx, request_id), EAGER, None))
    assert decision.rule == "gpu-still-out"
    desk.checkpoint(claim, 8)  # still its owner


def desk_state(tx: Tx, request_id: str) -> RequestState:
    state = tx.state(request_id)
    assert state is not None
    return state


def test_what_is_measured_decides(desk: Desk) -> None:
    """60 units left at 10 a second are 6 s; at 30 a second 2 s, and 1 s to get there: 3 s are saved."""
    runner_is_up(desk)
    request_id = moved(desk)

    def measured(tx: Tx) -> None:
        rates.see(tx, "cpu", "null", rates.Rates(None, 10.0))
        rates.see(tx, "gpu", "null", rates.Rates(None, 30.0))

    desk.run(measured)
    for least, rule in ((2.9, "gpu-is-back"), (3.1, "not-worth-it")):
        policy = Policy(return_after_s=1e-6, return_gain_s=least)
        assert desk.run(lambda tx, p=policy: comeback.decide(tx, desk_state(tx, request_id), p, 1.0)).rule == rule


def test_a_lane_that_was_seen_to_be_unable_is_not_tried_again(desk: Desk) -> None:
    runner_is_up(desk)
    request_id = desk.admit()
    desk.checkpoint(desk.take(), 4)
    desk.fault(request_id, "cannot-continue", fault="host")
    assert desk.state(request_id).lane == "cpu"
    decision = desk.run(lambda tx: comeback.decide(tx, desk_state(tx, request_id), EAGER, None))
    assert decision.rule == "gpu-cannot-continue"


def test_work_that_waits_for_a_cpu_lane_that_is_out_goes_where_it_can(desk: Desk) -> None:
    runner_is_up(desk)
    shown, fresh = moved(desk), moved(desk, 0)
    desk.run(lambda tx: failover.cpu_lane_out(tx, "null", "load-failed", Policy(), actor="supervisor"))
    assert {desk.state(one).lane for one in (shown, fresh)} == {"gpu"}
    assert desk.types(shown)[-1] == "Returned"
    assert desk.events(shown)[-1].event.decision.rule == "gpu-is-back"  # type: ignore[attr-defined]


def test_it_waits_on_where_the_lanes_are_not_alike(desk: Desk) -> None:
    runner_is_up(desk)
    request_id = moved(desk)

    def other_engine(tx: Tx) -> None:
        row = laneviews.lane_row(tx, "cpu", "null")
        assert row is not None
        laneviews.put_lane(tx, msgspec.structs.replace(row, engine="other/1"))

    desk.run(other_engine)
    desk.run(lambda tx: failover.cpu_lane_out(tx, "null", "load-failed", Policy(), actor="supervisor"))
    assert desk.state(request_id).lane == "cpu"


def test_of_a_lane_that_has_completed_nothing_its_own_chunks_tell_how_fast_it_is(desk: Desk) -> None:
    """The GPU lane writes 100 tokens a second; 4 tokens in half a second on the CPU lane are 8."""
    runner_is_up(desk)
    desk.run(lambda tx: rates.see(tx, "gpu", "null", rates.Rates(1000.0, 100.0)))
    request_id = moved(desk)
    claim = desk.take("cpu")
    desk.checkpoint(claim, 8)
    assert facts(desk, request_id).cpu_tps is None
    desk.checkpoint(claim, 12, first=8, took_us=500_000)
    assert facts(desk, request_id).cpu_tps == 8.0


def facts(desk: Desk, request_id: str) -> ReturnFacts:
    found = desk.run(lambda tx: comeback.decide(tx, desk_state(tx, request_id), EAGER, None)).facts
    assert isinstance(found, ReturnFacts)
    return found
