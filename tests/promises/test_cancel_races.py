"""Promise: a cancel that races with failover and completion leaves exactly one end, and nothing after it.

One interleaving for each seed. What may follow a cancel is the list of the design, written down here a second time.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from desk import LEASE_US, Desk, checkpoint, complete, owner

from core import events as ev
from core.errors import Conflict, Fenced
from core.words import Failover, Lane
from store import claims, commands, failover
from store.claims import Claim

ENDS = ("Completed", "Cancelled", "Expired", "Refused")
AFTER_CANCEL = {"FaultSeen", "Checkpointed", "Completed", "Cancelled", "LateWriteRejected", "EffectDelivered"}
CHOICES: tuple[Failover, ...] = ("auto", "identical", "boundary", "never", "gpu-only")
KINDS = ("killed", "crashed", "hung", "lease-expired", "service-stopped")
LANES: tuple[Lane, ...] = ("gpu", "cpu")


class Race:
    """One request, and everything that may happen to it, each as one transaction of the real writer."""

    def __init__(self, desk: Desk, draw: random.Random) -> None:
        self.desk = desk
        self.draw = draw
        self.request = desk.admit(failover=draw.choice(CHOICES), max_units=12)
        self.held: list[Claim] = []
        """Every claim that was ever given, the owner's and those of zombies."""
        self.told: list[str] = []
        """What callers of `cancel` were told, in order."""

    def over(self) -> bool:
        return self.desk.state(self.request).state in {"completed", "cancelled"}

    def take(self, lane: Lane) -> None:
        who = owner(lane, f"{lane}-{self.request}")
        claim = self.desk.run(lambda tx: claims.claim(tx, who, LEASE_US, self.desk.policy))
        if claim is not None:
            assert claim.state.id == self.request
            assert not claim.state.cancel_asked, "work was begun on what was to stop"
            self.held.append(claim)

    def write(self, *, end: bool) -> None:
        """An owner's next step, or a zombie's: it looks, then writes; in between anything may happen."""
        if not self.held:
            return
        claim = self.draw.choice(self.held[-2:])
        seen = self.desk.state(self.request)
        if seen.cancel_asked:
            self._fenced(lambda: self.desk.run(lambda tx: claims.cancelled(tx, claim.fence)), claim)
            return
        unit, more = (complete, 2) if end else (checkpoint, 1)
        upto = min(seen.units + more, 12)
        self._fenced(lambda: self.desk.run(lambda tx: unit(tx, claim, upto, seen.units)), claim)

    def _fenced(self, write: Callable[[], None], claim: Claim) -> None:
        try:
            write()
        except Fenced:
            self.desk.run(lambda tx: claims.late_write(tx, claim.fence, "checkpoint", 0))

    def die(self) -> None:
        """The supervisor finds a runner of a lane dead."""
        lane = self.draw.choice(LANES)
        kind = self.draw.choice(KINDS)
        fault = ev.FaultSeen(
            "host" if kind == "service-stopped" else "worker",
            kind,
            lane,
            f"{lane}-{self.request}",
            "sim-0" if lane == "gpu" else "cpu",
            blames_input=kind in failover.BLAMING,
        )
        policy = self.desk.policy
        self.desk.run(lambda tx: failover.runner_lost(tx, fault.runner, policy, fault, actor="test"))

    def resume(self) -> None:
        if self.desk.state(self.request).state == "resumable-error":
            try:
                self.desk.run(lambda tx: commands.resume(tx, self.request, "checkpoint", None, actor="test"))
            except Conflict:
                assert self.over()

    def cancel(self) -> None:
        try:
            state = self.desk.run(lambda tx: commands.cancel(tx, self.request, actor="test"))
        except Conflict:
            self.told.append("too late")
        else:
            self.told.append("cancelled" if state.state == "cancelled" else "asked")

    def step(self) -> None:
        """Any of these but a cancel."""
        steps: list[Callable[[], None]] = [
            *(lambda lane=lane: self.take(lane) for lane in LANES * 2),  # type: ignore[misc]
            *(lambda: self.write(end=False),) * 4,
            lambda: self.write(end=True),
            self.die,
            self.resume,
        ]
        self.draw.choice(steps)()

    def finish(self) -> None:
        """Whoever owns it obeys, or it is stopped while nobody does."""
        while not self.over():
            self.cancel()
            self.write(end=True)
            self.die()

    def check(self) -> str:
        """The end it came to."""
        types = self.desk.types(self.request)
        ends = [name for name in types if name in ENDS]
        assert len(ends) == 1, types
        after = types[types.index(ends[0]) + 1 :]
        assert set(after) <= {"LateWriteRejected", "EffectDelivered"}, types
        if "CancelAsked" in types:
            assert types.count("CancelAsked") == 1
            assert set(types[types.index("CancelAsked") + 1 :]) <= AFTER_CANCEL, types
        units = [record.event.units for record in self.desk.events(self.request) if record.type == "Checkpointed"]  # type: ignore[union-attr]
        assert all(a < b for a, b in pairwise(units)), "a unit was written twice"
        state = self.desk.state(self.request)
        assert state.state == ends[0].lower()
        assert not state.running
        assert (ends == ["Cancelled"]) == ("cancelled" in self.told or "asked" in self.told) or ends == ["Completed"]
        if "too late" in self.told:
            assert ends == ["Completed"], "somebody was told that it had ended, and it had not"
        return ends[0]


