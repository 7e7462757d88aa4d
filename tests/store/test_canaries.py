"""Canaries of several lanes beside each other: who is believed, and what is too slow."""

from functools import partial

from desk import MODEL, Desk

from core import events as ev
from core.policy import Policy
from store import breakers, laneviews
from store.journal import Tx

FIRST = (1, 2, 3)
OTHER = (9, 9, 9)


def opened(desk: Desk) -> str:
    found = desk.run(lambda tx: breakers.breaker_of(tx, "sim-0"))
    assert found is not None
    return f"{found.state} {found.rule}".strip()


def test_whoever_contradicts_the_processor_is_wrong(desk: Desk) -> None:
    assert desk.sing(FIRST, lane="cpu") == "recorded"
    assert desk.sing(OTHER) == "wrong"
    assert opened(desk) == "open canary-wrong"
    (told,) = [record for record in desk.events("device-sim-0") if record.type == "CanaryAnswered"]
    assert "first unit" in told.event.note  # type: ignore[attr-defined]


def test_having_been_first_does_not_help(desk: Desk) -> None:
    """A card that is fast and wrong is up before the CPU lane, and its garbage is what was recorded."""
    waiting = desk.admit()
    assert desk.sing(OTHER) == "recorded"
    assert desk.sing(FIRST, lane="cpu") == "recorded"
    assert opened(desk) == "open canary-wrong"
    assert desk.state(waiting).lane == "cpu"
    desk.run(lambda tx: breakers.half_open(tx, "sim-0", "its cooldown is over", actor="test"))
    assert desk.sing(OTHER) == "wrong", "its own record is not believed any more"
    desk.run(lambda tx: breakers.half_open(tx, "sim-0", "its cooldown is over", actor="test"))
    assert desk.sing(FIRST) == "recorded"
    assert desk.sing(FIRST) == "right"
    assert opened(desk) == "closed"
    assert desk.verify().ok


def test_the_first_unit_is_enough_and_later_answers_are_its_own(desk: Desk) -> None:
    """Another build may tip a word; what it said itself is compared whole."""
    desk.sing(FIRST, lane="cpu")
    assert desk.sing((1, 7, 8)) == "recorded"
    assert desk.sing((1, 7, 8)) == "right"
    assert desk.sing(FIRST) == "wrong"


def test_another_contract_is_another_matter(desk: Desk) -> None:
    desk.sing(FIRST, lane="cpu")
    desk.run(lambda tx: tx.execute("UPDATE lanes SET contract='other' WHERE lane='gpu'"))
    assert desk.sing(OTHER) == "recorded"
    assert opened(desk) == "closed"


def answer(tx: Tx, took_us: int) -> str:
    row = laneviews.lane_row(tx, "gpu", MODEL)
    assert row is not None
    path, policy = laneviews.path_of(tx, row), Policy(slow_factor=0.2)
    return breakers.answered(tx, "sim-0", path, FIRST, policy, runner="gpu-1", took_us=took_us)


def test_a_right_answer_that_is_slow_does_not_bring_it_back(desk: Desk) -> None:
    slow, quick = partial(answer, took_us=5_100_000), partial(answer, took_us=1_100_000)
    assert desk.run(partial(answer, took_us=1_000_000)) == "recorded"
    assert desk.run(slow) == "right", "asked for its answer only, while nobody doubts its speed"
    seen = ev.FaultCounted("slow", "slow", "gpu-1")
    desk.run(lambda tx: breakers.fault(tx, "sim-0", seen, desk.policy, actor="test"))
    assert opened(desk) == "open slow"
    desk.run(lambda tx: breakers.half_open(tx, "sim-0", "its cooldown is over", actor="test"))
    assert desk.run(quick) == "right"
    assert desk.run(slow) == "slow"
    assert opened(desk) == "open canary-slow"
    desk.run(lambda tx: breakers.half_open(tx, "sim-0", "its cooldown is over", actor="test"))
    assert [desk.run(quick), desk.run(quick)] == ["right", "right"]
    assert opened(desk) == "closed"
    assert desk.verify().ok


def test_what_comes_while_it_is_open_is_counted_under_that_opening(desk: Desk) -> None:
    seen = ev.FaultCounted("worker", "killed", "gpu-1")
    for _ in range(5):
        desk.run(lambda tx: breakers.fault(tx, "sim-0", seen, desk.policy, actor="test", cause=1))
    records = desk.events("device-sim-0")
    (opening,) = [record.seq for record in records if record.type == "BreakerOpened"]
    causes = [record.cause_seq for record in records if record.type == "FaultCounted"]
    assert causes == [1, 1, 1, opening, opening]
