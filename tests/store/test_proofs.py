"""A recorded proof decides what follows from a fault of a request that has shown text."""

from typing import Any

import msgspec
import pytest
from desk import CONTRACT, LEASE_US, MODEL, Desk, lane_row, owner

from core import events as ev
from core.contract import PathFacts
from core.replay import redecide
from core.words import PairClass
from store import claims, commands, failover, laneviews, proofs
from store.journal import Tx

CARD = PathFacts("e/1", CONTRACT, "a-card")
HOST = PathFacts("e/2", CONTRACT, "host")


def proof(pair: PairClass, source: PathFacts = CARD, target: PathFacts = HOST) -> ev.EquivalenceProved:
    return ev.EquivalenceProved(source.name, target.name, source.contract, pair, 12, 3, 500, 495, 0.004, (7, 9))


def keep(desk: Desk, pair: PairClass, source: PathFacts = CARD, target: PathFacts = HOST) -> None:
    desk.run(lambda tx: proofs.keep(tx, source, target, proof(pair, source, target), actor="test"))


@pytest.fixture
def unlike(bare: Desk) -> Desk:
    """A lane on a real card with one build, and a CPU lane with another."""

    def unit(tx: Tx) -> None:
        tx.append("device-GPU-1", ev.DeviceFound("A card", False, 1 << 30), actor="test")
        laneviews.put_lane(tx, msgspec.structs.replace(lane_row("gpu"), engine="e/1", device="GPU-1"))
        laneviews.put_lane(tx, msgspec.structs.replace(lane_row("cpu"), engine="e/2"))

    bare.run(unit)
    return bare


def shown(desk: Desk, **changes: Any) -> str:
    """A request on the card that has shown five units."""
    request = desk.admit(**changes)
    mine = msgspec.structs.replace(owner("gpu"), device="GPU-1", engine="e/1")
    claim = desk.run(lambda tx: claims.claim(tx, mine, LEASE_US, desk.policy))
    assert claim is not None
    assert claim.state.id == request
    desk.checkpoint(claim, 5)
    return request


def rule(desk: Desk, request: str) -> str:
    """Of the last decision; asked again, the recorded facts give it again."""
    records = desk.events(request)
    assert all(again.same for again in redecide(records))
    decision = getattr(records[-1].event, "decision", None)
    assert decision is not None
    return str(decision.rule)


def after_death(desk: Desk, **changes: Any) -> tuple[str, str]:
    """Its state after the card's worker died, and the rule. The request is cancelled, so that the next finds room."""
    request = shown(desk, **changes)
    desk.fault(request)
    found = (desk.state(request).state, rule(desk, request))
    desk.run(lambda tx: commands.cancel(tx, request, actor="test"))
    return found


def test_each_proof_counts_from_the_next_decision_on(unlike: Desk) -> None:
    assert after_death(unlike) == ("checkpointed", "pair-none"), "no proof: back to the card"
    keep(unlike, "faithful")
    assert after_death(unlike) == ("rerouted-cpu", "continue-faithful")
    assert after_death(unlike, failover="identical") == ("checkpointed", "pair-below-demand")
    keep(unlike, "none")
    assert after_death(unlike) == ("checkpointed", "pair-none"), "it fell below its class"
    assert unlike.verify().ok


def test_with_the_card_lost_an_unlike_pair_stops_and_a_faithful_one_goes_on(unlike: Desk) -> None:
    def lost() -> tuple[str, str]:
        request = shown(unlike)
        unlike.fault(request, "device-lost", fault="device")
        return unlike.state(request).state, rule(unlike, request)

    assert lost() == ("resumable-error", "pair-none")
    keep(unlike, "faithful")
    assert lost() == ("rerouted-cpu", "continue-faithful")


def test_a_proof_is_found_from_either_side(unlike: Desk) -> None:
    keep(unlike, "faithful", HOST, CARD)
    assert unlike.run(lambda tx: proofs.proof_of(tx, CARD, HOST)) == "faithful"
    assert after_death(unlike) == ("rerouted-cpu", "continue-faithful")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (msgspec.structs.replace(CARD, contract="of-another-model"), HOST),
        (msgspec.structs.replace(CARD, engine="e/0"), HOST),
        (msgspec.structs.replace(CARD, kind="GPU-2"), HOST),
        (CARD, msgspec.structs.replace(HOST, engine="e/3")),
    ],
)
def test_a_proof_of_another_model_build_or_card_does_not_count(
    unlike: Desk, source: PathFacts, target: PathFacts
) -> None:
    keep(unlike, "faithful", source, msgspec.structs.replace(target, contract=source.contract))
    assert after_death(unlike) == ("checkpointed", "pair-none")


