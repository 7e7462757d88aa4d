"""The breaker's rules, by hand: what counts, what opens it, for how long, and what closes it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import breaker
from core import events as ev
from core.breaker import Breaker
from core.decision import BreakerFacts
from core.replay import decide_again

SECOND = 1_000_000
DEFAULTS = BreakerFacts("closed", "worker", "killed", 1, 3, 120.0, 0, 30.0, 600.0)


def facts(**changes: object) -> BreakerFacts:
    return msgspec.structs.replace(DEFAULTS, **changes)


CASES = [
    # what is known                                                     action    rule
    (facts(fault="size", counted=50), "ignore", "not-the-device"),
    (facts(fault="host", counted=50), "ignore", "not-the-device"),
    (facts(fault="poison", counted=50), "ignore", "not-the-device"),
    (facts(counted=50, input_blamed=True), "ignore", "not-the-device"),
    (facts(counted=1), "count", "below-limit"),
    (facts(counted=2), "count", "below-limit"),
    (facts(counted=3), "open", "worker-faults"),
    (facts(counted=99, limit=0), "count", "below-limit"),
    (facts(counted=1, probation=True), "open", "relapse"),
    (facts(counted=1, probation=True, limit=0), "count", "below-limit"),
    (facts(counted=1, probation=True, input_blamed=True), "ignore", "not-the-device"),
    (facts(counted=1, probation=True, fault="size"), "ignore", "not-the-device"),
    (facts(fault="device", counted=1), "open", "device-fault"),
    (facts(fault="device", state="open", held=False), "open", "device-fault"),
    (facts(fault="device", state="open", held=True), "count", "is-open"),
    (facts(fault="slow", counted=1), "open", "slow"),
    (facts(state="open", counted=7), "count", "is-open"),
    (facts(state="half-open", counted=1), "open", "still-faulty"),
    (facts(state="half-open", fault="size"), "ignore", "not-the-device"),
    (facts(fault=None, right=0), "open", "canary-wrong"),
    (facts(fault=None, right=0, state="half-open"), "open", "canary-wrong"),
    (facts(fault=None, right=0, state="half-open", fault_kind="slow"), "open", "canary-slow"),
    (facts(fault=None, right=1, state="half-open", wanted=2), "count", "one-more"),
    (facts(fault=None, right=2, state="half-open", wanted=2), "close", "canaries-right"),
    (facts(fault=None, right=2, state="open", wanted=2), "ignore", "is-open"),
    (facts(fault=None, right=1), "ignore", "is-closed"),
]


@pytest.mark.parametrize(("known", "action", "rule"), CASES)
def test_each_rule(known: BreakerFacts, action: str, rule: str) -> None:
    decision = breaker.decide(known)
    assert (decision.action, decision.rule) == (action, rule)
    assert decision.rejected, "it says what it did not do, and why"
    assert decide_again(decision) == decision


@pytest.mark.parametrize(
    ("trips", "seconds"), [(0, 30), (1, 60), (2, 120), (3, 240), (4, 480), (5, 600), (6, 600), (4000, 600)]
)
def test_the_cooldown_doubles_up_to_the_longest(trips: int, seconds: float) -> None:
    assert breaker.cooldown_s(facts(trips=trips)) == seconds


def opened(cooldown_s: float, *, held: bool = False) -> ev.BreakerOpened:
    return ev.BreakerOpened("killed", breaker.decide(facts(counted=3)), int(cooldown_s * SECOND), held)


def answer(verdict: str) -> ev.CanaryAnswered:
    return ev.CanaryAnswered(verdict, "null/1@host", (1, 2), 5)  # type: ignore[arg-type]


def after(*events: tuple[int, ev.Event]) -> Breaker:
    found = Breaker()
    for at_s, event in events:
        found = breaker.apply(found, event, at_s * SECOND)
    return found


def test_only_faults_within_the_window_count() -> None:
    counted = ev.FaultCounted("worker", "killed", "gpu-1")
    found = after((10, counted), (100, counted), (129, counted))
    assert found.counted(129 * SECOND, 120 * SECOND) == 3
    assert found.counted(131 * SECOND, 120 * SECOND) == 2
    assert found.counted(500 * SECOND, 120 * SECOND) == 0


def test_it_ends_when_its_cooldown_is_over_unless_it_is_held() -> None:
    assert after((100, opened(30))).until_us() == 130 * SECOND
    assert after((100, opened(30, held=True))).until_us() is None
    assert Breaker().until_us() is None


def test_its_way_back() -> None:
    tried = after((100, opened(30)), (130, ev.BreakerHalfOpened("over")))
    assert (tried.state, tried.right, tried.trips) == ("half-open", 0, 1)
    once = breaker.apply(tried, answer("right"), 131 * SECOND)
    assert once.right == 1
    assert breaker.apply(once, answer("wrong"), 132 * SECOND).right == 0, "in a row"
    closed = breaker.apply(once, ev.BreakerClosed("canaries"), 133 * SECOND)
    assert (closed.state, closed.faults_us, closed.trips) == ("closed", (), 1)


def test_openings_are_forgotten_after_a_calm_window() -> None:
    closed = after((100, opened(30)), (130, ev.BreakerHalfOpened("over")), (131, ev.BreakerClosed("canaries")))
    assert breaker.calm(closed, 250 * SECOND, 120 * SECOND).trips == 1
    assert breaker.calm(closed, 251 * SECOND, 120 * SECOND).trips == 0


def test_what_found_it_anew_ends_a_hold() -> None:
    tried = after((100, opened(30, held=True)), (130, ev.BreakerHalfOpened("device-back")))
    assert not tried.held
    assert after((100, opened(30, held=True)), (101, answer("right"))).right == 0, "nobody asked while it is open"


@given(
    st.lists(st.sampled_from(["size", "host", "poison"]), max_size=30),
    st.sampled_from(["closed", "half-open", "open"]),
)
def test_faults_of_size_never_open_anything(faults: list[str], state: str) -> None:
    for number, fault in enumerate(faults):
        known = facts(fault=fault, counted=number + 1, state=state)
        assert breaker.decide(known).action == "ignore"


def test_faults_of_a_time_to_come_do_not_count() -> None:
    """The clock was set back by an hour: two faults lie ahead, and a device is calm all the same."""
    found = Breaker(faults_us=(3_700_000_000, 3_701_000_000, 100_000_000), since_us=3_702_000_000, trips=2)
    assert found.counted(101_000_000, 15_000_000) == 1
    assert breaker.calm(found, 101_000_000, 15_000_000).trips == 0
