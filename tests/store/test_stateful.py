"""Everything that can happen to requests, in any order, zombies and time included: the record stays whole."""

import shutil
import tempfile
from pathlib import Path

from desk import Desk, HandClock, checkpoint, complete
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core import events as ev
from core.errors import Conflict, Fenced
from core.words import TERMINAL, Lane
from store import breakers, claims, commands, contents, failover, laneviews
from store.claims import Claim
from store.database import Paths, migrate
from store.journal import Tx

LANE = st.sampled_from(["gpu", "cpu"])
KINDS = st.sampled_from(["killed", "crashed", "hung", "lease-expired", "service-stopped"])
DAY_S = 86_400.0


class House(RuleBasedStateMachine):
    """`claims` are kept for ever: most of them belong to zombies, which go on writing."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="failsoft-test-"))
        paths = Paths(self.folder).make()
        migrate(paths)
        self.clock = HandClock()
        self.desk = Desk(paths, self.clock)
        self.requests: list[str] = []
        self.claims: list[Claim] = []
        self.shown: dict[tuple[str, int], tuple[int, ...]] = {}
        self.ended: dict[str, str] = {}

    def teardown(self) -> None:
        verdict = self.desk.verify()
        self.desk.close()
        shutil.rmtree(self.folder)
        assert verdict.ok, verdict

    @initialize(simulated=st.booleans())
    def begin(self, *, simulated: bool) -> None:
        self.desk.open_lanes(simulated=simulated)

    # ---- what happens ----

    @rule(
        choice=st.sampled_from(["auto", "identical", "boundary", "never", "gpu-only"]),
        deadline=st.sampled_from([None, 20.0]),
        key=st.sampled_from([None, "a", "b"]),
    )
    def admit(self, choice: str, deadline: float | None, key: str | None) -> None:
        answer = self.desk.submit(failover=choice, deadline_s=deadline, idempotency_key=key)
        if answer.outcome == "new":
            self.requests.append(answer.state.id)
        elif answer.outcome == "refused":
            self.ended[answer.state.id] = "refused"

    @rule(lane=LANE)
    def claim(self, lane: Lane) -> None:
        claim = self.desk.claim(lane)
        if claim is not None:
            epoch = claim.state.output_epoch
            assert claim.done == self.shown.get((claim.state.id, epoch), ()), "a takeover does not see what was shown"
            self.claims.append(claim)

    @rule(pick=st.integers(0, 30), more=st.integers(1, 4), end=st.booleans(), stale=st.booleans())
    def write(self, pick: int, more: int, *, end: bool, stale: bool) -> None:
        if not self.claims:
            return
        claim = self.claims[-1 - pick % len(self.claims)]
        now = self.desk.state(claim.state.id)
        first = claim.state.units if stale else now.units
        owns = self._owns(claim)
        unit = complete if end else checkpoint
        try:
            self.desk.run(lambda tx: unit(tx, claim, first + more, first))
        except Fenced:
            assert not owns or first != now.units
            self.desk.run(lambda tx: claims.late_write(tx, claim.fence, "checkpoint", first + more))
        else:
            after = self.desk.state(claim.state.id)
            repeated = after.version == now.version
            assert repeated or (owns and first == now.units), "a write of somebody who owns nothing entered the record"

    @rule(pick=st.integers(0, 30))
    def obey_cancel(self, pick: int) -> None:
        if not self.claims:
            return
        claim = self.claims[-1 - pick % len(self.claims)]
        owns = self._owns(claim)
        if not owns or not self.desk.state(claim.state.id).cancel_asked:
            return
        self.desk.run(lambda tx: claims.cancelled(tx, claim.fence))

    @rule(lane=LANE, kind=KINDS)
    def runner_dies(self, lane: Lane, kind: str) -> None:
        fault = ev.FaultSeen(
            "host" if kind == "service-stopped" else "worker",
            kind,
            lane,
            f"{lane}-1",
            "sim-0" if lane == "gpu" else "cpu",
            blames_input=kind in failover.BLAMING,
        )
        policy = self.desk.policy
        self.desk.run(lambda tx: failover.runner_lost(tx, f"{lane}-1", policy, fault, actor="test"))

    @rule()
    def device_lost(self) -> None:
        self.desk.run(
            lambda tx: breakers.device_lost(tx, "sim-0", self.desk.policy, reason="device-lost", actor="test")
        )

    @rule()
    def device_back(self) -> None:
        def unit(tx: Tx) -> None:
            state, epoch = tx.execute("SELECT state, epoch FROM devices").fetchone()
            if state == "lost":
                tx.append("device-sim-0", ev.DeviceBack("it answers again", epoch), actor="test")
                laneviews.set_serving(tx, "gpu", "null", None, actor="test")

        self.desk.run(unit)

    @rule(lane=LANE, out=st.booleans())
    def lane_in_or_out(self, lane: Lane, *, out: bool) -> None:
        def unit(tx: Tx) -> None:
            if lane == "gpu" and out:
                failover.lane_lost(tx, "null", "sim-0", "load-failed", self.desk.policy, actor="test")
            else:
                laneviews.set_serving(tx, lane, "null", "load-failed" if out else None, actor="test")

        self.desk.run(unit)

    @rule(pick=st.integers(0, 30))
    def cancel(self, pick: int) -> None:
        if self.requests:
            request = self.requests[pick % len(self.requests)]
            try:
                self.desk.run(lambda tx: commands.cancel(tx, request, actor="test"))
            except Conflict:
                assert self.desk.state(request).state in TERMINAL

    @rule(pick=st.integers(0, 30), origin=st.sampled_from(["checkpoint", "start"]))
    def resume(self, pick: int, origin: str) -> None:
        resting = [id_ for id_ in self.requests if self.desk.state(id_).state == "resumable-error"]
        if resting:
            request = resting[pick % len(resting)]
            self.desk.run(lambda tx: commands.resume(tx, request, origin, None, actor="test"))  # type: ignore[arg-type]

    @rule(seconds=st.sampled_from([1.0, 16.0, 8 * DAY_S]))
    def time_passes(self, seconds: float) -> None:
        self.clock.go(seconds)
        for request, _runner in self.desk.run(lambda tx: claims.overdue(tx, tx.mono_us)):
            self.desk.fault(request, "lease-expired")
        assert self.desk.run(lambda tx: claims.overdue(tx, tx.mono_us)) == []
        self.desk.run(lambda tx: commands.expire_due(tx, int(7 * DAY_S * 1e6), actor="test"))

    # ---- what always holds ----

    def _owns(self, claim: Claim) -> bool:
        def unit(tx: Tx) -> bool:
            try:
                claims.check(tx, claim.fence)
            except Fenced:
                return False
            return True

        return self.desk.run(unit)

    @invariant()
    def ends_are_ends_and_shown_is_kept(self) -> None:
        for request in self.requests:
            state = self.desk.state(request)
            if request in self.ended:
                assert state.state == self.ended[request]
            if state.state in TERMINAL:
                self.ended[request] = state.state
                assert sum(name in {"Completed", "Cancelled", "Expired"} for name in self.desk.types(request)) == 1
            for epoch in range(state.output_epoch + 1):
                tokens = self.desk.run(lambda tx: contents.tokens_in(contents.output_of(tx, request, epoch)))  # noqa: B023
                before = self.shown.get((request, epoch), ())
                assert tokens[: len(before)] == before, "what was shown has changed"
                self.shown[request, epoch] = tokens
            assert len(self.shown[request, state.output_epoch]) == state.units

    @invariant()
    def a_lease_for_each_who_runs(self) -> None:
        running = self.desk.ask("SELECT id FROM requests WHERE running = 1 ORDER BY id")
        assert running == self.desk.ask("SELECT request_id FROM leases ORDER BY request_id")


TestHouse = House.TestCase
TestHouse.settings = settings(
    max_examples=25, stateful_step_count=35, deadline=None, suppress_health_check=list(HealthCheck)
)
