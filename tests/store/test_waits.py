"""How requests stand in a real store, how long they may take, and when who was turned away may come again."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from desk import Desk, HandClock

from core import events as ev
from core.policy import Policy
from store import breakers, house, laneviews, rates, waits
from store.clock import boot_id
from store.database import Paths
from store.submit import RETRY_AFTER_S


@pytest.fixture
def cold(paths: Paths, clock: HandClock) -> Iterator[Desk]:
    """One lane, of which nothing is known."""
    desk = Desk(paths, clock)
    desk.open_lanes(gpu=None)
    yield desk
    desk.close()


@pytest.fixture
def cpu_only(cold: Desk) -> Desk:
    """The same, measured at 100 tokens a second to read and 10 to write, its runner up."""
    measure(cold, "cpu", 100.0, 10.0)
    runner(cold, "cpu")
    return cold


def measure(desk: Desk, lane: Any, prefill: float, decode: float) -> None:
    desk.run(lambda tx: rates.see(tx, lane, "null", rates.Rates(prefill, decode)))


def runner(desk: Desk, lane: str, state: str = "idle", took_s: float = 2.5) -> None:
    name = f"{lane}-null-1"

    def unit(tx: Any) -> None:
        tx.append(f"runner-{name}", ev.RunnerLoaded(int(took_s * 1e6), 0), actor=name)
        tx.execute(
            "INSERT INTO runners (id, lane, model, device, engine, pid, ticks, boot_id, state, beat_us, started_us) "
            "VALUES (?,?,'null','x','null',1,1,?,?,?,?)",
            (name, lane, boot_id(), state, tx.now_us, tx.now_us),
        )

    desk.run(unit)


def outlooks(desk: Desk, *ids: str) -> list[waits.Outlook]:
    states = [desk.state(one) for one in ids]
    found = desk.run(lambda tx: waits.look(tx, states))
    return [found[one] for one in ids]


def stand(desk: Desk, one: str) -> str:
    return outlooks(desk, one)[0].standing.status


def test_a_queue_is_counted_through(cpu_only: Desk, clock: HandClock) -> None:
    ids = []
    for _ in range(3):
        ids.append(cpu_only.admit())  # five tokens to read, 64 to write: 0.05 s and 6.4 s
        clock.go(1)
    claim = cpu_only.take("cpu")
    cpu_only.checkpoint(claim, 24)  # 40 left: 4 s
    first, second = outlooks(cpu_only, *ids[1:])
    assert [one.standing.status for one in (first, second)] == ["waiting", "waiting"]
    assert (first.position, first.eta.start_high_s, first.eta.high_s) == (0, 4.0, 10.45)
    assert (second.position, second.eta.start_high_s, second.eta.high_s) == (1, 10.45, 16.9)
    assert (second.eta.start_low_s, second.eta.low_s) == (0.0, 6.45)
    assert outlooks(cpu_only, ids[0])[0].standing.status == "running"


def test_short_answers_are_known_from_four_on(cpu_only: Desk) -> None:
    assert waits.short_of([3, 5, 9]) is None
    assert waits.short_of([3, 5, 9, 40]) == 3
    assert waits.short_of([1, 2, 3, 4, 5, 6, 7, 8]) == 2
    for units in (9, 3, 40, 5):
        cpu_only.admit()
        cpu_only.complete(cpu_only.take("cpu"), units)
    one = outlooks(cpu_only, cpu_only.admit())[0]
    assert one.eta.low_s == 0.35  # five to read, three to write
    assert one.eta.high_s == 6.45


def test_a_model_that_has_yet_to_be_loaded_is_waited_for(cold: Desk) -> None:
    measure(cold, "cpu", 100.0, 10.0)
    one = cold.admit()
    assert outlooks(cold, one)[0].eta.high_s is None
    assert "never seen" in outlooks(cold, one)[0].eta.basis
    runner(cold, "cpu", "loading", took_s=2.5)
    found = outlooks(cold, one)[0]
    assert (found.eta.low_s, found.eta.high_s) == (8.95, 8.95)
    assert "took 2.5 s the last time" in found.eta.basis


def test_after_a_failover_the_text_so_far_is_read_again(timed: Desk) -> None:
    measure(timed, "cpu", 100.0, 10.0)
    runner(timed, "cpu")
    one = timed.admit()
    timed.checkpoint(timed.take(), 45)
    timed.fault(one)
    found = outlooks(timed, one)[0]
    assert found.takeover_s == 0.5  # 5 tokens of prompt and 45 of text
    assert found.eta.high_s == 2.4  # and 19 to come


def trip(desk: Desk) -> None:
    """Three faults of workers, which open the breaker."""
    fault = ev.FaultCounted("worker", "killed", "gpu-1")
    for _ in range(3):
        desk.run(lambda tx: breakers.fault(tx, "sim-0", fault, desk.policy, actor="test"))


def test_a_breaker_says_when_to_come_again(timed: Desk, clock: HandClock) -> None:
    measure(timed, "gpu", 100.0, 10.0)
    waiting = timed.admit(failover="gpu-only")
    trip(timed)
    clock.go(6)
    assert timed.submit(failover="gpu-only").state.retry_after_s == 24  # of thirty
    assert stand(timed, waiting) == "waiting"
    found = outlooks(timed, waiting)[0].eta
    assert (found.start_low_s, found.high_s) == (24.0, None)
    assert found.basis.startswith("its device is tried again in 24 s")
    timed.run(lambda tx: breakers.half_open(tx, "sim-0", "cooldown-over", actor="test"))
    assert stand(timed, waiting) == "waiting"


def test_who_waits_for_a_lost_device_is_stuck(timed: Desk) -> None:
    timed.run(lambda tx: laneviews.set_serving(tx, "cpu", "null", "load-failed", actor="test"))
    waiting = timed.admit()
    timed.run(lambda tx: breakers.device_lost(tx, "sim-0", timed.policy, reason="gone", actor="test"))
    assert timed.state(waiting).state == "admitted"
    found = outlooks(timed, waiting)[0]
    assert (found.standing.status, found.eta.low_s) == ("stuck", None)
    refused = timed.submit(failover="gpu-only")
    assert (refused.outcome, refused.state.retry_after_s) == ("refused", 120)


def test_a_full_queue_says_when_it_moves_on(cpu_only: Desk) -> None:
    cpu_only.policy = Policy(cpu_queue_limit=1)
    cpu_only.admit()
    cpu_only.take("cpu")  # may write for 6.4 s, and read for 0.05 s
    cpu_only.admit()
    refused = cpu_only.submit()
    assert (refused.outcome, refused.state.ended_by, refused.state.retry_after_s) == ("refused", "queue-full", 7)


def test_where_nobody_knows_the_usual_time_is_said(cold: Desk) -> None:
    cold.policy = Policy(cpu_queue_limit=1)
    cold.admit()
    assert cold.submit().state.retry_after_s == RETRY_AFTER_S


def test_a_lane_that_never_was_helps_nobody(cold: Desk) -> None:
    assert cold.submit(failover="gpu-only").state.retry_after_s is None


def test_while_the_service_stops_nothing_moves(cpu_only: Desk) -> None:
    one = cpu_only.admit()
    cpu_only.run(house.drain)
    assert stand(cpu_only, one) == "stuck"


def test_a_long_queue_is_looked_at_in_part_and_every_place_is_right(
    cpu_only: Desk, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_only.policy = msgspec.structs.replace(cpu_only.policy, cpu_queue_limit=100)
    ids = []
    for _ in range(10):
        ids.append(cpu_only.admit())
        clock.go(1)
    monkeypatch.setattr(waits, "_WAITING", waits._WAITING.replace(f"LIMIT {waits.MOST}", "LIMIT 4"))
    found = outlooks(cpu_only, *ids)
    assert [one.position for one in found] == list(range(10))
    assert [one.eta.start_high_s for one in found] == pytest.approx([6.45 * n for n in range(10)])


def test_one_that_was_taken_up_since_it_was_read_is_not_ahead_of_itself(cpu_only: Desk) -> None:
    """Read as waiting, and claimed a moment later: five tokens to read and 64 to write, not twice as many."""
    one = cpu_only.admit()
    before = cpu_only.state(one)
    cpu_only.take("cpu")
    found = cpu_only.run(lambda tx: waits.look(tx, [before]))[one]
    assert found.position is None
    assert found.eta.basis.startswith("5 tokens to read and at most 64 to write")
