"""Where a request may run: the rules of admission, one case each, and what holds for all of them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import admission
from core.decision import AdmissionFacts, LaneFacts
from core.explain import REASONS, explain_decision
from core.words import Failover

READY = LaneFacts(True, True, None, 0, 4, 1000)
BIG = LaneFacts(True, True, None, 0, 4, 9000)
OUT = LaneFacts(True, False, "device-lost", 0, 4, 1000)
FULL = LaneFacts(True, True, None, 4, 4, 1000)
NONE = LaneFacts(False, False, None, 0, 4, 0)


def facts(
    gpu: LaneFacts, cpu: LaneFacts, need: int = 100, failover: Failover = "auto", *, draining: bool = False
) -> AdmissionFacts:
    return AdmissionFacts(need - 60, 60, failover, draining, gpu, cpu)


# fmt: off
CASES = [
    # gpu,  cpu,   need, failover,   action,        rule
    (READY, READY,  100, "auto",     "run-gpu",     "gpu-ready"),
    (READY, NONE,   100, "never",    "run-gpu",     "gpu-ready"),
    (READY, READY, 1000, "auto",     "run-gpu",     "gpu-ready"),
    (READY, READY, 1001, "auto",     "refuse",      "too-long"),
    (READY, BIG,   1001, "auto",     "reroute-cpu", "too-long-for-gpu"),
    (READY, BIG,   1001, "gpu-only", "refuse",      "gpu-only"),
    (OUT,   READY,  100, "auto",     "reroute-cpu", "gpu-out"),
    (OUT,   READY,  100, "boundary", "reroute-cpu", "gpu-out"),
    (OUT,   READY,  100, "identical","reroute-cpu", "gpu-out"),
    (OUT,   READY,  100, "never",    "refuse",      "gpu-only"),
    (OUT,   READY,  100, "gpu-only", "refuse",      "gpu-only"),
    (FULL,  READY,  100, "auto",     "reroute-cpu", "gpu-queue-full"),
    (FULL,  READY,  100, "gpu-only", "refuse",      "gpu-only"),
    (NONE,  READY,  100, "auto",     "reroute-cpu", "no-gpu"),
    (NONE,  READY,  100, "never",    "refuse",      "gpu-only"),
    (NONE,  FULL,   100, "auto",     "refuse",      "queue-full"),
    (FULL,  FULL,   100, "auto",     "refuse",      "queue-full"),
    (FULL,  NONE,   100, "auto",     "refuse",      "queue-full"),
    (OUT,   FULL,   100, "auto",     "refuse",      "queue-full"),
    (OUT,   OUT,    100, "auto",     "refuse",      "no-lane"),
    (OUT,   NONE,   100, "auto",     "refuse",      "no-lane"),
    (NONE,  NONE,   100, "auto",     "refuse",      "no-lane"),
    (OUT,   OUT,   1001, "auto",     "refuse",      "too-long"),
]
# fmt: on


@pytest.mark.parametrize(("gpu", "cpu", "need", "failover", "action", "rule"), CASES)
def test_the_rules(gpu: LaneFacts, cpu: LaneFacts, need: int, failover: Failover, action: str, rule: str) -> None:
    decision = admission.decide(facts(gpu, cpu, need, failover))
    assert (decision.action, decision.rule) == (action, rule)
    rejected = {alternative.action for alternative in decision.rejected}
    assert rejected == {"run-gpu", "reroute-cpu"} - {action}


@pytest.mark.parametrize("lane", [READY, OUT, FULL, NONE])
def test_a_stopping_service_takes_nothing(lane: LaneFacts) -> None:
    assert admission.decide(facts(lane, READY, draining=True)).rule == "draining"


@st.composite
def lane_facts(draw: st.DrawFn) -> LaneFacts:
    present = draw(st.booleans())
    serving = present and draw(st.booleans())
    reason = None if serving else draw(st.sampled_from([None, "device-lost", "load-failed"]))
    return LaneFacts(
        present, serving, reason, draw(st.integers(0, 5)), draw(st.integers(1, 4)), draw(st.integers(0, 9))
    )


ANY = st.builds(
    AdmissionFacts,
    prompt_tokens=st.integers(1, 8),
    max_units=st.integers(1, 4),
    failover=st.sampled_from(["auto", "identical", "boundary", "never", "gpu-only"]),
    draining=st.booleans(),
    gpu=lane_facts(),
    cpu=lane_facts(),
)


@given(ANY)
def test_the_same_facts_give_the_same_bytes(given_facts: AdmissionFacts) -> None:
    again = msgspec.json.decode(msgspec.json.encode(given_facts), type=AdmissionFacts)
    assert msgspec.json.encode(admission.decide(given_facts)) == msgspec.json.encode(admission.decide(again))


@given(ANY)
def test_nothing_is_sent_where_it_cannot_be_served(given_facts: AdmissionFacts) -> None:
    decision = admission.decide(given_facts)
    lane = {"run-gpu": given_facts.gpu, "reroute-cpu": given_facts.cpu}.get(decision.action)
    if lane is None:
        assert decision.action == "refuse"
    else:
        assert lane.serving
        assert lane.waiting < lane.limit
        assert given_facts.prompt_tokens + given_facts.max_units <= lane.context
    if decision.action == "reroute-cpu":
        assert given_facts.failover not in {"never", "gpu-only"}


@given(ANY)
def test_a_shorter_request_is_never_treated_worse(given_facts: AdmissionFacts) -> None:
    rank = {"run-gpu": 2, "reroute-cpu": 1, "refuse": 0}
    shorter = msgspec.structs.replace(given_facts, max_units=given_facts.max_units - 1)
    assert rank[admission.decide(shorter).action] >= rank[admission.decide(given_facts).action]


@given(ANY)
def test_a_freer_queue_never_makes_a_refusal(given_facts: AdmissionFacts) -> None:
    if admission.decide(given_facts).action == "refuse":
        return
    freer = msgspec.structs.replace(
        given_facts,
        gpu=msgspec.structs.replace(given_facts.gpu, waiting=0),
        cpu=msgspec.structs.replace(given_facts.cpu, waiting=0),
    )
    assert admission.decide(freer).action != "refuse"


@given(ANY)
def test_every_outcome_is_told_in_words(given_facts: AdmissionFacts) -> None:
    decision = admission.decide(given_facts)
    told = explain_decision(decision)
    assert decision.rule in REASONS or decision.rule == "gpu-ready"
    assert " " in told
    assert "-" not in told
    assert all(" " in alternative.reason for alternative in decision.rejected)
