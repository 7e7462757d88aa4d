"""The CPU lane's memory in the store: what admission sees of it, and what happens near its end."""

from typing import Any

import msgspec
import pytest
from desk import MODEL, Desk, lane_row

from core import events as ev
from core.policy import Policy
from runners.memwatch import take_in, take_out
from store import hostlane, laneviews
from store.house import put_reading
from store.journal import Tx

GIB = 1 << 30
TIGHT = Policy(host_floor=0.1)


def show(desk: Desk, *, available: int, total: int = 10 * GIB) -> None:
    document = msgspec.json.encode({"total": total, "available": available}).decode()
    desk.run(lambda tx: put_reading(tx, "host", tx.now_us, document))


def lanes(desk: Desk, **loads: int) -> None:
    def unit(tx: Tx) -> None:
        for model, load in loads.items():
            laneviews.put_lane(tx, msgspec.structs.replace(lane_row("cpu"), model=model, load_bytes=load))

    desk.run(unit)


def watched(desk: Desk, **more: Any) -> None:
    memory = hostlane.LaneMemory(by="watch", why="", budget=0, limited_by="memory", **more)
    desk.run(lambda tx: hostlane.put(tx, memory))


def refused(desk: Desk) -> str:
    """Why the CPU lane does not take another request; "" where it does."""
    submitted = desk.submit()
    return next((one.reason for one in submitted.rejected if one.action == "reroute-cpu"), "")


def test_a_model_that_is_not_up_yet_counts_and_one_that_is_does_not_twice(bare: Desk) -> None:
    """10 GiB, a tenth kept back, 7 available: 6 may be used, and the model needs 6.5."""
    lanes(bare, null=6 * GIB + GIB // 2)
    show(bare, available=7 * GIB)
    assert f"{6 * GIB + GIB // 2} bytes of host memory are needed, and {6 * GIB} may be used" in refused(bare)
    # It came up, holds 6.4 of it (most of that mapped), and so leaves 7 - 6 - 1 = 0 of what the kernel calls available.
    watched(bare, held={MODEL: 6 * GIB + 400}, mapped=6 * GIB)
    assert f"{GIB // 2 - 400} bytes of host memory are needed, and 0 may be used" in refused(bare)
    watched(bare, held={MODEL: 6 * GIB + GIB // 2}, mapped=6 * GIB)
    assert refused(bare) == ""


def test_what_others_have_still_to_take_is_not_given_away(bare: Desk) -> None:
    lanes(bare, null=2 * GIB, other=3 * GIB)
    show(bare, available=5 * GIB)
    assert f"{2 * GIB} bytes of host memory are needed, and {GIB} may be used" in refused(bare)
    watched(bare, held={"other": 2 * GIB})
    assert refused(bare) == ""


def test_a_fixed_budget_keeps_a_tenth_of_itself_in_reserve(bare: Desk) -> None:
    bare.policy = Policy(cpu_budget_bytes=1000)
    lanes(bare, null=901)
    show(bare, available=5 * GIB)
    assert "901 bytes of host memory are needed, and 900 may be used" in refused(bare)
    lanes(bare, null=900)
    assert refused(bare) == ""


def test_a_model_that_can_never_fit_takes_nothing_from_the_others(bare: Desk) -> None:
    """A budget of 1,000, of which 900 may be promised: a model of 2,000 is not going to be started."""
    bare.policy = Policy(cpu_budget_bytes=1000)
    lanes(bare, null=300, other=2000)
    show(bare, available=5 * GIB)
    assert refused(bare) == ""
    lanes(bare, other=700)
    assert "300 bytes of host memory are needed, and 200 may be used" in refused(bare)


def test_near_its_end_the_lane_takes_nothing_up_and_what_waits_goes_where_it_can(desk: Desk) -> None:
    """Nothing moves back to a GPU lane whose worker is not up; there it waits, and is taken up afterwards."""
    waiting = desk.admit()
    desk.fault(waiting, "crashed", lane="gpu")
    assert desk.state(waiting).lane == "cpu"
    desk.run(lambda tx: take_out(tx, MODEL, desk.policy))
    assert desk.claim("cpu") is None
    assert desk.state(waiting).state == "rerouted-cpu"
    # The GPU lane does not notice.
    other = desk.admit()
    assert desk.take("gpu").state.id == other
    # Only who put it out for this reason puts it in.
    desk.run(lambda tx: take_in(tx, MODEL))
    assert desk.take("cpu").state.id == waiting
    desk.run(lambda tx: laneviews.set_serving(tx, "cpu", MODEL, "load-failed", actor="test"))
    desk.run(lambda tx: take_out(tx, MODEL, desk.policy))
    desk.run(lambda tx: take_in(tx, MODEL))
    assert desk.ask("SELECT out_reason FROM lanes WHERE lane='cpu'") == [("load-failed",)]


def test_a_budget_passed_once_is_nobodys_fault_and_twice_without_progress_is_the_requests_size(bare: Desk) -> None:
    bare.open_lanes(gpu=None)
    request_id = bare.admit()

    def passed() -> str:
        large = bare.run(lambda tx: hostlane.too_large(tx, "over-budget", request_id))
        return bare.fault(request_id, "over-budget", fault="size" if large else "host").state

    bare.take("cpu")
    assert (passed(), bare.state(request_id).deaths) == ("rerouted-cpu", 0)
    bare.checkpoint(bare.take("cpu"), 5)
    assert (passed(), bare.state(request_id).deaths) == ("checkpointed", 0)
    bare.take("cpu")
    assert passed() == "resumable-error"
    failed = bare.events(request_id)[-1].event
    assert isinstance(failed, ev.Failed)
    assert failed.decision.rule == "too-big-for-lane"
    assert not bare.run(lambda tx: hostlane.too_large(tx, "killed", request_id))


@pytest.mark.parametrize(("allowed", "granted"), [(True, 40), (False, None)])
def test_the_lanes_longest_answer(bare: Desk, allowed: bool, granted: int | None) -> None:
    """64 tokens are asked for; half of that is the least by policy."""
    bare.policy = Policy(cpu_max_tokens=40)
    bare.open_lanes(gpu=None)
    submitted = bare.submit(allow_shrink=allowed)
    if granted is None:
        assert (submitted.outcome, submitted.state.ended_by) == ("refused", "no-lane")
        assert submitted.state.retry_after_s is None, "trying again cannot help where there is no other lane"
    else:
        assert (submitted.state.max_units, submitted.state.asked_units) == (granted, 64)
        assert submitted.state.shorter == "shortened-for-cpu", "so it stays, should a GPU lane take it later"


def test_what_is_too_long_for_the_cpu_lane_is_not_moved_there(bare: Desk) -> None:
    """Accepted for 69 tokens on a GPU lane of 8,192: on a CPU lane of 64 it could only be cut."""
    bare.open_lanes()
    bare.run(lambda tx: laneviews.put_lane(tx, lane_row("cpu", context=64)))
    request_id = bare.admit()
    bare.take("gpu")
    state = bare.fault(request_id, "killed")
    assert (state.state, state.lane) == ("admitted", "gpu")
