"""Breakers in the store: what is counted, who moves when one opens, who may begin while it is tried."""

import msgspec
import pytest
from desk import Desk

from core import events as ev
from core.breaker import Breaker
from core.errors import NotFound
from core.policy import Policy
from store import breakers
from store.journal import Tx

SOON = Policy(breaker_faults=3, breaker_window_s=120.0, breaker_cooldown_s=30.0, breaker_canaries=2)


def fault(desk: Desk, kind: str = "killed", fault_class: str = "worker", **options: bool) -> str:
    seen = ev.FaultCounted(fault_class, kind, "gpu-1")  # type: ignore[arg-type]
    decision = desk.run(lambda tx: breakers.fault(tx, "sim-0", seen, SOON, actor="test", **options))
    return "none" if decision is None else decision.rule


def found(desk: Desk) -> Breaker:
    breaker = desk.run(lambda tx: breakers.breaker_of(tx, "sim-0"))
    assert breaker is not None
    return breaker


def try_it(desk: Desk) -> bool:
    return desk.run(lambda tx: breakers.half_open(tx, "sim-0", "its cooldown is over", actor="test"))


def test_the_third_fault_opens_it_and_who_waits_moves(desk: Desk) -> None:
    running = desk.admit()
    desk.take()
    waiting = [desk.admit() for _ in range(3)]
    only = desk.admit(failover="gpu-only")
    assert [fault(desk) for _ in range(3)] == ["below-limit", "below-limit", "worker-faults"]
    assert found(desk).state == "open"
    assert {desk.state(request).state for request in waiting} == {"rerouted-cpu"}
    assert desk.state(running).state == "running-gpu", "another worker may be sound; who works goes on"
    assert desk.state(only).waits_for == "breaker-open"
    assert desk.claim() is None
    later = desk.admit()
    assert desk.state(later).lane == "cpu"
    moved = desk.events(later)[-1].event
    assert isinstance(moved, ev.Rerouted)
    assert moved.decision.rule == "gpu-out"
    assert desk.verify().ok


def test_models_on_one_device_share_its_fate(bare: Desk) -> None:
    """Workers of one model fail; the other's may be next, and nobody knows before canaries were answered."""
    bare.open_lanes(models=("null", "vectors"))
    waiting = [bare.admit(model=model) for model in ("null", "vectors")]
    for _ in range(3):
        fault(bare)
    assert {bare.state(request).lane for request in waiting} == {"cpu"}
    assert try_it(bare)
    later = [bare.admit(model=model, failover="gpu-only") for model in ("null", "vectors")]
    assert bare.claim() is None
    bare.sing()
    assert found(bare).state == "closed"
    assert {bare.state(request).lane for request in later} == {"gpu"}


def test_faults_of_size_and_of_inputs_open_nothing(desk: Desk) -> None:
    for _ in range(20):
        assert fault(desk, "allocation-failed", "size") == "not-the-device"
        assert fault(desk, "crashed", input_blamed=True) == "not-the-device"
    assert found(desk) == Breaker()
    assert desk.types("device-sim-0") == ["DeviceFound"]


def test_while_it_is_tried_nothing_begins_and_right_canaries_close_it(desk: Desk) -> None:
    assert desk.sing((1, 2, 3)) == "recorded"
    for _ in range(3):
        fault(desk)
    assert try_it(desk)
    assert not try_it(desk), "once"
    waiting = desk.admit(failover="gpu-only")
    assert desk.claim() is None
    assert desk.sing((1, 2, 3)) == "right"
    assert found(desk).state == "half-open", "two in a row are asked for"
    assert desk.claim() is None
    desk.sing((1, 2, 3))
    assert found(desk).state == "closed"
    assert desk.take().state.id == waiting
    kinds = ["FaultCounted"] * 3 + ["BreakerOpened", "BreakerHalfOpened", "CanaryAnswered", "CanaryAnswered"]
    assert desk.types("device-sim-0")[2:] == [*kinds, "BreakerClosed"]
    assert desk.verify().ok


def test_a_wrong_canary_opens_it_for_twice_as_long(desk: Desk) -> None:
    desk.sing((1, 2, 3))
    for _ in range(3):
        fault(desk)
    assert found(desk).cooldown_us == 30_000_000
    try_it(desk)
    assert desk.sing((1, 9, 9)) == "wrong"
    assert (found(desk).state, found(desk).cooldown_us, found(desk).trips) == ("open", 60_000_000, 2)
    assert found(desk).rule == "canary-wrong"


