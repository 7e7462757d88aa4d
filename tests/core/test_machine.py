"""The transition table, pair by pair, as the design states it: typed in here, not read from the code."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_cases import ADMITTED, MOVE, sample, state_in

from core import events as ev
from core.errors import IllegalEvent
from core.events import Recorded
from core.machine import allowed, apply, claimable
from core.replay import fold
from core.state import RequestState
from core.words import ALL_STATES

ADM, RUN, CHK, CPU = "admitted", "running-gpu", "checkpointed", "rerouted-cpu"
DONE, ERR, CAN, REF = "completed", "resumable-error", "cancelled", "refused"

# fmt: off
EXPECTED: dict[str, dict[str, str]] = {
    "Replanned":         {ADM: ADM, CPU: CPU, CHK: CHK},
    "Started":           {ADM: RUN, CPU: CPU, CHK: CHK},
    "Checkpointed":      {RUN: CHK, CPU: CHK, CHK: CHK},
    "Preempted":         {RUN: ADM, CPU: CPU, CHK: CHK},
    "FaultSeen":         {ADM: ADM, RUN: RUN, CHK: CHK, CPU: CPU},
    "Requeued":          {RUN: ADM, CPU: CPU, CHK: CHK},
    "Rerouted":          {ADM: CPU, RUN: CPU, CHK: CPU},
    "Returned":          {CPU: ADM, CHK: CHK},
    "Completed":         {RUN: DONE, CPU: DONE, CHK: DONE},
    "Failed":            {ADM: ERR, RUN: ERR, CHK: ERR, CPU: ERR},
    "Resumed":           {ERR: ADM},
    "CancelAsked":       {ADM: ADM, RUN: RUN, CHK: CHK, CPU: CPU},
    "Cancelled":         {ADM: CAN, RUN: CAN, CHK: CAN, CPU: CAN, ERR: CAN},
    "Expired":           {ADM: CAN, RUN: CAN, CHK: CAN, CPU: CAN, ERR: CAN},
    "LateWriteRejected": {ADM: ADM, RUN: RUN, CHK: CHK, CPU: CPU, DONE: DONE, ERR: ERR, CAN: CAN, REF: REF},
    "EffectDelivered":   {ADM: ADM, RUN: RUN, CHK: CHK, CPU: CPU, DONE: DONE, ERR: ERR, CAN: CAN, REF: REF},
    "ContentErased":     {DONE: DONE, ERR: ERR, CAN: CAN, REF: REF},
    "SnapshotSaved":     {RUN: RUN, CPU: CPU, CHK: CHK},
    "SnapshotRejected":  {RUN: RUN, CPU: CPU, CHK: CHK},
    "PrefixReady":       {RUN: RUN, CPU: CPU, CHK: CHK},
    "Admitted":          {},
    "Refused":           {},
}
# fmt: on
NAMES = [cls.__name__ for cls in ev.REQUEST_EVENTS]
AFTER_CANCEL = {"FaultSeen", "Checkpointed", "Completed", "Cancelled", "LateWriteRejected", "EffectDelivered"}


def after(state: RequestState | None, event: ev.Event, **changes: Any) -> RequestState:
    return apply(state, event, stream="q1", at_us=9, **changes)


def test_the_table_here_speaks_of_every_event() -> None:
    assert sorted(EXPECTED) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("state", ALL_STATES)
def test_every_pair(state: str, name: str) -> None:
    before = state_in(state)
    event = sample(name, lane=before.lane or "gpu")
    target = EXPECTED[name].get(state)
    assert allowed(before, name) is (target is not None)
    if target is None:
        frozen = msgspec.json.encode(before)
        with pytest.raises(IllegalEvent) as told:
            after(before, event)
        assert (told.value.state, told.value.event) == (state, name)
        assert msgspec.json.encode(before) == frozen
    else:
        reached = after(before, event)
        assert reached.state == target
        assert reached.version == before.version + 1
        assert reached.updated_us == 9


@pytest.mark.parametrize("name", NAMES)
def test_only_admission_and_refusal_begin(name: str) -> None:
    if name in {"Admitted", "Refused"}:
        began = after(None, sample(name))
        assert (began.state, began.version, began.id) == ({"Admitted": ADM, "Refused": REF}[name], 1, "q1")
    else:
        with pytest.raises(IllegalEvent):
            after(None, sample(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("state", [ADM, RUN, CHK, CPU])
def test_after_a_cancel_was_asked(state: str, name: str) -> None:
    before = state_in(state, cancel_asked=True)
    assert allowed(before, name) is (name in AFTER_CANCEL and state in EXPECTED[name])


@pytest.mark.parametrize(
    ("origin", "lane", "units", "target"),
    [
        ("checkpoint", "gpu", 0, ADM),
        ("checkpoint", "cpu", 0, CPU),
        ("checkpoint", "gpu", 5, CHK),
        ("checkpoint", "cpu", 5, CPU),
        ("start", "gpu", 5, ADM),
        ("start", "cpu", 5, CPU),
    ],
)
def test_resuming(origin: str, lane: str, units: int, target: str) -> None:
    before = state_in(ERR, units=units, visible_upto=units, output_epoch=2, deaths=2)
    resumed = after(before, ev.Resumed(origin, lane, 77))  # type: ignore[arg-type]
    assert (resumed.state, resumed.lane, resumed.deadline_us, resumed.deaths) == (target, lane, 77, 0)
    kept = units if origin == "checkpoint" else 0
    assert (resumed.units, resumed.visible_upto) == (kept, kept)
    assert resumed.output_epoch == (2 if origin == "checkpoint" else 3)
    assert claimable(resumed, lane, 9)  # type: ignore[arg-type]


def test_resuming_on_another_lane_is_a_move_that_is_told() -> None:
    resumed = after(state_in(ERR, lane="gpu"), ev.Resumed("checkpoint", "cpu"))
    assert [(mark.from_lane, mark.to_lane) for mark in resumed.failovers] == [("gpu", "cpu")]
    assert resumed.degraded is not None
    back = after(state_in(ERR, lane="cpu", degraded=resumed.degraded), ev.Resumed("checkpoint", "gpu"))
    assert [(mark.from_lane, mark.to_lane) for mark in back.failovers] == [("cpu", "gpu")]
    assert back.degraded is None


def test_resuming_on_the_same_lane_moves_nothing() -> None:
    assert after(state_in(ERR, lane="cpu"), ev.Resumed("start", "cpu")).failovers == ()


@pytest.mark.parametrize(("units", "target"), [(0, ADM), (3, CHK)])
@pytest.mark.parametrize("state", [CPU, CHK])
def test_returning_to_the_gpu(state: str, units: int, target: str) -> None:
    before = state_in(state, lane="cpu", units=units, visible_upto=units)
    returned = after(before, ev.Returned("asked", units))
    assert (returned.state, returned.lane, returned.degraded) == (target, "gpu", None)


@pytest.mark.parametrize("event", [ev.Checkpointed(3, 4, "d"), ev.Completed(3, 4, "stop", "d")])
def test_units_are_never_taken_back(event: ev.Event) -> None:
    with pytest.raises(IllegalEvent):
        after(state_in(CHK), event)


@pytest.mark.parametrize("event", [ev.Checkpointed(4, 3, "d"), ev.Completed(9, 3, "stop", "d")])
def test_shown_text_is_never_taken_back(event: ev.Event) -> None:
    with pytest.raises(IllegalEvent):
        after(state_in(CHK), event)


def test_a_second_owner_is_not_let_in() -> None:
    for state in (CHK, CPU):
        before = state_in(state, running=True)
        with pytest.raises(IllegalEvent):
            after(before, sample("Started", lane=before.lane or ""))


@pytest.mark.parametrize(("state", "wrong"), [(ADM, "cpu"), (CHK, "cpu"), (CPU, "gpu")])
def test_a_runner_of_the_other_lane_is_not_let_in(state: str, wrong: str) -> None:
    with pytest.raises(IllegalEvent):
        after(state_in(state), sample("Started", lane=wrong))


def test_deaths_count_until_something_is_added() -> None:
    died = ev.FaultSeen("worker", "crashed", "gpu", "r1", "sim-0", blames_input=True)
    state = after(after(state_in(CHK), died), died)
    assert state.deaths == 2
    assert after(state, ev.FaultSeen("worker", "killed", "gpu", "r1", "sim-0")).deaths == 2
    assert after(state, ev.Checkpointed(4, 4, "d")).deaths == 2, "a checkpoint that adds nothing is no progress"
    assert after(state, ev.Checkpointed(5, 5, "d")).deaths == 0


def test_a_fault_of_a_running_request_that_fails_stops_its_deadline_and_its_owner() -> None:
    failed = after(state_in(RUN, runner="r1", deadline_us=50), ev.Failed("killed", MOVE))
    assert (failed.running, failed.runner, failed.deadline_us, failed.settled_us) == (False, None, None, 9)
    assert failed.failure is not None
    assert failed.failure.version == failed.version


def test_a_move_is_marked_with_its_reason() -> None:
    moved = after(state_in(CHK, running=True, runner="r1"), ev.Rerouted("gpu", 4, "killed", MOVE))
    (mark,) = moved.failovers
    assert (mark.from_lane, mark.to_lane, mark.rule, mark.reason) == ("gpu", "cpu", "continue-identical", "killed")
    assert mark.version == moved.version
    assert moved.degraded is not None
    assert (moved.degraded.version, moved.degraded.lane) == (moved.version, "cpu")
    assert (moved.running, moved.lane, moved.units) == (False, "cpu", 4)


@pytest.mark.parametrize("not_before", [None, 100, 101])
def test_a_claim_waits_for_its_time(not_before: int | None) -> None:
    assert claimable(state_in(ADM, not_before_us=not_before), "gpu", 100) is (not_before != 101)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(["gpu", "cpu"]),
        st.integers(0, 6),
        st.sampled_from(["checkpoint", "start"]),
    ),
    max_size=40,
)


@given(STEPS)
def test_random_walks(steps: list[tuple[str, str, int, str]]) -> None:
    """Illegal events change nothing, ends are ends, units only grow within an epoch, and a fold equals its steps."""
    state: RequestState | None = None
    history: list[Recorded] = []
    ended: str | None = None
    for at, (name, lane, more, origin) in enumerate([("Admitted", "gpu", 0, ""), *steps]):
        units = more if state is None else state.units + more - 1
        event = ev.Resumed(origin, lane) if name == "Resumed" else sample(name, lane=lane, units=units)  # type: ignore[arg-type]
        frozen = msgspec.json.encode(state)
        try:
            reached = apply(state, event, stream="q1", at_us=at, attempt=at)
        except IllegalEvent:
            assert msgspec.json.encode(state) == frozen
            continue
        if state is not None:
            assert reached.version == state.version + 1
            assert reached.output_epoch - state.output_epoch in {0, 1}
            if reached.output_epoch == state.output_epoch:
                assert reached.units >= state.units
                assert reached.visible_upto >= state.visible_upto
        if ended is not None:
            assert reached.state == ended
        if reached.state in {DONE, CAN, REF}:
            ended = reached.state
            assert not reached.running
        if reached.state in {ADM, RUN}:
            assert reached.units == 0
            assert reached.lane == "gpu"
        if state is not None and reached.lane != state.lane:
            assert len(reached.failovers) == len(state.failovers) + 1, "no change of lane is silent"
        version = reached.version
        history.append(Recorded(at + 1, f"e{at}", "q1", version, name, at, "test", at, None, event))
        state = reached
    assert fold(history) == state


def test_a_stream_begins_once() -> None:
    with pytest.raises(IllegalEvent):
        after(after(None, ADMITTED), ADMITTED)
