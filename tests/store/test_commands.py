"""What a caller may do to an accepted request: cancel, resume, erase; and what time does to it."""

import pytest
from desk import MODEL, Desk, HandClock

from core import events as ev
from core.errors import Conflict, Gone, IllegalEvent, NotFound
from core.words import Lane
from store import claims, commands, contents, laneviews

DAY_US = 86_400_000_000


def cancel(desk: Desk, request: str) -> str:
    return desk.run(lambda tx: commands.cancel(tx, request, actor="test")).state


def resume(desk: Desk, request: str, origin: str = "checkpoint", deadline_s: float | None = None) -> str:
    return desk.run(lambda tx: commands.resume(tx, request, origin, deadline_s, actor="test")).state  # type: ignore[arg-type]


def failed(desk: Desk, units: int = 5, lane: Lane = "gpu", **changes: object) -> str:
    """A request that rests as a resumable error, after work on `lane`."""
    request = desk.admit(**changes)
    claim = desk.take()
    if lane == "cpu":
        desk.fault(request)
        claim = desk.take("cpu")
    if units:
        desk.checkpoint(claim, units)
    desk.fault(request, "crashed")
    if desk.state(request).state != "resumable-error":
        desk.take(desk.state(request).lane or "gpu")
        desk.run(lambda tx: tx.execute("UPDATE leases SET until_us=0"))
        for _ in range(2):
            desk.fault(request, "crashed")
            if desk.state(request).state == "resumable-error":
                break
            desk.take(desk.state(request).lane or "gpu")
    assert desk.state(request).state == "resumable-error"
    return request


def serve(desk: Desk, lane: Lane, reason: str | None) -> None:
    desk.run(lambda tx: laneviews.set_serving(tx, lane, MODEL, reason, actor="test"))


# ---- cancel ----


def test_a_waiting_request_is_cancelled_at_once(desk: Desk) -> None:
    request = desk.admit()
    assert cancel(desk, request) == "cancelled"
    assert desk.types(request) == ["Admitted", "CancelAsked", "Cancelled"]
    assert desk.claim() is None


def test_a_running_request_is_asked_to_stop_and_its_owner_ends_it(desk: Desk) -> None:
    request = desk.admit()
    claim = desk.take()
    assert cancel(desk, request) == "running-gpu"
    assert cancel(desk, request) == "running-gpu"
    assert desk.types(request) == ["Admitted", "Started", "CancelAsked"], "a repeat changes nothing"
    desk.checkpoint(claim, 2)
    desk.run(lambda tx: claims.cancelled(tx, claim.fence))
    assert desk.state(request).state == "cancelled"
    assert cancel(desk, request) == "cancelled"
    assert desk.ask("SELECT count(*) FROM leases") == [(0,)]


def test_an_answer_that_is_whole_before_the_cancel_is_seen_stays(desk: Desk) -> None:
    request = desk.admit()
    claim = desk.take()
    cancel(desk, request)
    desk.complete(claim, 3)
    assert desk.state(request).state == "completed"
    assert desk.types(request).count("Cancelled") == 0


def test_a_request_whose_owner_is_gone_is_cancelled_at_once(desk: Desk) -> None:
    request = desk.admit()
    desk.take()
    desk.run(lambda tx: claims.release(tx, request))
    assert cancel(desk, request) == "cancelled"


def test_a_resumable_error_can_be_cancelled(desk: Desk) -> None:
    assert cancel(desk, failed(desk, failover="never")) == "cancelled"


def test_what_ended_cannot_be_cancelled(desk: Desk) -> None:
    request = desk.admit()
    desk.complete(desk.take(), 3)
    before = desk.types(request)
    with pytest.raises(Conflict):
        cancel(desk, request)
    assert desk.types(request) == before
    with pytest.raises(NotFound):
        cancel(desk, "nobody")


# ---- resume ----


def test_resuming_from_the_checkpoint(desk: Desk) -> None:
    request = failed(desk, failover="never")
    assert resume(desk, request) == "checkpointed"
    state = desk.state(request)
    assert (state.lane, state.units, state.output_epoch, state.failure) == ("gpu", 5, 0, None)
    claim = desk.take()
    assert claim.done == tuple(b"abcde")
    desk.complete(claim, 8)
    assert desk.run(lambda tx: contents.tokens_in(contents.output_of(tx, request, 0))) == tuple(b"abcdefgh")


