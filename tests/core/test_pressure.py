"""Spilling begins at once and ends late: a reading that swings moves nothing to and fro."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.pressure import Pressure, step

SECOND = 1_000_000


def run(shares: list[float], *, high: float, low: float, calm_s: float = 30.0, every_s: float = 1.0) -> list[bool]:
    """Whether it spills after each reading, one every `every_s`."""
    state, told = Pressure(), []
    for n, share in enumerate(shares):
        now_us = int(n * every_s * SECOND)
        state = step(state, share, now_us, high=high, low=low, calm_for_us=int(calm_s * SECOND))
        told.append(state.spilling)
    return told


def transitions(told: list[bool]) -> int:
    return sum(before != after for before, after in pairwise([False, *told]))


def test_swinging_around_a_mark_makes_at_most_two_transitions() -> None:
    # 89 and 91 % in turn for ten minutes with the upper mark at 90: one beginning, and no end.
    swinging = [0.89, 0.91] * 300
    assert transitions(run(swinging, high=0.90, low=0.85)) == 1
    assert transitions(run(swinging + [0.5] * 60, high=0.90, low=0.85)) == 2
    # Even with both marks on the same spot.
    assert transitions(run(swinging + [0.5] * 60, high=0.90, low=0.90)) == 2


def test_it_spills_above_95_and_returns_after_30_seconds_at_85() -> None:
    told = run([0.95, 0.951, 0.90, *[0.85] * 40], high=0.95, low=0.85)
    assert told[:3] == [False, True, True]
    # Calm began with the reading at second 3; the one at second 33 is the first that ends it.
    assert told.index(False, 1) == 33
    assert not any(told[33:])


def test_one_reading_above_the_lower_mark_begins_the_calm_anew() -> None:
    told = run([0.96, *[0.80] * 29, 0.86, *[0.80] * 40], high=0.95, low=0.85)
    assert all(told[:61])
    assert told.index(False) == 61


@pytest.mark.parametrize("share", [0.0, 0.85, 0.95])
def test_without_pressure_nothing_begins(share: float) -> None:
    assert step(Pressure(), share, 0, high=0.95, low=0.85, calm_for_us=0) == Pressure()


@given(st.lists(st.floats(0, 1), max_size=60))
def test_it_never_ends_before_the_calm_has_lasted(shares: list[float]) -> None:
    told = run(shares, high=0.95, low=0.85, calm_s=5)
    for n, (before, after) in enumerate(pairwise([False, *told])):
        if not before and after:
            assert shares[n] > 0.95
        if before and not after:
            assert all(share <= 0.85 for share in shares[n - 5 : n + 1])