def in_turns(desk: Desk, seeds: int) -> Counter[str]:
    """Every step whole, in an order drawn by the seed."""
    ends: Counter[str] = Counter()
    for seed in range(seeds):
        draw = random.Random(seed)
        race = Race(desk, draw)
        cancel_at = draw.randrange(24)
        for step in range(24):
            race.cancel() if step == cancel_at else race.step()
        race.finish()
        ends[race.check()] += 1
    return ends


def at_once(desk: Desk, seeds: int) -> Counter[str]:
    """A worker for each lane, a supervisor and a caller, each in a thread of its own, through one writer."""
    ends: Counter[str] = Counter()
    for seed in range(seeds):
        race = Race(desk, random.Random(seed))
        begin = threading.Barrier(4)
        errors: list[BaseException] = []

        def play(
            *steps: Callable[[], object], begin: threading.Barrier = begin, errors: list[BaseException] = errors
        ) -> threading.Thread:
            def body() -> None:
                begin.wait()
                try:
                    for step in steps:
                        step()
                except BaseException as error:  # noqa: BLE001 -- told by the test
                    errors.append(error)

            return threading.Thread(target=body)

        def work(lane: Lane, race: Race = race) -> list[Callable[[], object]]:
            step = [lambda: race.take(lane), *(lambda: race.write(end=False),) * 2]
            return [*step * 2, lambda: race.write(end=race.draw.random() < 0.7)]

        looks: list[Callable[[], object]] = [race.over] * race.draw.randrange(40)
        threads = [play(*work("gpu")), play(*work("cpu")), play(race.die, race.resume, race.die)]
        threads.append(play(*looks, race.cancel))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert errors == []
        race.finish()
        ends[race.check()] += 1
    return ends


def judged(desk: Desk, ends: Counter[str], seeds: int) -> None:
    assert sum(ends.values()) == seeds
    assert min(ends["Completed"], ends["Cancelled"]) > seeds // 50, f"no race at all: {ends}"
    assert desk.ask("SELECT count(*) FROM leases") == [(0,)]
    found = {row[0] for row in desk.ask("SELECT DISTINCT type FROM events")}
    assert {"Rerouted", "LateWriteRejected", "CancelAsked", "FaultSeen", "Failed", "Requeued"} <= found
    assert desk.verify().ok


def some(usual: int) -> pytest.MarkDecorator:
    """So many seeds as a rule, and a thousand as a proof."""
    return pytest.mark.parametrize("seeds", [usual, pytest.param(1000, marks=pytest.mark.prove)])


@some(300)
def test_a_cancel_at_every_place_of_a_life(desk: Desk, seeds: int) -> None:
    judged(desk, in_turns(desk, seeds), seeds)


@some(150)
def test_all_at_once(desk: Desk, seeds: int) -> None:
    judged(desk, at_once(desk, seeds), seeds)
