"""What loads were seen to take: up at once, down slowly; and what stays behind each time is a leak."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.learned import Learned, leaking, observe

MIB = 1 << 20


def test_the_first_load_replaces_the_formula() -> None:
    assert observe(None, 1000 * MIB, 1100 * MIB) == Learned(1000 * MIB, 1100 * MIB, 1100 * MIB, 1)


def test_a_growing_footprint_counts_at_once() -> None:
    before = Learned(1000 * MIB, 1100 * MIB, 1100 * MIB, 1)
    assert observe(before, 1000 * MIB, 1500 * MIB).value == 1500 * MIB


def test_a_shrinking_footprint_counts_slowly() -> None:
    state = Learned(1000 * MIB, 1600 * MIB, 1600 * MIB, 1)
    values = []
    for _ in range(40):
        state = observe(state, 1000 * MIB, 800 * MIB)
        values.append(state.value)
    assert values[0] == 1500 * MIB  # an eighth of the 800 between
    assert values == sorted(values, reverse=True)
    assert 800 * MIB <= values[-1] < 810 * MIB
    assert (state.last, state.loads) == (800 * MIB, 41)


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30))
def test_the_value_is_never_under_the_last_load(seen: list[int]) -> None:
    state = None
    for size in seen:
        state = observe(state, 1 << 30, size)
        assert size <= state.value <= max(seen)
        assert isinstance(state.value, int)


def test_300_mib_more_after_each_cycle_are_seen_by_the_fifth() -> None:
    baselines = [1000 * MIB + 300 * MIB * cycle for cycle in range(8)]
    assert [leaking(baselines[:cycle]) for cycle in range(1, 9)] == [False] * 4 + [True] * 4


@pytest.mark.parametrize(
    "baselines",
    [
        [],
        [1000 * MIB] * 9,
        [1000 * MIB, 1300 * MIB, 1600 * MIB, 1300 * MIB, 1600 * MIB, 1900 * MIB],  # something came back in between
        [1000 * MIB + 8 * MIB * cycle for cycle in range(9)],  # too little to be told from noise
        [4000 * MIB - 300 * MIB * cycle for cycle in range(9)],
    ],
)
def test_what_does_not_rise_each_time_is_no_leak(baselines: list[int]) -> None:
    assert not leaking(baselines)
