"""Threads are granted so that there are never more of them than cores, and nobody starves."""

from hypothesis import given
from hypothesis import strategies as st

from core.cores import grant

STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["ask", "leave"])), max_size=60)


@given(st.integers(1, 12), st.integers(0, 3), STEPS)
def test_never_more_threads_than_cores(total: int, reserve: int, steps: list[tuple[int, str]]) -> None:
    held: dict[int, int] = {}
    for runner, step in steps:
        held.pop(runner, None)
        if step == "ask":
            busy = len(held) + 1
            granted = grant(total=total, reserve=reserve, busy=busy, held_by_others=sum(held.values()))
            assert granted >= 0
            held[runner] = granted
        assert sum(held.values()) <= total


@given(st.integers(1, 12), st.integers(0, 3), st.permutations(range(4)), st.integers(1, 4))
def test_nobody_starves_where_there_is_a_core_for_each(total: int, reserve: int, order: list[int], busy: int) -> None:
    """A lane that took all it could get gives way when it asks again, which it does at each chunk."""
    if total < busy:
        return
    runners = [runner for runner in order if runner < busy]
    held = {runners[0]: grant(total=total, reserve=reserve, busy=1, held_by_others=0)}
    for _round in range(2):
        for runner in runners:
            held.pop(runner, None)
            held[runner] = grant(total=total, reserve=reserve, busy=busy, held_by_others=sum(held.values()))
    assert min(held.values()) >= 1


@given(st.integers(1, 12), st.integers(0, 3))
def test_a_lane_alone_may_have_all_but_the_reserve(total: int, reserve: int) -> None:
    assert grant(total=total, reserve=reserve, busy=1, held_by_others=0) == max(1, total - reserve)


def test_nothing_is_taken_from_others() -> None:
    assert grant(total=4, reserve=1, busy=2, held_by_others=4) == 0
    assert grant(total=4, reserve=1, busy=2, held_by_others=3) == 1, "the reserve gives way before a lane starves"
