"""Going back to the GPU lane, case by case; the seconds are worked out by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.decision import ReturnFacts
from core.returning import decide, gain_s, least_wait_s, tell_due

PLAIN: dict[str, Any] = {
    "wanted": True,
    "failover": "auto",
    "units": 40,
    "units_left": 600,
    "pair": "identical",
    "gpu_serving": True,
    "gpu_waiting": 0,
    "gpu_slots": 1,
    "spilling": False,
    "moves": 1,
    "on_cpu_s": 60.0,
    "least_s": 10.0,
    "least_gain_s": 5.0,
    "cpu_tps": 20.0,
    "gpu_tps": 60.0,
    "takeover_s": 1.0,
}


def facts(**changes: Any) -> ReturnFacts:
    return ReturnFacts(**(PLAIN | changes))


def test_it_pays() -> None:
    """600 units at 20 a second are 30 s here; at 60 a second 10 s there, and one second to get there: 19 s saved."""
    decision = decide(facts())
    assert (decision.action, decision.rule) == ("return-gpu", "gpu-is-back")
    assert gain_s(facts()) == pytest.approx(19.0)
    assert decision.rejected[0].reason == "going back saves 19.0 s"


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("return-off", {"wanted": False}),
        ("gpu-still-out", {"gpu_serving": False}),
        ("gpu-under-pressure", {"spilling": True}),
        ("gpu-busy", {"gpu_waiting": 1}),
        ("pair-not-alike", {"pair": "none"}),
        ("pair-not-alike", {"pair": "faithful", "failover": "identical"}),
        ("gpu-cannot-continue", {"cannot": True}),
        ("too-soon", {"on_cpu_s": 9.9}),
        ("too-soon", {"on_cpu_s": 39.0, "moves": 3}),  # 10 s, doubled twice
        ("rates-unknown", {"gpu_tps": None}),
        ("rates-unknown", {"cpu_tps": None}),
        ("rates-unknown", {"takeover_s": None}),
        ("not-worth-it", {"units_left": 150}),  # 7.5 - 2.5 - 1 = 4 s, less than 5
        ("not-worth-it", {"gpu_tps": 20.0}),  # as fast as here: only the takeover is lost
        ("not-worth-it", {"takeover_s": 21.0}),
    ],
)
def test_each_reason_to_stay(rule: str, changes: dict[str, Any]) -> None:
    decision = decide(facts(**changes))
    assert (decision.action, decision.rule) == ("stay-cpu", rule)
    assert decision.rejected[0].action == "return-gpu"
    assert decision.rejected[0].reason


@pytest.mark.parametrize(
    "changes",
    [
        {"units": 0, "pair": "none"},  # nothing was shown, so nothing can be contradicted
        {"pair": "faithful"},
        {"units": 0, "cannot": True},
        {"gpu_waiting": 1, "gpu_slots": 2},
        {"on_cpu_s": 10.0},
        {"on_cpu_s": 40.0, "moves": 3},
        {"least_gain_s": -1.0, "gpu_tps": None, "cpu_tps": None, "takeover_s": None},
        {"least_gain_s": -1.0, "units_left": 1},
    ],
)
def test_each_way_to_go(changes: dict[str, Any]) -> None:
    assert decide(facts(**changes)).rule == "gpu-is-back"


def test_where_the_cpu_lane_is_out_only_what_cannot_be_stands_in_the_way() -> None:
    eager = {"cpu_out": True, "wanted": False, "gpu_waiting": 9, "on_cpu_s": 0.0, "gpu_tps": None, "spilling": True}
    decision = decide(facts(**eager))
    assert (decision.rule, decision.rejected[0].reason) == ("gpu-is-back", "the CPU lane cannot work")
    for rule, change in (
        ("gpu-still-out", {"gpu_serving": False}),
        ("pair-not-alike", {"pair": "none"}),
        ("gpu-cannot-continue", {"cannot": True}),
    ):
        assert decide(facts(**(eager | change))).rule == rule


SLOWER = {"units_left": 600, "cpu_tps": 60.0}
"""600 units at 60 a second are 10 s on either lane, so only the takeover is lost."""


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("gpu-is-back", {"cpu_tps": None, "gpu_tps": None, "takeover_s": None}),
        ("gpu-is-back", SLOWER | {"takeover_s": 5.0}),  # 5 s are lost, and 5 may be
        ("not-worth-it", SLOWER | {"takeover_s": 5.1}),
        ("gpu-is-back", SLOWER | {"takeover_s": 500.0, "units": 0}),  # nothing was computed that could be lost
        ("gpu-is-back", SLOWER | {"takeover_s": 500.0, "least_gain_s": -1.0}),
        ("too-soon", {"on_cpu_s": 9.9}),
        ("too-soon", {"on_cpu_s": 39.0, "moves": 3, "units": 0}),
        ("gpu-busy", {"gpu_waiting": 1}),
        ("gpu-still-out", {"gpu_serving": False}),
        ("return-off", {"wanted": False}),
        ("pair-not-alike", {"pair": "none"}),
    ],
)
def test_what_only_waits_needs_no_gain(rule: str, changes: dict[str, Any]) -> None:
    assert decide(facts(**({"waits": True} | changes))).rule == rule


@pytest.mark.parametrize(
    ("on_cpu_s", "told_s", "same", "due"),
    [
        (9.9, 0.0, False, False),
        (10.0, 0.0, False, True),  # the first word
        (19.9, 10.0, False, False),  # another reason, too soon after the last word
        (20.0, 10.0, False, True),
        (59.9, 10.0, True, False),
        (60.0, 10.0, True, True),  # the first full minute
        (60.0, 59.0, True, True),  # a full minute is a full minute
        (119.9, 60.0, True, False),
        (120.0, 60.0, True, True),
        (400.0, 60.0, True, True),  # minutes in which nobody looked are told once
    ],
)
def test_when_it_is_told_why_it_stays(on_cpu_s: float, told_s: float, same: bool, due: bool) -> None:
    assert tell_due(on_cpu_s, told_s, same=same) is due


@given(st.integers(0, 100))
def test_the_wait_doubles_with_each_move_and_stays_a_number(moves: int) -> None:
    wait = least_wait_s(facts(moves=moves))
    assert wait == min(10.0 * 2 ** max(0, moves - 1), 10.0 * 2**16)


@given(
    st.floats(0.1, 1e3),
    st.floats(0.1, 1e3),
    st.floats(0, 1e3),
    st.integers(0, 100_000),
)
def test_a_faster_gpu_never_turns_going_into_staying(cpu: float, gpu: float, takeover: float, left: int) -> None:
    before = decide(facts(cpu_tps=cpu, gpu_tps=gpu, takeover_s=takeover, units_left=left))
    after = decide(facts(cpu_tps=cpu, gpu_tps=gpu * 2, takeover_s=takeover, units_left=left))
    assert before.action == "stay-cpu" or after.action == "return-gpu"