def test_a_proof_does_not_outlive_a_change_of_the_model(unlike: Desk) -> None:
    """Both lanes compute another model now; what is asked anew finds no proof of it."""
    keep(unlike, "faithful")
    assert unlike.run(lambda tx: laneviews.pair(tx, MODEL)) == "faithful"

    def other(tx: Tx) -> None:
        for lane in ("gpu", "cpu"):
            row = laneviews.lane_row(tx, lane, MODEL)
            assert row is not None
            laneviews.put_lane(tx, msgspec.structs.replace(row, contract="of-another-model"))

    unlike.run(other)
    assert unlike.run(lambda tx: laneviews.pair(tx, MODEL)) == "none"


def test_a_pair_on_the_host_loses_what_a_rule_gave_it(desk: Desk) -> None:
    """A simulated card computes on the host: identical by rule, until it was measured not to be."""
    here = PathFacts("null/1", CONTRACT, "host")
    assert desk.run(lambda tx: laneviews.pair(tx, MODEL)) == "identical"
    keep(desk, "faithful", msgspec.structs.replace(here, slots=4), here)
    assert desk.run(lambda tx: laneviews.pair(tx, MODEL)) == "identical", "that was measured of four at once"
    keep(desk, "faithful", here, here)
    assert desk.run(lambda tx: laneviews.pair(tx, MODEL)) == "faithful"
    keep(desk, "identical", here, here)
    assert desk.run(lambda tx: laneviews.pair(tx, MODEL)) == "identical"


def test_a_lane_whose_worker_cannot_be_brought_up_leaves_nobody_waiting(unlike: Desk) -> None:
    """Shown text, no proof: back to the card while its worker dies; honest, once nobody comes up there any more."""
    request = shown(unlike)
    unlike.fault(request)
    assert (unlike.state(request).state, rule(unlike, request)) == ("checkpointed", "pair-none")
    unlike.run(lambda tx: failover.lane_lost(tx, MODEL, "GPU-1", "load-failed", unlike.policy, actor="test"))
    assert (unlike.state(request).state, rule(unlike, request)) == ("resumable-error", "pair-none")


def test_text_of_one_engine_is_not_gone_on_with_by_another_unproved(desk: Desk) -> None:
    """The model was entered for another engine between two runs: one contract, and not one answer."""
    request = desk.admit()
    desk.checkpoint(desk.take(), 5)
    desk.fault(request, "service-stopped", fault="host")
    fresh = desk.admit()

    def other_build(tx: Tx) -> None:
        for lane in ("gpu", "cpu"):
            laneviews.put_lane(tx, msgspec.structs.replace(lane_row(lane), engine="null/2"))  # type: ignore[arg-type]

    desk.run(other_build)
    mine = msgspec.structs.replace(owner("gpu"), engine="null/2")
    taken = desk.run(lambda tx: claims.claim(tx, mine, LEASE_US, desk.policy))
    assert taken is not None
    assert taken.state.id == fresh, "what showed nothing starts"
    assert (desk.state(request).state, rule(desk, request)) == ("resumable-error", "engine-changed")


def test_a_proof_of_the_two_builds_lets_it_go_on(desk: Desk) -> None:
    request = desk.admit()
    desk.checkpoint(desk.take(), 5)
    desk.fault(request, "service-stopped", fault="host")
    old, new = PathFacts("null/1", CONTRACT, "host"), PathFacts("null/2", CONTRACT, "host")
    keep(desk, "faithful", old, new)
    for lane in ("gpu", "cpu"):
        row = msgspec.structs.replace(lane_row(lane), engine="null/2")  # type: ignore[arg-type]
        desk.run(lambda tx, row=row: laneviews.put_lane(tx, row))
    mine = msgspec.structs.replace(owner("gpu"), engine="null/2")
    taken = desk.run(lambda tx: claims.claim(tx, mine, LEASE_US, desk.policy))
    assert taken is not None
    assert (taken.state.id, len(taken.done)) == (request, 5)
