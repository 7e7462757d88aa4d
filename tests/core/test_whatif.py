"""Another policy over recorded decisions: what would have changed, and what it would have saved and risked."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import admission
from core.decision import AdmissionFacts, HostFacts, LaneFacts, Need
from core.ledger import DeviceFacts
from core.whatif import Asked, OtherPolicy, Tally, ask, count, with_policy

GIB = 1 << 30
LANE = LaneFacts(True, True, None, 0, 64, 100_000)
CARD = DeviceFacts("gpu-0", "ok", 8 * GIB, 0, 2 * GIB, GIB, age_s=0.5)
CAPPED = msgspec.structs.replace(CARD, cap=GIB)
OLD = msgspec.structs.replace(CARD, age_s=9.0, margin=GIB)
BLIND = msgspec.structs.replace(CARD, used=None, state="blind")
FACTS = AdmissionFacts(100, 100, "auto", False, LANE, LANE, device=CARD, need=Need(5 * GIB, 0))


def recorded(facts: AdmissionFacts = FACTS, **changes: object) -> Asked:
    return Asked("req_1", 1, 0, admission.decide(msgspec.structs.replace(facts, **changes)))  # type: ignore[arg-type]


def other(asked: Asked, **policy: object) -> tuple[str, str, int] | None:
    changed = ask(asked, OtherPolicy(**policy))  # type: ignore[arg-type]
    return None if changed is None else (changed.other_action, changed.other_rule, changed.over)


def test_the_policy_in_force_changes_nothing() -> None:
    assert recorded().decision.action == "run-gpu"
    assert ask(recorded(), OtherPolicy()) is None
    assert ask(recorded(), OtherPolicy(headroom_bytes=GIB)) is None


def test_more_headroom_moves_what_ran() -> None:
    assert other(recorded(), headroom_bytes=GIB + 1) == ("reroute-cpu", "no-room", 0)


def test_less_headroom_avoids_a_failover_and_tells_the_risk() -> None:
    moved = recorded(need=Need(5 * GIB + 500, 0))
    assert moved.decision.action == "reroute-cpu"
    assert other(moved, headroom_bytes=GIB - 500) == ("run-gpu", "gpu-ready", 500)
    assert other(moved, headroom_bytes=GIB - 499) is None


@pytest.mark.parametrize(
    ("changes", "policy", "expected"),
    [
        ({}, {"device_cap_bytes": 4 * GIB}, ("reroute-cpu", "never-fits", 0)),
        ({"device": CAPPED}, {"device_cap_bytes": 0}, ("run-gpu", "gpu-ready", 4 * GIB)),
        ({"spilling": True}, {"ignore_pressure": True}, ("run-gpu", "gpu-ready", 0)),
        (
            {"gpu": msgspec.structs.replace(LANE, waiting=10, limit=10)},
            {"gpu_queue_limit": 11},
            ("run-gpu", "gpu-ready", 0),
        ),
        ({"device": OLD}, {"reading_max_age_s": 10.0}, ("run-gpu", "gpu-ready", GIB)),
        ({"device": BLIND}, {"blind_takes_work": True}, ("run-gpu", "gpu-ready", 5 * GIB)),
        (
            {"need": Need(0, GIB // 30), "allow_shrink": True, "least_units": 60},
            {"shrink_floor": 0.1},
            ("shrink", "fits-shrunk-now", 0),
        ),
        (
            {"need": Need(6 * GIB, 0), "host": HostFacts(4 * GIB, GIB, 2 * GIB, 16 * GIB)},
            {"host_floor": 0.5},
            ("refuse", "host-memory", 0),
        ),
    ],
)  # fmt: skip
def test_each_value_can_be_tried(
    changes: dict[str, object], policy: dict[str, object], expected: tuple[str, str, int]
) -> None:
    assert other(recorded(**changes), **policy) == expected


def test_a_tally_counts_what_was_gained_and_risked() -> None:
    moved, ran = recorded(need=Need(5 * GIB + 500, 0)), recorded()
    refused = recorded(need=Need(5 * GIB + 300, 0), failover="gpu-only")
    tally = Tally()
    count(tally, [moved, ran, refused, moved], OtherPolicy(headroom_bytes=0))
    assert (tally.decisions, tally.same, tally.changed) == (4, 1, 3)
    assert tally.moves == {"reroute-cpu -> run-gpu": 2, "refuse -> run-gpu": 1}
    assert (tally.failovers_avoided, tally.refusals_avoided) == (2, 1)
    assert (tally.failovers_added, tally.refusals_added) == (0, 0)
    assert (tally.risks, tally.most_over_bytes) == (3, 500)
    assert len(tally.examples) == 3
    strict = Tally()
    count(strict, [ran] * 50, OtherPolicy(headroom_bytes=4 * GIB))
    assert (strict.failovers_added, strict.risks, len(strict.examples)) == (50, 0, 20)


def test_two_tallies_do_not_share_their_counts() -> None:
    first, second = Tally(), Tally()
    count(first, [recorded(need=Need(6 * GIB, 0))], OtherPolicy(headroom_bytes=0))
    assert first.moves
    assert first.examples
    assert (second.moves, second.examples) == ({}, [])


@given(st.integers(0, 9 * GIB), st.integers(0, 9 * GIB), st.integers(0, 4 * GIB), st.integers(0, 4 * GIB))
def test_it_is_the_decision_that_the_other_policy_makes(need: int, used: int, headroom: int, tried: int) -> None:
    card = msgspec.structs.replace(CARD, used=used, headroom=headroom)
    facts = msgspec.structs.replace(FACTS, device=card, need=Need(need, 0))
    wanted = msgspec.structs.replace(facts, device=msgspec.structs.replace(card, headroom=tried))
    assert with_policy(facts, OtherPolicy(headroom_bytes=tried)) == wanted
    decision = admission.decide(wanted)
    changed = ask(recorded(facts), OtherPolicy(headroom_bytes=tried))
    if changed is not None:
        assert (changed.other_action, changed.other_rule) == (decision.action, decision.rule)
        if changed.other_action == "run-gpu":
            assert changed.over > 0
