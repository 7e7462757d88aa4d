"""Who owns a request: one at a time, and nobody else's writes enter the record."""

import json
import subprocess

import pytest
from desk import LEASE_US, Desk, HandClock, body, checkpoint, complete, lane_row, owner, python

from core import events as ev
from core.errors import Fenced
from store import claims, contents, laneviews
from store.claims import Claim
from store.database import Paths

PATIENCE_S = 120


def count(desk: Desk) -> int:
    return int(desk.ask("SELECT seq FROM head")[0][0])


def test_the_way_of_one_request(desk: Desk) -> None:
    request = desk.admit()
    claim = desk.take()
    assert (claim.state.id, claim.state.state, claim.fence.attempt, claim.done) == (request, "running-gpu", 1, ())
    assert claim.spec.tokens == tuple(b"hello")
    desk.checkpoint(claim, 3)
    desk.checkpoint(claim, 7, first=3)
    desk.complete(claim, 9, first=7)
    state = desk.state(request)
    assert (state.state, state.units, state.finish_reason, state.running) == ("completed", 9, "stop", False)
    assert desk.ask("SELECT count(*) FROM leases") == [(0,)]
    assert desk.types(request) == ["Admitted", "Started", "Checkpointed", "Checkpointed", "Completed"]
    chunks = desk.run(lambda tx: contents.output_of(tx, request, 0))
    assert "".join(chunk.text for chunk in chunks) == "abcdefghi"
    assert desk.claim() is None


def test_turns(timed: Desk, clock: HandClock) -> None:
    batch = timed.admit(priority="batch")
    clock.go(1)
    first = timed.admit()
    clock.go(1)
    second = timed.admit()
    clock.go(60)
    third = timed.admit()
    assert [timed.take().state.id for _ in range(4)] == [first, second, batch, third]


def test_a_claim_is_only_for_its_lane_and_model(desk: Desk) -> None:
    desk.admit()
    assert desk.claim("cpu") is None
    other = claims.Owner("r", "gpu", "another-model", "sim-0", "null/1")
    assert desk.run(lambda tx: claims.claim(tx, other, LEASE_US)) is None
    assert desk.claim() is not None
    assert desk.claim() is None


def test_a_claim_waits_for_its_time(timed: Desk, clock: HandClock) -> None:
    request = timed.admit()
    later = ev.Replanned("gpu-out", not_before_us=clock.now + 5_000_000)
    timed.run(lambda tx: tx.append(request, later, actor="test"))
    assert timed.claim() is None
    clock.go(5)
    assert timed.claim() is not None


def test_a_runner_of_a_lost_device_gets_nothing_more(desk: Desk) -> None:
    """It may still be alive: the new epoch is not for it."""
    desk.run(lambda tx: tx.append("device-sim-0", ev.DeviceLost("gone", 2), actor="test"))
    desk.admit()
    assert desk.claim() is None
    desk.run(lambda tx: tx.append("device-sim-0", ev.DeviceBack("back", 2), actor="test"))
    claim = desk.take()
    assert claim.fence.device_epoch == 2


def test_a_leftover_lease_does_not_block_its_request(desk: Desk) -> None:
    request = desk.admit()
    desk.run(lambda tx: tx.execute("INSERT INTO leases VALUES (?, 'gone', 't', 9, 0, 'other-boot')", (request,)))
    claim = desk.take()
    desk.complete(claim, 1)
    assert desk.state(request).state == "completed"


WRITES = ["checkpoint", "complete", "renew", "cancelled"]


def write(desk: Desk, claim: Claim, what: str) -> None:
    if what == "checkpoint":
        desk.checkpoint(claim, claim.state.units + 2)
    elif what == "complete":
        desk.complete(claim, claim.state.units + 2)
    elif what == "renew":
        desk.run(lambda tx: claims.renew(tx, claim.fence, LEASE_US))
    else:
        desk.run(lambda tx: claims.cancelled(tx, claim.fence))