def test_resuming_from_the_start_keeps_the_old_output_readable(desk: Desk) -> None:
    request = failed(desk, failover="never")
    assert resume(desk, request, "start") == "admitted"
    claim = desk.take()
    assert (claim.done, claim.state.output_epoch) == ((), 1)
    desk.complete(claim, 3)
    outputs = [desk.run(lambda tx, n=n: contents.tokens_in(contents.output_of(tx, request, n))) for n in (0, 1)]
    assert outputs == [tuple(b"abcde"), tuple(b"abc")]
    assert desk.verify().ok


def test_a_repeat_answers_what_the_first_made(desk: Desk) -> None:
    request = failed(desk, failover="never")
    resume(desk, request)
    before = desk.types(request)
    assert resume(desk, request) == "checkpointed"
    assert desk.types(request) == before
    desk.complete(desk.take(), 6)
    assert resume(desk, request) == "completed"


def test_what_never_failed_cannot_be_resumed(desk: Desk) -> None:
    with pytest.raises(Conflict):
        resume(desk, desk.admit())


def test_resuming_forgives_earlier_deaths_and_may_set_a_deadline(timed: Desk, clock: HandClock) -> None:
    request = failed(timed, units=0, deadline_s=90.0)
    assert timed.state(request).deadline_us is None
    assert timed.state(request).deaths == 2
    resume(timed, request, deadline_s=5.0)
    state = timed.state(request)
    assert (state.deadline_us, state.deaths) == (clock.now + 5_000_000, 0)


# fmt: off
LANES = [
    # failover,   units, was on, gpu,   cpu,   simulated, goes on
    ("auto",      5,     "gpu",  True,  True,  True,      "gpu"),
    ("auto",      5,     "gpu",  False, True,  True,      "cpu"),
    ("auto",      5,     "gpu",  False, True,  False,     "gpu"),
    ("auto",      5,     "cpu",  True,  True,  True,      "gpu"),
    ("auto",      5,     "cpu",  False, True,  True,      "cpu"),
    ("auto",      5,     "gpu",  False, False, True,      "gpu"),
    ("auto",      0,     "gpu",  False, True,  False,     "cpu"),
    ("auto",      0,     "gpu",  True,  True,  False,     "gpu"),
    ("boundary",  5,     "gpu",  False, True,  True,      "gpu"),
    ("never",     5,     "gpu",  False, True,  True,      "gpu"),
    ("gpu-only",  0,     "gpu",  False, True,  True,      "gpu"),
]
# fmt: on


@pytest.mark.parametrize(("choice", "units", "was", "gpu", "cpu", "simulated", "expected"), LANES)
def test_where_it_is_resumed(
    bare: Desk, choice: str, units: int, was: Lane, gpu: bool, cpu: bool, simulated: bool, expected: str
) -> None:
    bare.open_lanes(simulated=simulated)
    request = failed(bare, units, was, failover=choice)
    serve(bare, "gpu", None if gpu else "device-lost")
    serve(bare, "cpu", None if cpu else "load-failed")
    moved = len(bare.state(request).failovers)
    resume(bare, request)
    state = bare.state(request)
    assert state.lane == expected
    lane_before = bare.events(request)
    assert lane_before[-1].type == "Resumed"
    assert state.units == units
    assert (len(state.failovers) > moved) is (expected != _lane_when_failed(bare, request))
    assert bare.verify().ok


def _lane_when_failed(desk: Desk, request: str) -> str:
    lane = "gpu"
    for record in desk.events(request):
        if isinstance(record.event, ev.Rerouted):
            lane = "cpu"
    return lane


def test_units_made_on_the_cpu_are_not_continued_on_an_unlike_gpu(bare: Desk) -> None:
    bare.open_lanes(simulated=False)
    request = bare.admit()
    bare.take()
    bare.fault(request)
    bare.checkpoint(bare.take("cpu"), 5)
    for _ in range(2):
        bare.fault(request, "crashed")
        if bare.state(request).state != "resumable-error":
            bare.take("cpu")
    assert bare.state(request).state == "resumable-error"
    resume(bare, request)
    assert bare.state(request).lane == "cpu"


