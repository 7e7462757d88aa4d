"""One sentence for everything that can happen, and no code word in it."""

import re
from typing import get_args

import pytest
from machine_cases import LANE, sample

from core import breaker
from core import events as ev
from core.decision import AdmissionFacts, BreakerFacts, Decision, Rejected
from core.explain import REASONS, explain, moved
from core.words import FaultClass

OPENED = breaker.decide(BreakerFacts("closed", "worker", "killed", 3, 3, 120.0, 0, 30.0, 600.0))
OTHERS = [
    ev.DeviceFound("Card", True, None),
    ev.DeviceLost("device-lost", 2),
    ev.DeviceBack("it answers again", 3),
    ev.FaultCounted("worker", "killed", "gpu-1"),
    ev.BreakerOpened("killed", OPENED, 30_000_000),
    ev.BreakerOpened("device-lost", OPENED, 30_000_000, held=True),
    ev.BreakerHalfOpened("device-back"),
    ev.CanaryAnswered("recorded", "null/1@host", (1, 2), 200_000),
    ev.CanaryAnswered("right", "null/1@host", (1, 2), 200_000),
    ev.CanaryAnswered("wrong", "null/1@host", (1, 3), 200_000, "gpu-1", "1 of 2 units agree"),
    ev.BreakerClosed("canaries", OPENED),
    ev.BreakerClosed("asked"),
    ev.HostResumed(7_200_000_000),
    ev.LaneOut("gpu", "load-failed"),
    ev.LaneIn("cpu"),
    ev.RunnerStarted("gpu", "sim-0", 12, "null/1", "null"),
    ev.RunnerLoaded(1_500_000, 9),
    ev.LoadPlanned("null", "sim-0", "fits", "5 bytes are needed and free"),
    ev.EvictAsked("null", "sim-0", "idle-makes-room", "it has been idle for 700 s"),
    ev.Evicted("null", "sim-0", 5 << 20),
    ev.Evicted("null", "sim-0", 5 << 20, 1 << 20),
    ev.FootprintLearned("null", 5 << 20, 7 << 20, 7 << 20),
    ev.LeakSuspected("null", (5 << 20, 105 << 20, 205 << 20)),
    ev.PressureRose(97, 100),
    ev.PressureFell(80, 100),
    ev.RunnerExited(9, None, "hung"),
    ev.RunnerExited(None, 3),
    ev.RunnerExited(None, None, "gate-held"),
    ev.RunnerExited(15, None, "cancel-ignored"),
    ev.EquivalenceProved("a/1@host", "b/2@host", "c", "faithful", 12, 9, 500, 497, 0.001),
    ev.ServiceStarted("0.1.0", 12, "3.40.1"),
    ev.DrainAsked("the disk is to be changed"),
    ev.ServiceStopped("asked"),
]
ALL = [sample(cls.__name__) for cls in ev.REQUEST_EVENTS] + OTHERS


def test_no_event_type_is_forgotten() -> None:
    assert {type(event) for event in ALL} == set(ev.TYPES.values())


@pytest.mark.parametrize("event", ALL, ids=lambda event: type(event).__name__)
def test_a_sentence(event: ev.Event) -> None:
    told = explain(event)
    assert told[0].isupper()
    assert told.endswith(".")
    assert ".." not in told
    assert "None" not in told
    assert not [code for code in REASONS if "-" in code and re.search(rf"\b{code}\b", told)]


@pytest.mark.parametrize("event", ALL, ids=lambda event: type(event).__name__)
def test_with_its_cause(event: ev.Event) -> None:
    cause = ev.FaultSeen("worker", "hung", "gpu", "r1", "sim-0")
    told = explain(event, cause)
    if isinstance(event, ev.FaultSeen | ev.Rerouted | ev.Returned | ev.Failed):
        assert told == explain(event), "it names its reason by itself, and does not say it twice"
    else:
        assert told.startswith("Because the worker stopped making progress on the GPU lane: ")


@pytest.mark.parametrize(
    "kind", ["killed", "crashed", "exited", "hung", "lease-expired", "device-lost", "engine-failed"]
)
@pytest.mark.parametrize("fault", get_args(FaultClass))
def test_a_fault_is_told_in_words(kind: str, fault: FaultClass) -> None:
    told = explain(ev.FaultSeen(fault, kind, "cpu", "r1", "cpu", evidence={"signal": "SIGSEGV"}))
    assert REASONS[kind] in told
    assert "signal SIGSEGV" in told


def test_a_move_names_both_lanes_and_the_reason() -> None:
    assert moved("gpu", "cpu", "killed", "continue-identical") == (
        "Moved from the GPU lane to the CPU lane because the worker was killed; "
        "the CPU path answers identically, so it goes on after the last shown word."
    )
    assert moved(None, "cpu", "no-gpu", "no-gpu") == "Sent to the CPU lane because there is no GPU lane here."


def test_a_refusal_says_whether_trying_again_helps() -> None:
    facts = AdmissionFacts(5, 64, "gpu-only", False, LANE, LANE)
    decision = Decision("refuse", "gpu-only", facts, (Rejected("run-gpu", "the GPU lane is out"),))
    again = ev.Refused("local", "generate", "null", "gpu-only", 5, decision)
    never = ev.Refused("local", "generate", "null", "gpu-only", None, decision)
    assert explain(again).endswith("Try again in 5 s.")
    assert explain(never).endswith("Trying again cannot help.")