def snapshot(desk: Desk) -> list[list[object]]:
    tables = ("events", "requests", "leases", "contents", "head")
    return [desk.ask(f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in tables]


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("how", ["taken-over", "requeued", "cancelled", "device-lost", "expired"])
def test_a_zombie_writes_nothing(timed: Desk, clock: HandClock, what: str, how: str) -> None:
    request = timed.admit(deadline_s=30.0)
    zombie = timed.take()
    timed.checkpoint(zombie, 4)
    zombie = Claim(timed.state(request), zombie.fence, zombie.spec, zombie.done)
    if how in {"taken-over", "requeued"}:
        timed.fault(request)
        if how == "taken-over":
            timed.take("cpu")
    elif how == "cancelled":
        timed.run(lambda tx: claims.release(tx, request))
        timed.run(lambda tx: tx.append(request, ev.Cancelled(), actor="test"))
    elif how == "device-lost":
        timed.run(lambda tx: tx.append("device-sim-0", ev.DeviceLost("gone", 2), actor="test"))
    else:
        from store import commands

        clock.go(31)
        assert timed.run(lambda tx: commands.expire_due(tx, 10**12, actor="test")) == [request]
    before = snapshot(timed)
    with pytest.raises(Fenced):
        write(timed, zombie, what)
    assert snapshot(timed) == before
    timed.run(lambda tx: claims.late_write(tx, zombie.fence, what, 6))
    assert timed.types(request)[-1] == "LateWriteRejected"
    assert timed.state(request).units == 4
    assert timed.verify().ok


def test_a_token_of_another_attempt_is_not_enough(desk: Desk) -> None:
    import msgspec

    desk.admit()
    claim = desk.take()
    for changes in ({"token": "guessed"}, {"attempt": 2}, {"device_epoch": 2}, {"request_id": "other"}):
        fence = msgspec.structs.replace(claim.fence, **changes)
        with pytest.raises(Fenced):
            desk.run(lambda tx, fence=fence: claims.check(tx, fence))
    desk.run(lambda tx: claims.check(tx, claim.fence))


def test_contents_have_no_gap(desk: Desk) -> None:
    desk.admit()
    claim = desk.take()
    desk.checkpoint(claim, 4)
    before = count(desk)
    for first in (0, 3, 5):
        with pytest.raises(Fenced):
            desk.run(lambda tx, first=first: checkpoint(tx, claim, 9, first))
    assert count(desk) == before
    desk.checkpoint(claim, 9, first=4)


@pytest.mark.parametrize("kind", ["checkpoint", "complete"])
def test_a_write_whose_answer_was_lost_may_be_repeated(desk: Desk, kind: str) -> None:
    request = desk.admit()
    claim = desk.take()
    unit = {"checkpoint": checkpoint, "complete": complete}[kind]
    desk.run(lambda tx: unit(tx, claim, 4))
    before = snapshot(desk)[0]
    desk.run(lambda tx: unit(tx, claim, 4))
    assert snapshot(desk)[0] == before
    assert desk.state(request).units == 4
    with pytest.raises(Fenced):
        desk.run(lambda tx: unit(tx, claim, 5, 0))


def test_a_takeover_gets_the_units_that_are_durable(desk: Desk) -> None:
    request = desk.admit()
    desk.checkpoint(desk.take(), 5)
    assert desk.fault(request).state == "rerouted-cpu"
    claim = desk.take("cpu")
    assert (claim.done, claim.fence.attempt) == (tuple(b"abcde"), 2)
    desk.checkpoint(claim, 8)
    assert desk.state(request).units == 8
    started = [record.event for record in desk.events(request) if record.type == "Started"]
    assert [event.resume_from for event in started if isinstance(event, ev.Started)] == [0, 5]


def test_digests_are_of_the_contents(desk: Desk) -> None:
    request = desk.admit()
    claim = desk.take()
    desk.complete(claim, 4)
    admitted, _, completed = (record.event for record in desk.events(request))
    assert isinstance(admitted, ev.Admitted)
    assert isinstance(completed, ev.Completed)
    stored = dict(desk.ask("SELECT kind, body FROM contents WHERE request_id=?", request))
    assert admitted.spec_digest == contents.digest(b"s" * 16, stored["spec"])
    assert completed.digest == contents.digest(b"s" * 16, stored["chunk"]) == contents.digest(b"s" * 16, body(0, 4))
    assert completed.digest != contents.digest(b"t" * 16, stored["chunk"])


def test_overdue_leases(timed: Desk, clock: HandClock) -> None:
    ids = []
    for _ in range(4):
        ids.append(timed.admit())
        clock.go(0.001)
    held = [timed.take(runner=f"r{n}") for n in range(4)]
    assert [claim.state.id for claim in held] == ids
    assert timed.run(lambda tx: claims.overdue(tx, tx.mono_us)) == []
    timed.run(lambda tx: tx.execute("UPDATE leases SET boot_id='before' WHERE request_id=?", (ids[0],)))
    timed.run(lambda tx: tx.execute("DELETE FROM leases WHERE request_id=?", (ids[1],)))
    assert timed.run(lambda tx: claims.overdue(tx, tx.mono_us)) == [(ids[0], "r0"), (ids[1], "")]
    clock.go(14)
    timed.run(lambda tx: claims.renew(tx, held[3].fence, LEASE_US))
    clock.go(1)
    assert timed.run(lambda tx: claims.overdue(tx, tx.mono_us)) == [(ids[0], "r0"), (ids[1], ""), (ids[2], "r2")]
    for request in ids[:3]:
        assert timed.fault(request, "lease-expired").state == "rerouted-cpu"
    assert timed.run(lambda tx: claims.overdue(tx, tx.mono_us)) == []


def test_a_claim_sees_the_lane_it_is_for(bare: Desk) -> None:
    bare.run(lambda tx: laneviews.put_lane(tx, lane_row("cpu")))
    request = bare.admit()
    assert bare.state(request).state == "rerouted-cpu"
    assert bare.types(request) == ["Admitted", "Rerouted"]
    claim = bare.run(lambda tx: claims.claim(tx, owner("cpu"), LEASE_US))
    assert claim is not None
    assert claim.state.state == "rerouted-cpu"
    assert claim.state.running


RACER = """
import json, sys
from pathlib import Path
from desk import Desk
from store.database import Paths
desk = Desk(Paths(Path(sys.argv[1])))
print("ready", flush=True)
for line in sys.stdin:
    claim = desk.claim(runner=sys.argv[2])
    if claim is None:
        print(json.dumps(None), flush=True)
        continue
    desk.complete(claim, 1)
    print(json.dumps([claim.state.id, claim.fence.attempt]), flush=True)
desk.close()
"""


def test_six_processes_race_for_each_request(desk: Desk, paths: Paths) -> None:
    racers = [python(RACER, str(paths.root), f"r{n}", stdin=subprocess.PIPE, stdout=subprocess.PIPE) for n in range(6)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    winners = set()
    for _round in range(200):
        request = desk.admit()
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        answers = [json.loads(racer.stdout.readline()) for racer in racers if racer.stdout]
        won = [(n, answer) for n, answer in enumerate(answers) if answer is not None]
        assert [answer for _, answer in won] == [[request, 1]], "exactly one owner"
        winners.add(won[0][0])
    for racer in racers:
        racer.communicate(timeout=PATIENCE_S)
    assert len(winners) > 1, "nobody raced"
    starts = desk.ask("SELECT stream, count(*) FROM events WHERE type='Started' GROUP BY stream")
    assert len(starts) == 200
    assert {number for _, number in starts} == {1}
    assert desk.verify().ok


def test_a_request_of_a_replaced_model_stops_honestly(desk: Desk) -> None:
    request = desk.admit()
    other = claims.Owner("r", "gpu", "null", "sim-0", "null/1", contract="of-another-model")
    assert desk.run(lambda tx: claims.claim(tx, other, 1_000_000)) is None
    state = desk.state(request)
    assert state.state == "resumable-error"
    assert state.failure is not None
    assert state.failure.rule == "model-changed"


def test_a_request_that_may_have_ended_a_worker_is_taken_up_alone(desk: Desk) -> None:
    suspect = desk.admit()
    desk.take()
    desk.fault(suspect, "crashed", fault="worker")
    assert desk.state(suspect).deaths == 1
    owner = claims.Owner("c", "cpu", "null", "cpu", "null/1")
    assert desk.run(lambda tx: claims.claim(tx, owner, 1_000_000, company=1)) is None
    alone = desk.run(lambda tx: claims.claim(tx, owner, 1_000_000))
    assert alone is not None
    assert alone.state.id == suspect