# ---- erase ----


def test_erasing_leaves_the_record_whole_and_nothing_to_read(desk: Desk) -> None:
    request, other = desk.admit(idempotency_key="k"), desk.admit()
    desk.complete(desk.take(), 3)
    desk.complete(desk.take(), 3)
    state = desk.run(lambda tx: commands.erase(tx, request, actor="test"))
    assert state.erased
    assert desk.ask("SELECT count(*) FROM contents WHERE request_id=?", request) == [(0,)]
    assert desk.ask("SELECT count(*) FROM contents WHERE request_id=?", other) == [(2,)]
    assert desk.ask("SELECT count(*) FROM idempotency") == [(0,)]
    assert desk.run(lambda tx: contents.spec_of(tx, request)) is None
    before = desk.types(request)
    desk.run(lambda tx: commands.erase(tx, request, actor="test"))
    assert desk.types(request) == before
    assert desk.verify().ok


def test_active_requests_are_not_erased(desk: Desk) -> None:
    request = desk.admit()
    with pytest.raises(Conflict, match="cancel it first"):
        desk.run(lambda tx: commands.erase(tx, request, actor="test"))
    assert desk.run(lambda tx: contents.spec_of(tx, request)) is not None


def test_what_was_erased_cannot_be_resumed(desk: Desk) -> None:
    request = failed(desk, failover="never")
    desk.run(lambda tx: commands.erase(tx, request, actor="test"))
    for origin in ("checkpoint", "start"):
        with pytest.raises(Gone):
            resume(desk, request, origin)
    assert desk.state(request).state == "resumable-error"


# ---- time ----


def expire(desk: Desk, ttl_us: int = 7 * DAY_US) -> list[str]:
    return desk.run(lambda tx: commands.expire_due(tx, ttl_us, actor="test"))


def test_deadlines(timed: Desk, clock: HandClock) -> None:
    waiting, running = timed.admit(deadline_s=10.0, priority="batch"), timed.admit(deadline_s=10.0)
    later, without = timed.admit(deadline_s=10.1, priority="batch"), timed.admit(priority="batch")
    claim = timed.take()
    assert claim.state.id == running
    clock.go(9.9)
    assert expire(timed) == []
    clock.go(0.1)
    assert sorted(expire(timed)) == sorted([waiting, running])
    assert expire(timed) == []
    assert {timed.state(request).state for request in (later, without)} == {"admitted"}
    state = timed.state(running)
    assert (state.state, state.ended_by, state.running) == ("cancelled", "deadline", False)
    assert timed.ask("SELECT count(*) FROM leases") == [(0,)]


def test_a_cancel_that_was_asked_is_not_overtaken_by_the_deadline(timed: Desk, clock: HandClock) -> None:
    request = timed.admit(deadline_s=10.0)
    claim = timed.take()
    cancel(timed, request)
    clock.go(20)
    assert expire(timed) == []
    timed.run(lambda tx: claims.cancelled(tx, claim.fence))
    assert timed.state(request).ended_by == "asked"


def test_a_resumable_error_rests_for_its_ttl(timed: Desk, clock: HandClock) -> None:
    request = failed(timed, failover="never", deadline_s=10.0)
    clock.go(6.9 * 86400)
    assert expire(timed) == [], "the deadline stops at a resumable error"
    clock.go(0.2 * 86400)
    assert expire(timed) == [request]
    assert timed.state(request).ended_by == "ttl"


def test_an_illegal_event_changes_nothing_and_its_unit_may_go_on(desk: Desk) -> None:
    request = desk.admit()

    def unit(tx: object) -> None:
        with pytest.raises(IllegalEvent):
            tx.append(request, ev.Completed(1, 1, "stop", "d"), actor="test")  # type: ignore[attr-defined]
        tx.append(request, ev.CancelAsked(), actor="test")  # type: ignore[attr-defined]

    desk.run(unit)
    assert desk.types(request) == ["Admitted", "CancelAsked"]
    assert desk.verify().ok
