"""What follows from a fault: the rules of the safe point, one case each, and what holds for all of them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core import safepoint
from core.decision import Decision, SafepointFacts
from core.explain import explain_decision, failure
from core.replay import decide_again

PLAIN = SafepointFacts(
    fault="worker",
    fault_kind="killed",
    lane="gpu",
    units=7,
    failover="auto",
    pair="identical",
    cpu_serving=True,
    deaths=0,
    poison_limit=2,
)


def decide(**changes: Any) -> tuple[str, str]:
    decision = safepoint.decide(msgspec.structs.replace(PLAIN, **changes))
    return decision.action, decision.rule


# fmt: off
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({},                                                    "continue-cpu", "continue-identical"),
    ({"pair": "faithful"},                                  "continue-cpu", "continue-faithful"),
    ({"pair": "none"},                                      "requeue",      "pair-none"),
    ({"pair": "none", "fault": "device"},                   "fail",         "pair-none"),
    ({"pair": "none", "fault": "size"},                     "fail",         "pair-none"),
    ({"fault": "device"},                                   "continue-cpu", "continue-identical"),
    ({"fault": "slow"},                                     "continue-cpu", "continue-identical"),
    ({"failover": "identical"},                             "continue-cpu", "continue-identical"),
    ({"failover": "identical", "pair": "faithful"},         "requeue",      "pair-below-demand"),
    ({"failover": "identical", "pair": "faithful", "fault": "device"}, "fail", "pair-below-demand"),
    ({"failover": "identical", "pair": "none"},             "requeue",      "pair-none"),
    ({"failover": "boundary"},                              "fail",         "boundary-passed"),
    ({"failover": "boundary", "units": 0},                  "restart-cpu",  "restart-nothing-shown"),
    ({"units": 0},                                          "restart-cpu",  "restart-nothing-shown"),
    ({"units": 0, "pair": "none"},                          "restart-cpu",  "restart-nothing-shown"),
    ({"units": 0, "failover": "identical", "pair": "none"}, "restart-cpu",  "restart-nothing-shown"),
    ({"units": 0, "fault": "device"},                       "restart-cpu",  "restart-nothing-shown"),
    ({"failover": "never"},                                 "fail",         "failover-never"),
    ({"failover": "never", "units": 0},                     "requeue",      "stay-on-gpu"),
    ({"failover": "never", "units": 0, "fault": "device"},  "fail",         "failover-never"),
    ({"failover": "gpu-only"},                              "requeue",      "stay-on-gpu"),
    ({"failover": "gpu-only", "units": 0},                  "requeue",      "stay-on-gpu"),
    ({"failover": "gpu-only", "fault": "device"},           "fail",         "gpu-only-device-lost"),
    ({"cpu_serving": False},                                "requeue",      "no-cpu-lane"),
    ({"cpu_serving": False, "units": 0},                    "requeue",      "no-cpu-lane"),
    ({"cpu_serving": False, "fault": "device"},             "fail",         "no-cpu-lane"),
    ({"cpu_serving": False, "fault": "device", "units": 0}, "requeue",      "no-cpu-lane"),
    ({"lane": "cpu"},                                       "requeue",      "cpu-worker-lost"),
    ({"lane": "cpu", "units": 0},                           "requeue",      "cpu-worker-lost"),
    ({"lane": "cpu", "pair": "none", "failover": "never"},  "requeue",      "cpu-worker-lost"),
    ({"fault": "host", "fault_kind": "service-stopped"},    "requeue",      "service-restarted"),
    ({"fault_kind": "service-stopped", "failover": "never"},"requeue",      "service-restarted"),
    ({"fault_kind": "service-stopped", "lane": "cpu"},      "requeue",      "cpu-worker-lost"),
    ({"deaths": 1},                                         "continue-cpu", "continue-identical"),
    ({"deaths": 2},                                         "fail",         "poison-limit"),
    ({"losses": 8, "loss_limit": 8},                        "fail",         "no-progress"),
    ({"losses": 8, "loss_limit": 8, "lane": "cpu"},         "fail",         "no-progress"),
    ({"losses": 7, "loss_limit": 8},                        "continue-cpu", "continue-identical"),
    ({"losses": 99, "loss_limit": 0},                       "continue-cpu", "continue-identical"),
    ({"deaths": 3, "units": 0},                             "fail",         "poison-limit"),
    ({"deaths": 2, "lane": "cpu"},                          "fail",         "poison-limit"),
    ({"deaths": 1, "poison_limit": 1},                      "fail",         "poison-limit"),
    ({"cancel_asked": True},                                "cancel",       "cancel-wins"),
    ({"cancel_asked": True, "deaths": 5, "lane": "cpu"},    "cancel",       "cancel-wins"),
    ({"effects_pending": True},                             "fail",         "effects-pending"),
    ({"effects_pending": True, "units": 0},                 "fail",         "effects-pending"),
    ({"effects_pending": True, "lane": "cpu"},              "fail",         "effects-pending"),
    ({"fault": "size"},                                     "continue-cpu", "continue-identical"),
    ({"fault": "size", "units": 0},                         "restart-cpu",  "restart-nothing-shown"),
    ({"fault": "size", "lane": "cpu"},                      "fail",         "too-big-for-lane"),
    ({"fault": "size", "lane": "cpu", "units": 0},          "fail",         "too-big-for-lane"),
    ({"fault": "size", "cpu_serving": False},               "fail",         "too-big-for-lane"),
    ({"fault": "size", "failover": "gpu-only"},             "fail",         "too-big-for-lane"),
    ({"fault": "size", "failover": "never", "units": 0},    "fail",         "too-big-for-lane"),
    ({"fault": "host", "fault_kind": "cannot-continue"},    "continue-cpu", "continue-identical"),
    ({"fault": "host", "fault_kind": "cannot-continue", "pair": "faithful"}, "continue-cpu", "continue-faithful"),
    ({"fault": "host", "fault_kind": "cannot-continue", "pair": "none"}, "fail", "pair-none"),
    ({"fault": "host", "fault_kind": "cannot-continue", "units": 0}, "restart-cpu", "restart-nothing-shown"),
    ({"fault": "host", "fault_kind": "cannot-continue", "lane": "cpu"}, "fail", "cannot-continue"),
    ({"fault": "host", "fault_kind": "cannot-continue", "cpu_serving": False}, "fail", "cannot-continue"),
    ({"fault": "host", "fault_kind": "cannot-continue", "failover": "gpu-only"}, "fail", "cannot-continue"),
    ({"fault": "host", "fault_kind": "cannot-continue", "failover": "never"}, "fail", "cannot-continue"),
    ({"fault": "host", "fault_kind": "cannot-continue", "failover": "boundary"}, "fail", "boundary-passed"),
    ({"fault": "size", "fault_kind": "engine-refused"},     "fail",         "engine-refused"),
    ({"fault": "size", "fault_kind": "engine-refused", "units": 0}, "fail", "engine-refused"),
    ({"cpu_waiting": 31, "cpu_limit": 32},                  "continue-cpu", "continue-identical"),
    ({"cpu_waiting": 32, "cpu_limit": 32},                  "requeue",      "cpu-lane-full"),
    ({"cpu_waiting": 40, "cpu_limit": 32, "units": 0},      "requeue",      "cpu-lane-full"),
    ({"cpu_waiting": 32, "cpu_limit": 32, "fault": "device"}, "requeue",    "cpu-lane-full"),
    ({"cpu_waiting": 32, "cpu_limit": 32, "fault": "device", "pair": "none"}, "fail", "pair-none"),
    ({"cpu_waiting": 32, "cpu_limit": 32, "fault": "size"}, "continue-cpu", "continue-identical"),
    ({"cpu_waiting": 32, "cpu_limit": 32, "fault": "size", "units": 0}, "restart-cpu", "restart-nothing-shown"),
    ({"cpu_waiting": 32, "cpu_limit": 32, "fault": "host", "fault_kind": "cannot-continue"},
                                                            "continue-cpu", "continue-identical"),
    ({"cpu_waiting": 32, "cpu_limit": 32, "lane": "cpu"},   "requeue",      "cpu-worker-lost"),
    ({"cpu_waiting": 32, "cpu_limit": 32, "cpu_serving": False}, "requeue", "no-cpu-lane"),
    ({"cpu_waiting": 99, "cpu_limit": None},                "continue-cpu", "continue-identical"),
]
# fmt: on


@pytest.mark.parametrize(("changes", "action", "rule"), CASES)
def test_the_rules(changes: dict[str, Any], action: str, rule: str) -> None:
    assert decide(**changes) == (action, rule)


ANY = st.builds(
    SafepointFacts,
    fault=st.sampled_from(["size", "poison", "worker", "device", "slow", "host"]),
    fault_kind=st.sampled_from(["killed", "crashed", "hung", "lease-expired", "service-stopped", "device-lost"]),
    lane=st.sampled_from(["gpu", "cpu"]),
    units=st.sampled_from([0, 1, 9]),
    failover=st.sampled_from(["auto", "identical", "boundary", "never", "gpu-only"]),
    pair=st.sampled_from(["identical", "faithful", "none"]),
    cpu_serving=st.booleans(),
    deaths=st.integers(0, 3),
    poison_limit=st.integers(1, 3),
    cancel_asked=st.booleans(),
    effects_pending=st.booleans(),
    cpu_waiting=st.integers(0, 3),
    cpu_limit=st.sampled_from([None, 1, 2, 3]),
)
MANY = settings(max_examples=600, deadline=None)


@MANY
@given(ANY)
def test_the_same_facts_give_the_same_bytes(facts: SafepointFacts) -> None:
    decision = safepoint.decide(facts)
    again = msgspec.json.decode(msgspec.json.encode(decision), type=type(decision))
    assert msgspec.json.encode(decide_again(again)) == msgspec.json.encode(decision)


@MANY
@given(ANY)
def test_what_never_happens(facts: SafepointFacts) -> None:
    action = safepoint.decide(facts).action
    moves = action in {"continue-cpu", "restart-cpu"}
    assert (action == "cancel") is facts.cancel_asked
    if moves:
        assert facts.lane == "gpu"
        assert facts.cpu_serving
        assert facts.failover not in {"never", "gpu-only"}
        assert not facts.effects_pending
        assert facts.deaths < facts.poison_limit
    if action == "restart-cpu":
        assert facts.units == 0, "what was shown is never computed anew"
    if action == "continue-cpu":
        assert facts.units > 0
        assert facts.pair != "none"
        assert facts.failover != "boundary"
        assert facts.failover != "identical" or facts.pair == "identical"
    if action == "requeue":
        assert facts.fault != "size", "the same lane would refuse the same size again"
        assert facts.deaths < facts.poison_limit


@MANY
@given(ANY)
def test_an_engine_that_cannot_go_on_is_not_asked_again(facts: SafepointFacts) -> None:
    told = msgspec.structs.replace(facts, fault="host", fault_kind="cannot-continue")
    assert safepoint.decide(told).action != "requeue"


@MANY
@given(ANY)
def test_a_full_lane_only_turns_a_move_into_waiting(facts: SafepointFacts) -> None:
    """None lost, none refused: what would be decided with room for all is decided, or it waits where it is."""
    free = safepoint.decide(msgspec.structs.replace(facts, cpu_limit=None))
    found = safepoint.decide(facts)
    if (found.action, found.rule) != (free.action, free.rule):
        assert free.action in {"continue-cpu", "restart-cpu"}
        assert (found.action, found.rule) == ("requeue", "cpu-lane-full")
        assert facts.cpu_limit is not None
        assert facts.cpu_waiting >= facts.cpu_limit


def test_a_decision_from_before_the_limit_was_asked_is_decided_the_same() -> None:
    """Its stored facts say nothing of the queue."""
    stored = (
        b'{"action":"restart-cpu","rule":"restart-nothing-shown","facts":{"kind":"safepoint","fault":"device",'
        b'"fault_kind":"device-lost","lane":"gpu","units":0,"failover":"auto","pair":"identical","cpu_serving":true,'
        b'"deaths":0,"poison_limit":2,"cancel_asked":false,"effects_pending":false},"rejected":[]}'
    )
    found = decide_again(msgspec.json.decode(stored, type=Decision))
    assert (found.action, found.rule) == ("restart-cpu", "restart-nothing-shown")


@MANY
@given(ANY)
def test_a_better_proof_never_makes_it_stop(facts: SafepointFacts) -> None:
    outcomes = [
        safepoint.decide(msgspec.structs.replace(facts, pair=pair)).action for pair in ("none", "faithful", "identical")
    ]
    stopped = [outcome == "fail" for outcome in outcomes]
    assert stopped == sorted(stopped, reverse=True)


@MANY
@given(ANY)
def test_a_sound_device_never_makes_it_stop(facts: SafepointFacts) -> None:
    broken = msgspec.structs.replace(facts, fault="device")
    sound = msgspec.structs.replace(facts, fault="worker")
    if safepoint.decide(broken).action != "fail":
        assert safepoint.decide(sound).action != "fail"


@MANY
@given(ANY)
def test_every_outcome_is_told_in_words(facts: SafepointFacts) -> None:
    decision = safepoint.decide(facts)
    told = explain_decision(decision)
    assert decision.rule not in told
    assert told != decision.rule.replace("-", " "), "the rule has no words of its own"
    assert decision.rejected
    assert all(" " in alternative.reason for alternative in decision.rejected)
    assert decision.action not in {alternative.action for alternative in decision.rejected}
    assert decision.rule not in failure(facts.fault_kind, decision.rule, facts.units)