def test_a_wrong_canary_opens_a_closed_one_at_once(desk: Desk) -> None:
    desk.sing((1, 2, 3))
    assert desk.sing((1, 2, 3)) == "right"
    assert desk.types("device-sim-0") == ["DeviceFound", "CanaryAnswered"], "a right answer is no news"
    assert desk.sing(()) == "wrong"
    assert (found(desk).state, found(desk).held) == ("open", False)


def test_another_build_is_not_compared_with_the_one_before(desk: Desk) -> None:
    desk.sing((1, 2, 3))
    desk.run(lambda tx: tx.execute("UPDATE lanes SET engine='null/2' WHERE lane='gpu'"))
    assert desk.sing((7, 8, 9)) == "recorded"


def test_a_lost_device_is_held_until_it_is_found_anew(desk: Desk) -> None:
    desk.run(lambda tx: breakers.device_lost(tx, "sim-0", desk.policy, reason="fell off the bus", actor="test"))
    assert (found(desk).state, found(desk).held, found(desk).until_us()) == ("open", True, None)
    desk.run(lambda tx: breakers.device_back(tx, "sim-0", "it answers again", actor="test"))
    assert (found(desk).state, found(desk).held) == ("half-open", False)
    desk.sing()
    assert found(desk).state == "closed"
    assert desk.verify().ok


def test_an_operator_may_have_it_tried(desk: Desk) -> None:
    desk.run(lambda tx: breakers.device_lost(tx, "sim-0", desk.policy, reason="fell off the bus", actor="test"))
    after = desk.run(lambda tx: breakers.reset(tx, "sim-0", "reseated", actor="caller-me"))
    assert after.state == "half-open"
    last = desk.events("device-sim-0")[-1]
    assert (last.type, last.actor) == ("BreakerHalfOpened", "caller-me")
    with pytest.raises(NotFound, match="GPU-9"):
        desk.run(lambda tx: breakers.reset(tx, "GPU-9", "why not", actor="caller-me"))


def test_where_nobody_is_up_so_many_may_wait_as_probes(desk: Desk) -> None:
    for _ in range(3):
        fault(desk)
    try_it(desk)
    waiting = [desk.admit() for _ in range(4)]
    assert [desk.state(request).lane for request in waiting] == ["gpu", "gpu", "cpu", "cpu"], "breaker_probes is 2"
    assert desk.claim() is None, "they wait for canaries, and reach nothing"


def closed_again(desk: Desk) -> None:
    for _ in range(3):
        fault(desk)
    assert try_it(desk)
    desk.sing()
    assert found(desk).state == "closed"


def test_the_first_failure_after_canaries_opens_it_again_for_twice_as_long(desk: Desk) -> None:
    closed_again(desk)
    assert fault(desk) == "relapse"
    assert (found(desk).state, found(desk).cooldown_us) == ("open", 60_000_000)


def test_a_request_that_was_completed_there_ends_the_probation(desk: Desk) -> None:
    """What the CPU lane completes says nothing of the device."""
    elsewhere, here = desk.admit(), desk.admit()
    closed_again(desk)
    assert {desk.state(one).lane for one in (elsewhere, here)} == {"cpu"}
    desk.complete(desk.take("cpu"))
    assert fault(desk) == "relapse"
    assert try_it(desk)
    desk.sing()
    desk.admit()
    desk.complete(desk.take())
    assert [fault(desk) for _ in range(3)] == ["below-limit", "below-limit", "worker-faults"]


def test_so_many_try_it_at_once_as_probes_until_one_was_completed(desk: Desk) -> None:
    closed_again(desk)
    for _ in range(5):
        desk.admit()
    first, _second = desk.take(), desk.take()
    assert desk.claim() is None, "breaker_probes is 2"
    desk.complete(first)
    assert [desk.take(runner=f"gpu-{n}").state.state for n in range(3)] == ["running-gpu"] * 3
    assert desk.verify().ok


def test_a_calm_window_ends_the_probation(bare: Desk) -> None:
    """Nobody asked anything of it for two minutes: it counts as sound as any other."""
    bare.open_lanes()
    closed_again(bare)
    sql = "UPDATE devices SET breaker_doc=json_set(breaker_doc, '$.since_us', ?) WHERE id='sim-0'"
    bare.run(lambda tx: tx.execute(sql, (tx.now_us - 120_000_001,)))
    assert fault(bare) == "below-limit"


def test_verify_finds_a_breaker_that_was_changed_by_hand(desk: Desk) -> None:
    fault(desk)

    def tamper(tx: Tx) -> None:
        doc = msgspec.json.encode(Breaker(state="open", since_us=5)).decode()
        tx.execute("UPDATE devices SET breaker='open', breaker_doc=? WHERE id='sim-0'", (doc,))

    desk.run(tamper)
    assert "device sim-0" in (desk.verify().problem or "")
