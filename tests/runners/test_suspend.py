"""A machine that slept: noticed by clocks that a hand sets."""

import pytest
from desk import Desk, HandClock

from core import events as ev
from core.breaker import Breaker
from runners.suspend import Sleep
from store import breakers

SECOND = 1_000_000


def test_sleep_is_what_the_clock_since_boot_is_ahead(clock: HandClock) -> None:
    sleep = Sleep(clock)
    clock.go(5)
    assert sleep.look() == 0
    assert sleep.awake_s() == float("inf")
    clock.go(0.2)
    clock.slept += 7200 * SECOND
    clock.now += 7200 * SECOND
    assert sleep.look() == 7200 * SECOND
    assert sleep.awake_s() == 0
    clock.go(3)
    assert (sleep.look(), sleep.awake_s()) == (0, 3.0)


@pytest.mark.parametrize(("jump_s", "slept_s"), [(7200, 7200), (10, 10), (9, 0), (-7200, 0)])
def test_a_wall_clock_that_jumps_ahead_is_sleep_from_outside(clock: HandClock, jump_s: int, slept_s: int) -> None:
    sleep = Sleep(clock)
    clock.now += jump_s * SECOND
    assert sleep.look() == slept_s * SECOND
    clock.go(1)
    assert sleep.look() == 0


def test_a_clock_that_was_not_set_yet_does_not_shorten_it(clock: HandClock) -> None:
    sleep = Sleep(clock)
    clock.slept += 60 * SECOND
    clock.now -= 5 * SECOND
    assert sleep.look() == 60 * SECOND


def test_each_device_is_tried_before_it_takes_work(timed: Desk, clock: HandClock) -> None:
    timed.sing((1, 2, 3))
    waiting = timed.admit()
    timed.run(lambda tx: breakers.host_resumed(tx, 7200 * SECOND, actor="test"))
    assert timed.claim() is None
    assert timed.state(timed.admit(failover="auto")).lane == "gpu", "nobody is there to be asked, so it may wait"
    timed.sing()
    assert timed.take().state.id == waiting
    told = timed.events("device-sim-0")
    kinds = ["BreakerHalfOpened", "CanaryAnswered", "CanaryAnswered", "BreakerClosed"]
    assert [record.type for record in told][-4:] == kinds
    (resumed,) = [record for record in timed.events("service") if record.type == "HostResumed"]
    assert resumed.event == ev.HostResumed(7200 * SECOND)
    assert told[-4].cause_seq == resumed.seq
    assert timed.verify().ok


def test_what_is_open_already_stays_so(timed: Desk) -> None:
    timed.run(lambda tx: breakers.device_lost(tx, "sim-0", timed.policy, reason="gone", actor="test"))
    timed.run(lambda tx: breakers.host_resumed(tx, SECOND, actor="test"))
    found = timed.run(lambda tx: breakers.breaker_of(tx, "sim-0"))
    assert isinstance(found, Breaker)
    assert (found.state, found.held) == ("open", True)
