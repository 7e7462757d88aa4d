"""Who stops for a canary, and what is taken up meanwhile; the clock goes only when told to."""

import pytest

from runners import doubts
from runners.doubts import Doubts


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(doubts, "time", made)
    return made


def test_others_make_way_until_a_canary_was_asked(clock: Clock) -> None:
    """Whoever shows no sign may end by itself for two seconds; nothing is taken up however long that takes."""
    made = Doubts()
    assert (made.open, made.holds, made.makes_way()) == (False, False, False)
    assert made.stops("a")
    assert (made.open, made.holds, made.makes_way()) == (True, True, False)
    clock.now += 2.0
    assert made.makes_way()
    clock.now += 3600.0
    assert (made.open, made.holds, made.makes_way()) == (True, True, True)
    made.settled()
    assert (made.open, made.holds, made.makes_way()) == (False, False, False)


def test_each_stops_once_and_none_just_after_a_canary(clock: Clock) -> None:
    made = Doubts()
    assert made.stops("a")
    made.settled()
    assert not made.stops("b")
    clock.now += 5.0
    assert not made.stops("a")
    assert made.stops("b")


def test_what_could_not_go_on_is_not_stopped_and_the_lane_is_kept_free_for_a_while(clock: Clock) -> None:
    made = Doubts(resumes=False)
    assert not made.stops("a")
    assert (made.open, made.holds) == (True, True)
    clock.now += 10.0
    assert (made.open, made.holds, made.makes_way()) == (True, False, False)
