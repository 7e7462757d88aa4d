"""Admission to the CPU lane: the host's memory, the lane's budget, and its longest answer."""

import msgspec
import pytest

from core import admission
from core.decision import AdmissionFacts, Decision, HostFacts, LaneFacts

MIB = 1 << 20
GIB = 1 << 30
LANE = LaneFacts(True, True, None, 0, 64, 100_000)
NONE = LaneFacts(False, False, None, 0, 32, 0)


def asking(host: HostFacts | None = None, **changes: object) -> AdmissionFacts:
    plain = AdmissionFacts(100, 100, "auto", False, NONE, LANE, host=host)
    return msgspec.structs.replace(plain, **changes)  # type: ignore[arg-type]


def outcome(facts: AdmissionFacts) -> tuple[str, str]:
    decision = admission.decide(facts)
    return decision.action, decision.rule


def why_not_cpu(decision: Decision) -> str:
    return next(one.reason for one in decision.rejected if one.action == "reroute-cpu")


def test_a_limit_of_8_gib_and_a_model_of_7_8_leave_less_than_the_tenth_that_is_kept_back() -> None:
    # 8 GiB are 8,589,934,592 bytes, a tenth of them 858,993,459; 7.8 GiB are 8,375,186,227.
    host = HostFacts(available=8 * GIB, floor=858_993_459, need=8_375_186_227, total=8 * GIB)
    decision = admission.decide(asking(host))
    assert (decision.action, decision.rule) == ("refuse", "host-memory")
    assert why_not_cpu(decision) == (
        "8375186227 bytes of host memory are needed, and 7730941133 may be used "
        "(8589934592 are available, 858993459 are kept back)"
    )
    assert outcome(asking(msgspec.structs.replace(host, need=7_730_941_133))) == ("reroute-cpu", "no-gpu")
    assert outcome(asking(msgspec.structs.replace(host, need=7_730_941_134)))[1] == "host-memory"


def test_the_mapped_and_the_promised_are_not_free() -> None:
    """10 GiB available, 3 of them mapped, 1 kept back, 2 for a model on its way: 4 are left."""
    host = HostFacts(available=10 * GIB, floor=GIB, need=4 * GIB, mapped=3 * GIB, pending=2 * GIB)
    assert outcome(asking(host))[0] == "reroute-cpu"
    decision = admission.decide(asking(msgspec.structs.replace(host, need=4 * GIB + 1)))
    assert decision.rule == "host-memory"
    for number in (4 * GIB + 1, 4 * GIB, 10 * GIB, 3 * GIB, 2 * GIB, GIB):
        assert str(number) in why_not_cpu(decision)


def test_a_budget_holds_where_the_host_has_more() -> None:
    host = HostFacts(available=100 * GIB, floor=GIB, need=500 * MIB, budget=2000 * MIB, held=1500 * MIB)
    assert outcome(asking(host))[0] == "reroute-cpu"
    decision = admission.decide(asking(msgspec.structs.replace(host, need=500 * MIB + 1)))
    assert decision.rule == "host-memory"
    assert f"the CPU lane holds {1500 * MIB} of its budget of {2000 * MIB}" in why_not_cpu(decision)


def test_where_the_host_tells_nothing_only_a_budget_decides() -> None:
    host = HostFacts(available=None, floor=0, need=GIB)
    assert outcome(asking(host))[0] == "reroute-cpu"
    assert outcome(asking(msgspec.structs.replace(host, budget=GIB - 1)))[1] == "host-memory"


@pytest.mark.parametrize("need", [0, 8 * GIB])
def test_a_lane_that_takes_nothing_more_refuses_with_the_numbers(need: int) -> None:
    out = msgspec.structs.replace(LANE, serving=False, out_reason="host-memory")
    host = HostFacts(available=4 * GIB, floor=3 * GIB, need=need)
    decision = admission.decide(asking(host, cpu=out))
    assert (decision.action, decision.rule) == ("refuse", "host-memory")
    assert str(GIB) in why_not_cpu(decision)
    assert str(3 * GIB) in why_not_cpu(decision)
    # Whom the GPU lane takes, does not even notice.
    assert outcome(asking(host, cpu=out, gpu=LANE)) == ("run-gpu", "gpu-ready")
    # Accepted work waits.
    assert outcome(asking(host, cpu=out, second_look=True))[0] == "delay"


def test_a_longer_answer_is_shortened_where_the_request_allows_it_as_far_as_it_does() -> None:
    capped = msgspec.structs.replace(LANE, longest=60)
    facts = asking(cpu=capped, allow_shrink=True, least_units=50)
    decision = admission.decide(facts)
    assert (decision.action, decision.rule, decision.units) == ("reroute-cpu", "no-gpu", 60)
    as_asked = admission.decide(msgspec.structs.replace(facts, max_units=60))
    assert (as_asked.action, as_asked.units) == ("reroute-cpu", None)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {},
            "answer of 100 tokens is asked for, and the CPU lane gives 60 at most; the request allows no shorter one",
        ),
        ({"allow_shrink": True, "least_units": 61}, "less than 61 would be left"),
    ],
)
def test_else_the_lane_does_not_take_it_and_says_why(changes: dict[str, object], told: str) -> None:
    facts = asking(cpu=msgspec.structs.replace(LANE, longest=60), **changes)
    decision = admission.decide(facts)
    assert (decision.action, decision.rule) == ("refuse", "no-lane")
    assert told in why_not_cpu(decision)
    # The GPU lane gives as long an answer as ever, and what was accepted is not cut when it moves.
    assert outcome(msgspec.structs.replace(facts, gpu=LANE)) == ("run-gpu", "gpu-ready")
    moved = admission.decide(msgspec.structs.replace(facts, second_look=True))
    assert (moved.action, moved.units) == ("reroute-cpu", None)


def test_a_shortened_answer_counts_for_the_lanes_length() -> None:
    short = msgspec.structs.replace(LANE, longest=60, context=160)
    gpu = msgspec.structs.replace(LANE, serving=False, out_reason="device-lost", context=200)
    allowed = asking(cpu=short, gpu=gpu, allow_shrink=True, least_units=50)
    assert admission.decide(allowed).units == 60
    refused = admission.decide(asking(cpu=short, gpu=gpu))
    assert refused.action == "refuse"
    assert "200 tokens are asked for, and the lane holds 160" in why_not_cpu(refused)
