"""Who waits in place because its lane is out is degraded, and told so, until it starts there or is moved."""

from typing import Any

import msgspec
import pytest
from machine_cases import ADMITTED, LANE, state_in

from core import events as ev
from core import returning
from core.decision import AdmissionFacts, Decision, Rejected, ReturnFacts, SafepointFacts
from core.errors import IllegalEvent
from core.explain import explain
from core.machine import apply
from core.state import DegradedMark, RequestState

FULL = Decision(
    "requeue",
    "cpu-lane-full",
    SafepointFacts("device", "device-lost", "gpu", 0, "auto", "identical", True, 0, 2, cpu_waiting=32, cpu_limit=32),
    (Rejected("restart-cpu", "32 requests wait for the CPU lane already; the limit is 32"),),
)
ONLY = Decision(
    "requeue", "stay-on-gpu", SafepointFacts("worker", "load-failed", "gpu", 0, "gpu-only", "identical", True, 0, 2)
)
STAYS = returning.decide(
    ReturnFacts(True, "auto", 4, 60, "identical", True, 0, 1, False, 1, 3.0, 10.0, 5.0, 20.0, 60.0, 1.0)
)
IN_PLACE = ev.Replanned("cpu-lane-full", FULL, lane_out=True)
STARTED = ev.Started("gpu", "r1", "sim-0", "null/1", 0)


def after(state: RequestState | None, event: ev.Event, at_us: int = 9) -> RequestState:
    return apply(state, event, stream="q1", at_us=at_us)


def shrunk() -> RequestState:
    short = Decision("shrink", "fits-shrunk", AdmissionFacts(5, 64, "auto", False, LANE, LANE), units=64)
    return after(None, msgspec.structs.replace(ADMITTED, decision=short, asked_units=128), at_us=1)


def test_it_is_told_where_and_why_until_it_starts_there() -> None:
    waiting = after(state_in("admitted"), IN_PLACE)
    assert (waiting.state, waiting.lane, waiting.waits_for) == ("admitted", "gpu", "cpu-lane-full")
    assert waiting.degraded is not None
    mark = waiting.degraded
    assert (mark.since_us, mark.version, mark.reason, mark.rule, mark.lane) == (
        9,
        4,
        "cpu-lane-full",
        "cpu-lane-full",
        "gpu",
    )
    started = after(waiting, STARTED)
    assert (started.degraded, started.waits_for) == (None, None)


@pytest.mark.parametrize("state", ["running-gpu", "checkpointed"])
def test_one_whose_device_is_gone_gives_its_place_up_and_waits(state: str) -> None:
    waiting = after(state_in(state, running=True, runner="r1"), ev.Requeued(FULL, "cpu-lane-full"))
    assert waiting.state == ("admitted" if state == "running-gpu" else state)
    assert (waiting.running, waiting.runner, waiting.waits_for) == (False, None, "cpu-lane-full")
    assert waiting.degraded is not None
    assert waiting.degraded.lane == "gpu"


def test_another_reason_is_told_with_the_time_of_the_first() -> None:
    first = after(state_in("admitted"), IN_PLACE, at_us=9)
    second = after(first, ev.Replanned("load-failed", ONLY, lane_out=True), at_us=20)
    assert second.degraded is not None
    assert (second.degraded.since_us, second.degraded.reason, second.degraded.rule) == (9, "load-failed", "stay-on-gpu")
    assert after(second, STARTED).degraded is None


def test_a_shorter_answer_stays_told_when_the_wait_is_over() -> None:
    before = shrunk().degraded
    assert before is not None
    twice = after(after(shrunk(), IN_PLACE), ev.Replanned("load-failed", ONLY, lane_out=True))
    assert twice.degraded != before
    assert after(twice, STARTED).degraded == before


def test_a_move_takes_the_wait_away() -> None:
    moved = after(after(state_in("admitted"), IN_PLACE), ev.Rerouted("gpu", 0, "device-lost", FULL))
    assert moved.degraded is not None
    assert (moved.degraded.lane, moved.degraded.waits, moved.waits_for) == ("cpu", False, None)
    begun = after(moved, ev.Started("cpu", "r2", "cpu", "null/1", 0))
    assert begun.degraded == moved.degraded, "it still is on the CPU lane"


def test_events_from_before_fold_as_they_did() -> None:
    """Neither a wait nor a requeue of old said that a lane was out."""
    old = msgspec.json.decode(b'{"reason":"device-lost","decision":null,"not_before_us":null}', type=ev.Replanned)
    assert after(state_in("admitted"), old).degraded is None
    requeued = msgspec.json.decode(b'{"decision":' + msgspec.json.encode(ONLY) + b"}", type=ev.Requeued)
    assert after(state_in("running-gpu"), requeued).degraded is None
    plain = DegradedMark(1, 2, "killed", "restart-nothing-shown", "cpu", "null")
    keys = set(msgspec.json.decode(msgspec.json.encode(plain)))
    assert keys == {"since_us", "version", "reason", "rule", "lane", "model"}, "and stored rows stay as they are"


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("state", ["rerouted-cpu", "checkpointed"])
def test_why_it_is_still_on_the_cpu_lane_changes_nothing_of_it(state: str, running: bool) -> None:
    before = state_in(state, lane="cpu", running=running, runner="r2" if running else None)
    said = after(before, ev.Replanned(STAYS.rule, STAYS))
    assert STAYS.rule == "too-soon"
    assert said == msgspec.structs.replace(before, version=before.version + 1, updated_us=9)


def test_nothing_of_it_is_said_after_a_cancel_was_asked() -> None:
    asked = state_in("checkpointed", lane="cpu", running=True, cancel_asked=True)
    for event in (ev.Replanned(STAYS.rule, STAYS), IN_PLACE, ev.Requeued(FULL, "cpu-lane-full")):
        with pytest.raises(IllegalEvent):
            after(asked, event)


SAID: list[tuple[Any, str]] = [
    (IN_PLACE, "Waits in its place for the GPU lane because the CPU lane has no room"),
    (
        ev.Replanned("load-failed", ONLY, lane_out=True),
        "Waits in its place for the GPU lane because the model could not",
    ),
    (ev.Requeued(FULL, "cpu-lane-full"), "Back in the queue of its lane"),
    (ev.Requeued(ONLY, "load-failed"), "where it waits because the model could not be loaded"),
    (ev.Replanned(STAYS.rule, STAYS), "Still on the CPU lane because it was moved 3.0 s ago, and stays 10 s at least."),
]


@pytest.mark.parametrize(("event", "words"), SAID)
def test_it_is_told_in_words(event: ev.Event, words: str) -> None:
    assert words in explain(event)
