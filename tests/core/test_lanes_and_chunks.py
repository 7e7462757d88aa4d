"""Whose turn it is, and how much is done between two checkpoints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.chunks import cap_for, chunk_size
from core.contract import PathFacts, pair_class
from core.lanes import turn_us


def test_batch_waits_a_minute_behind_and_no_longer() -> None:
    assert turn_us("interactive", 59_999_999) < turn_us("batch", 0) < turn_us("interactive", 60_000_001)


def test_chunks_grow_by_position() -> None:
    done, sizes = 0, []
    while done < 30:
        sizes.append(chunk_size(done, 8))
        done += sizes[-1]
    assert sizes == [2, 4, 8, 8, 8]


@given(st.integers(0, 500), st.integers(1, 64))
def test_chunks_stay_between_one_and_the_cap(done: int, cap: int) -> None:
    assert 1 <= chunk_size(done, cap) <= cap


@given(st.integers(1, 64), st.integers(0, 200))
def test_a_later_position_never_has_a_smaller_chunk(cap: int, done: int) -> None:
    assert chunk_size(done, cap) <= chunk_size(done + 1, cap)


HERE = PathFacts("e/1", "c", "host")
CARD = PathFacts("e/1", "c", "nvidia")


def test_only_the_same_build_on_the_host_one_at_a_time_is_identical() -> None:
    assert pair_class(HERE, HERE) == "identical"
    assert pair_class(CARD, HERE) == "none"
    assert pair_class(HERE, PathFacts("e/2", "c", "host")) == "none"
    assert pair_class(HERE, PathFacts("e/1", "d", "host")) == "none"
    assert pair_class(PathFacts("e/1", "", "host"), PathFacts("e/1", "", "host")) == "none"


def test_several_at_once_are_faithful_to_one_at_a_time() -> None:
    """Other batches change the last bits of a result, so that a token may flip: proved of both engines."""
    assert pair_class(PathFacts("e/1", "c", "host", slots=4), HERE) == "faithful"
    assert pair_class(HERE, PathFacts("e/1", "c", "host", slots=4)) == "faithful"


def test_a_proof_decides_about_unlike_paths_and_never_about_unlike_contracts() -> None:
    assert pair_class(CARD, HERE, "faithful") == "faithful"
    assert pair_class(CARD, PathFacts("e/1", "d", "host"), "identical") == "none"


@pytest.mark.parametrize(
    ("tps", "most", "cap"),
    [
        (None, 16, 16),
        (1000.0, 16, 16),
        (64.0, 16, 16),
        (63.9, 16, 8),
        (40.0, 16, 8),
        (8.0, 16, 2),
        (0.1, 16, 2),
        (40.0, 1, 1),
    ],
)
def test_a_chunk_takes_about_a_quarter_of_a_second(tps: float | None, most: int, cap: int) -> None:
    assert cap_for(tps, most) == cap
