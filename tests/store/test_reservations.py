"""Promised bytes in the store: kept with the decisions that promise them, ended with what they were promised for."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from desk import MODEL, Desk, HandClock, submission
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core import events as ev
from core import ledger
from core.policy import Policy
from core.words import ACTIVE, SETTLED
from store import claims, commands, failover, laneviews, promises, reservations, submit
from store.claims import Claim
from store.database import Paths, migrate
from store.journal import Tx

MIB = 1 << 20
GIB = 1 << 30
EXACT = Policy(headroom_bytes=0, unseen_margin_bytes=0, reading_max_age_s=1e9)
"""Nothing is kept back, so that a case has room for exactly as much as it says."""


def rows(desk: Desk) -> dict[str, int]:
    return dict(desk.ask("SELECT holder, bytes FROM reservations"))


@pytest.fixture
def room_for_three(paths: Paths, clock: HandClock) -> Iterator[Desk]:
    """300 MiB and a MiB a token: three requests of 100 tokens, of which 5 are the prompt."""
    desk = Desk(paths, clock)
    desk.policy = EXACT
    desk.open_lanes(total=300 * MIB, token=MIB)
    desk.show(total=300 * MIB, used=0, processes={})
    yield desk
    desk.close()


def admit(desk: Desk, **changes: object) -> str:
    desk.writer.clock.go(0.001)  # type: ignore[attr-defined]
    return desk.admit(**({"max_units": 95} | changes))


def test_64_submissions_at_once_with_room_for_three(room_for_three: Desk) -> None:
    desk = room_for_three
    futures = [
        desk.writer.submit(lambda tx: (submit.submit(tx, submission(max_units=95), EXACT), sum_promised(tx)))
        for _ in range(64)
    ]
    answers = [future.result(60) for future in futures]
    assert all(promised <= 300 * MIB for _, promised in answers)
    assert {answer.outcome for answer, _ in answers} == {"new"}
    decisions = [desk.events(answer.state.id)[0].event for answer, _ in answers]
    assert all(isinstance(event, ev.Admitted) for event in decisions)
    actions = [event.decision.action for event in decisions if isinstance(event, ev.Admitted)]
    assert actions == ["run-gpu"] * 3 + ["delay"] * 61
    for (answer, _), event in zip(answers[3:], decisions[3:], strict=True):
        assert isinstance(event, ev.Admitted)
        assert (event.decision.rule, answer.state.waits_for) == ("fits-soon", "fits-soon")
        assert answer.position is not None
    assert [desk.run(lambda tx, a=a: laneviews.position(tx, a.state)) for a in waiting(answers)] == list(range(64))

    done = 0
    working: list[Claim] = []
    while done < 64:
        while (claim := desk.claim()) is not None:
            working.append(claim)
        assert len(working) == min(3, 64 - done)
        assert sum(rows(desk).values()) == len(working) * 100 * MIB
        desk.complete(working.pop(0), 1)
        done += 1
    assert {desk.state(answer.state.id).state for answer, _ in answers} == {"completed"}
    assert rows(desk) == {}
    assert desk.verify().ok


def waiting(answers: list[tuple[submit.Submitted, int]]) -> list[submit.Submitted]:
    return sorted((answer for answer, _ in answers), key=lambda answer: answer.state.id)


def sum_promised(tx: Tx) -> int:
    return int(tx.execute("SELECT coalesce(sum(bytes), 0) FROM reservations").fetchone()[0])


def test_they_start_in_the_order_they_came(room_for_three: Desk) -> None:
    desk = room_for_three
    ids = [admit(desk) for _ in range(8)]
    started = []
    while len(started) < 8:
        claim = desk.take()
        started.append(claim.state.id)
        desk.complete(claim, 1)
    assert started == ids


@pytest.mark.parametrize("end", ["cancel", "complete", "fail", "move"])
def test_a_promise_ends_in_the_transaction_that_ends_its_request(room_for_three: Desk, end: str) -> None:
    desk = room_for_three
    request = admit(desk, failover="never" if end == "fail" else "auto")
    assert rows(desk) == {request: 100 * MIB}
    if end == "cancel":
        desk.run(lambda tx: commands.cancel(tx, request, actor="test"))
    else:
        claim = desk.take()
        desk.checkpoint(claim, 2)
        assert rows(desk) == {request: 100 * MIB}
        if end == "complete":
            desk.complete(claim, 3, first=2)
        else:
            desk.fault(request)
    assert rows(desk) == {}
    ends = {"cancel": "cancelled", "complete": "completed", "fail": "resumable-error", "move": "rerouted-cpu"}
    assert desk.state(request).state == ends[end]


def test_a_large_request_that_waits_is_not_starved_by_small_ones(room_for_three: Desk) -> None:
    desk = room_for_three
    small = [admit(desk) for _ in range(2)]
    large = admit(desk, max_units=245)
    late = [admit(desk, max_units=45) for _ in range(3)]
    assert [desk.state(one).waits_for for one in (*small, large, *late)] == [None, None, *["fits-soon"] * 4]
    first, second = desk.take(), desk.take()
    assert desk.claim() is None
    desk.complete(first, 1)
    assert desk.claim() is None, "a small one would take what the large one waits for"
    desk.complete(second, 1)
    assert desk.take().state.id == large
    assert desk.take().state.id == late[0]


def test_one_that_waits_for_what_others_hold_lets_others_pass(room_for_three: Desk) -> None:
    desk = room_for_three
    desk.show(total=300 * MIB, used=0, processes={})
    stuck = admit(desk, max_units=245, failover="gpu-only")
    desk.show(total=300 * MIB, used=150 * MIB, processes={})  # a neighbour came before it started
    assert desk.claim() is None
    assert desk.state(stuck).waits_for == "gpu-only"
    small = admit(desk)
    assert desk.take().state.id == small


def test_a_promise_far_back_in_the_queue_is_found(room_for_three: Desk) -> None:
    """Batch work with a promise takes its turn after much interactive work that waits for just these bytes."""
    desk = room_for_three
    held = [admit(desk, priority="batch") for _ in range(3)]
    for _ in range(40):
        admit(desk)
    assert {desk.take().state.id for _ in range(3)} == set(held)


def test_what_a_process_holds_is_known_by_its_pid_or_by_our_account(room_for_three: Desk) -> None:
    desk = room_for_three
    desk.run(lambda tx: reservations.promise(tx, "sim-0", f"model:{MODEL}", MODEL, 100 * MIB))
    desk.show(total=300 * MIB, used=100 * MIB, processes=None)
    assert ledger.foreign(desk.picture()) == 100 * MIB, "nobody said that the process has taken anything"

    def loaded(tx: Tx) -> None:
        tx.execute(
            "INSERT INTO runners (id, lane, model, device, engine, pid, ticks, boot_id, state, beat_us, started_us) "
            "VALUES ('gpu-1','gpu',?,'sim-0','null/1',4711,1,'b','idle',0,0)",
            (MODEL,),
        )
        tx.append("runner-gpu-1", ev.RunnerLoaded(1, 100 * MIB), actor="test")

    desk.run(loaded)
    desk.show(total=300 * MIB, used=130 * MIB, processes=None)
    assert ledger.foreign(desk.picture()) == 30 * MIB
    desk.show(total=300 * MIB, used=130 * MIB, processes={"4711": 120 * MIB, "9": 10 * MIB})
    assert ledger.foreign(desk.picture()) == 10 * MIB
    assert ledger.available(desk.picture()) == 170 * MIB


def test_a_model_told_to_leave_keeps_its_promise_and_takes_nothing_up(room_for_three: Desk) -> None:
    desk = room_for_three
    desk.run(lambda tx: tx.execute("UPDATE lanes SET load_bytes=? WHERE lane='gpu'", (150 * MIB,)))
    desk.run(lambda tx: reservations.promise(tx, "sim-0", f"model:{MODEL}", MODEL, 150 * MIB))
    desk.run(lambda tx: reservations.leave(tx, MODEL))
    assert rows(desk) == {f"leaving:{MODEL}": 150 * MIB}
    # Its bytes are not promised anew before they are back: the next load needs as many, and has to wait for them.
    request = desk.admit(max_units=45)
    assert desk.state(request).waits_for == "fits-soon"
    assert desk.claim() is None
    desk.run(lambda tx: promises.give_back(tx, f"leaving:{MODEL}"))
    later = desk.admit(max_units=45, priority="batch")
    assert desk.state(later).waits_for == "fits-soon"  # the first one is not passed


def test_a_pinned_model_makes_no_room(room_for_three: Desk) -> None:
    desk = room_for_three
    desk.run(lambda tx: reservations.promise(tx, "sim-0", f"model:{MODEL}", MODEL, 150 * MIB))
    assert desk.run(lambda tx: reservations.evictable(tx, "sim-0", "another")) == 150 * MIB
    desk.run(lambda tx: tx.execute("UPDATE lanes SET pinned=1"))
    assert desk.run(lambda tx: reservations.evictable(tx, "sim-0", "another")) == 0


TOTAL = 1000 * MIB
FAULTS = st.sampled_from(["killed", "service-stopped", "hung"])


class Card(RuleBasedStateMachine):
    """A card of 1,000 MiB with one model of 200 on it, and whatever can happen to its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="failsoft-test-"))
        paths = Paths(self.folder).make()
        migrate(paths)
        self.clock = HandClock()
        self.desk = Desk(paths, self.clock)
        self.desk.policy = EXACT
        self.requests: list[str] = []
        self.claims: list[Claim] = []
        self.foreign = 0

    def teardown(self) -> None:
        for request in self.requests:
            if self.desk.state(request).state in ACTIVE:
                self.desk.run(lambda tx: claims.release(tx, request))  # noqa: B023 -- run at once
                self.desk.run(lambda tx: commands.cancel(tx, request, actor="test"))  # noqa: B023 -- run at once
        left = [holder for holder in rows(self.desk) if not holder.startswith(("model:", "leaving:"))]
        verdict = self.desk.verify()
        self.desk.close()
        shutil.rmtree(self.folder)
        assert left == []
        assert verdict.ok, verdict

    @initialize(tells=st.booleans(), cpu=st.booleans())
    def begin(self, *, tells: bool, cpu: bool) -> None:
        self.tells = tells
        self.desk.open_lanes(total=TOTAL, token=MIB, cpu=True if cpu else None)

        self.desk.run(lambda tx: tx.execute("UPDATE lanes SET load_bytes=? WHERE lane='gpu'", (200 * MIB,)))
        self.load()

    @rule()
    def read(self) -> None:
        """The card as it is: the process and all requests that run."""
        (running,) = self.desk.ask(
            "SELECT coalesce(sum(bytes), 0) FROM reservations v JOIN requests q ON q.id=v.holder WHERE q.running=1"
        )
        there = bool(self.desk.ask("SELECT 1 FROM runners"))
        self.clock.go(0.01)
        mine = running[0] + (200 * MIB if there else 0)
        processes = {"4711": mine} if self.tells and there else None
        self.desk.show(total=TOTAL, used=mine + self.foreign, processes=processes)

    @rule(
        units=st.integers(1, 700),
        shrink=st.booleans(),
        choice=st.sampled_from(["auto", "auto", "never", "gpu-only"]),
        priority=st.sampled_from(["interactive", "batch"]),
    )
    def submit(self, units: int, choice: str, priority: str, *, shrink: bool) -> None:
        before = sum(rows(self.desk).values())
        answer = self.desk.submit(max_units=units, allow_shrink=shrink, failover=choice, priority=priority)
        self.requests.append(answer.state.id)
        self.not_over(before)

    @rule()
    def claim(self) -> None:
        before = sum(rows(self.desk).values())
        claim = self.desk.claim()
        if claim is not None:
            assert claim.state.id in rows(self.desk), "it runs without a promise"
            self.claims.append(claim)
        self.not_over(before)

    @rule(pick=st.integers(0, 9))
    def complete(self, pick: int) -> None:
        if self.claims:
            claim = self.claims.pop(pick % len(self.claims))
            if self.desk.ask("SELECT 1 FROM leases WHERE token=?", claim.fence.token):
                self.desk.complete(claim, claim.state.units + 1)

    @rule(pick=st.integers(0, 9))
    def cancel(self, pick: int) -> None:
        if self.requests:
            request = self.requests[pick % len(self.requests)]
            if self.desk.state(request).state in ACTIVE:
                self.desk.run(lambda tx: claims.release(tx, request))
                self.desk.run(lambda tx: commands.cancel(tx, request, actor="test"))

    @rule(kind=FAULTS)
    def fault(self, kind: str) -> None:
        fault = ev.FaultSeen("worker", kind, "gpu", "gpu-1", "sim-0", blames_input=kind in failover.BLAMING)
        self.desk.run(lambda tx: failover.runner_lost(tx, "gpu-1", EXACT, fault, actor="test"))

    @rule(size=st.integers(0, 400))
    def others(self, size: int) -> None:
        self.foreign = size * MIB
        self.read()

    @rule()
    def leave_and_come_back(self) -> None:
        if self.desk.ask("SELECT 1 FROM requests WHERE running=1"):
            return
        self.desk.run(lambda tx: reservations.leave(tx, MODEL))
        assert self.desk.claim() is None
        self.desk.run(lambda tx: tx.execute("DELETE FROM runners"))
        self.read()
        self.desk.run(lambda tx: promises.give_back(tx, f"leaving:{MODEL}"))

    @rule()
    def load(self) -> None:
        """As the residency plan does it: promised in the transaction that finds the bytes free."""
        self.clock.go(0.01)
        runner = f"gpu-{self.clock.now}"

        def unit(tx: Tx) -> None:
            holder = f"model:{MODEL}"
            facts = reservations.device_facts(tx, "sim-0", EXACT, without=holder)
            assert facts is not None
            free = ledger.available(facts)
            if tx.execute("SELECT 1 FROM runners").fetchone() is None and free is not None and free >= 200 * MIB:
                reservations.promise(tx, "sim-0", holder, MODEL, 200 * MIB)
                tx.execute("UPDATE lanes SET resident=1 WHERE lane='gpu'")
                tx.execute(
                    "INSERT INTO runners (id, lane, model, device, engine, pid, ticks, boot_id, state, beat_us, "
                    "started_us) VALUES (?,'gpu',?,'sim-0','null/1',4711,1,'b','idle',0,0)",
                    (runner, MODEL),
                )
                tx.append(f"runner-{runner}", ev.RunnerLoaded(1, 200 * MIB), actor="test")

        self.desk.run(unit)
        self.read()

    def not_over(self, before: int) -> None:
        """What was promised anew was there; what others took afterwards is nobody's promise."""
        after = sum(rows(self.desk).values())
        assert after <= max(before, TOTAL - self.foreign)

    @invariant()
    def promises_are_of_those_who_are_here(self) -> None:
        for holder, size in rows(self.desk).items():
            assert size >= 0
            if not holder.startswith(("model:", "leaving:")):
                state = self.desk.state(holder)
                assert state.lane == "gpu"
                assert state.state not in SETTLED

    @invariant()
    def available_is_never_negative(self) -> None:
        if self.desk.ask("SELECT 1 FROM devices"):
            free = ledger.available(self.desk.picture())
            assert free is not None
            assert free >= 0


TestCard = Card.TestCase
TestCard.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_facts_are_stored_whole(room_for_three: Desk) -> None:
    desk = room_for_three
    admitted = desk.events(admit(desk))[0].event
    assert isinstance(admitted, ev.Admitted)
    facts = admitted.decision.facts
    again = msgspec.json.decode(msgspec.json.encode(facts), type=type(facts))
    assert again == facts
