"""Ranges of time, worked out by hand; and what has no end that anybody knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import eta
from core.eta import Eta, Hold, Pace, Work

PACE = Pace("cpu", prefill=100.0, decode=10.0)
KNOWS = Pace("cpu", prefill=100.0, decode=10.0, short=20, answers=12)


def line(running: list[Work], waiting: list[Work], pace: Pace = PACE) -> eta.Line:
    made = eta.line_up(running, waiting, pace)
    assert made is not None
    return made


def whole(prompt: int, most: int, done: int = 0) -> Work:
    return Work(prompt, prompt, most, done)


def test_alone_it_reads_then_writes() -> None:
    # 200 tokens at 100/s are 2 s, 64 at 10/s are 6.4 s.
    found = eta.estimate(whole(200, 64), line([], []), 0, PACE)
    assert (found.low_s, found.high_s, found.start_high_s) == (8.4, 8.4, 0.0)
    assert found.basis == (
        "nobody waits before it; 200 tokens to read and at most 64 to write, at 100 tokens/s and 10 tokens/s as the "
        "CPU lane did; the low end is its own work alone"
    )


def test_those_ahead_use_all_they_may_at_the_high_end_and_nothing_at_the_low() -> None:
    # At work: 30 left (3 s). Ahead: 100 to read, 50 to write (6 s). Own: 200 and 64 (8.4 s).
    queue = line([Work(0, 0, 30, 34)], [whole(100, 50), whole(200, 64)])
    found = eta.estimate(whole(200, 64), queue, 1, PACE)
    assert (found.low_s, found.high_s) == (8.4, 17.4)
    assert (found.start_low_s, found.start_high_s) == (0.0, 9.0)
    assert found.basis.startswith("1 wait before it; 300 tokens to read and at most 144 to write")


def test_short_answers_make_the_low_end() -> None:
    # At work: 34 done, so a short answer of 20 is over: 1 token, 0.1 s. Ahead: 1 s + 2 s. Own: 2 s + 2 s.
    queue = line([Work(0, 0, 30, 34)], [whole(100, 50), whole(200, 64)], KNOWS)
    found = eta.estimate(whole(200, 64), queue, 1, KNOWS)
    assert (found.low_s, found.high_s) == (7.1, 17.4)
    assert "answers of 20 tokens, as a quarter of the last 12 were" in found.basis


def test_places_work_side_by_side() -> None:
    # Two places: 3 s and 5 s at work. The next takes the first (3 s) until 3 + 6 = 9 s; the one after it takes the
    # second at 5 s; a third would begin at 9 s, when the first is free again (the second is at 5 + 8 = 13 s).
    pace = Pace("gpu", prefill=100.0, decode=10.0, places=2)
    queue = line([whole(0, 30), whole(0, 50)], [whole(100, 50), whole(0, 80)], pace)
    assert queue.high == (3.0, 5.0, 9.0)


def test_a_saved_state_spares_reading_at_the_low_end() -> None:
    found = eta.estimate(Work(50, 250, 64), line([], []), 0, PACE)
    assert (found.low_s, found.high_s) == (6.9, 8.9)  # 0.5 or 2.5 s of reading, 6.4 s of writing


def test_reading_that_was_never_measured_takes_between_nothing_and_as_long_as_writing() -> None:
    pace = Pace("cpu", decode=10.0)
    found = eta.estimate(whole(200, 64), line([], [], pace), 0, pace)
    assert (found.low_s, found.high_s) == (6.4, 26.4)


def test_without_a_speed_nothing_is_said() -> None:
    assert eta.line_up([], [], Pace("cpu", prefill=100.0)) is None
    found = eta.taken_up(whole(10, 10), Pace("gpu"))
    assert found == Eta(None, None, "unknown: how fast the GPU lane is was not measured yet")


def test_what_must_pass_before_comes_first() -> None:
    loading = eta.estimate(whole(200, 64), line([], []), 0, PACE, Hold(3.0, 3.0, "it loads"))
    assert (loading.low_s, loading.high_s) == (11.4, 11.4)
    out = eta.estimate(whole(200, 64), line([], []), 0, PACE, Hold(24.0, None, "its device is tried again in 24 s"))
    assert (out.low_s, out.high_s, out.start_high_s) == (32.4, None, None)
    assert out.basis.startswith("its device is tried again in 24 s; nobody waits before it")


def test_beyond_what_was_looked_at_the_others_are_like_those() -> None:
    queue = line([], [whole(100, 50)] * 4)  # 6 s each, four of them looked at
    found = eta.estimate(whole(0, 10), queue, 12_000, PACE)
    assert found.start_high_s == 72_000.0
    assert found.basis.startswith("12,000 wait before it; 1,200,000 tokens to read and at most 600,010 to write")


def test_by_its_own_chunks() -> None:
    found = eta.by_chunks(40, [0.1, 0.25, 0.0], "cpu")
    assert (found.low_s, found.high_s) == (4.0, 10.0)
    assert found.basis == "40 units left at most, at the rates of its own last 2 chunks on the CPU lane"


@pytest.mark.parametrize(
    ("start", "told"), [(None, None), (0.0, 1), (0.2, 1), (1.1, 2), (119.5, 120), (121.0, 120), (9e9, 120)]
)
def test_callers_are_told_whole_seconds_from_one_to_two_minutes(start: float | None, told: int | None) -> None:
    assert eta.wait_s(start) == told


WORKS = st.builds(whole, st.integers(0, 4000), st.integers(0, 4000), st.integers(0, 100))
PACES = st.builds(
    Pace,
    st.just("cpu"),
    prefill=st.none() | st.floats(10, 1000),
    decode=st.floats(0.5, 10),
    places=st.integers(1, 4),
    short=st.none() | st.integers(0, 500),
)


@given(st.lists(WORKS, max_size=4), st.lists(WORKS, max_size=8), WORKS, PACES)
def test_the_low_end_is_never_above_the_high_one_and_nobody_overtakes(
    running: list[Work], waiting: list[Work], own: Work, pace: Pace
) -> None:
    queue = line(running, waiting, pace)
    starts = []
    for position in range(len(waiting) + 1):
        found = eta.estimate(own, queue, position, pace)
        assert found.high_s is not None
        assert found.low_s is not None
        assert 0 <= found.low_s <= found.high_s + 0.001
        starts.append(found.start_high_s)
    assert starts == sorted(starts)


def test_of_one_shorter_than_short_answers_nothing_is_said_of_them() -> None:
    """It may write 16, and a quarter of the last 12 answers had up to 20."""
    assert "low end" not in eta.taken_up(whole(0, 16), KNOWS).basis
    assert "low end" not in eta.estimate(whole(0, 16), line([], [], KNOWS), 0, KNOWS).basis
    assert "low end takes answers of 20 tokens" in eta.taken_up(whole(0, 64), KNOWS).basis
    behind = eta.estimate(whole(0, 16), line([whole(0, 64)], [], KNOWS), 0, KNOWS)
    assert "low end takes answers of 20 tokens" in behind.basis
