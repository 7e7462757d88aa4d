"""Just before a start: what was decided is looked at again over a fresh picture, and both pictures are kept."""

from collections.abc import Iterator

import pytest
from desk import Desk, HandClock, owner

from core import events as ev
from core import ledger
from core.decision import AdmissionFacts, Decision
from core.policy import Policy
from core.replay import redecide
from store import claims, laneviews, reservations
from store.database import Paths

MIB = 1 << 20
TOTAL = 300 * MIB
EXACT = Policy(headroom_bytes=0, unseen_margin_bytes=0, reading_max_age_s=1e9)


@pytest.fixture
def card(paths: Paths, clock: HandClock) -> Iterator[Desk]:
    """300 MiB and a MiB a token, nothing in use."""
    desk = Desk(paths, clock)
    desk.policy = EXACT
    desk.open_lanes(total=TOTAL, token=MIB)
    desk.show(total=TOTAL, used=0, processes={})
    yield desk
    desk.close()


def facts_of(decision: Decision | None) -> AdmissionFacts:
    assert decision is not None
    assert isinstance(decision.facts, AdmissionFacts)
    return decision.facts


def foreign(decision: Decision | None) -> int | None:
    device = facts_of(decision).device
    assert device is not None
    return ledger.foreign(device)


def test_a_ballast_between_decision_and_start_moves_the_request_with_both_pictures(card: Desk) -> None:
    request = card.admit(max_units=195)
    assert card.ask("SELECT holder, bytes FROM reservations") == [(request, 200 * MIB)]
    card.show(total=TOTAL, used=150 * MIB, processes={})
    assert card.claim() is None
    assert card.ask("SELECT * FROM reservations") == []

    admitted, moved = (record.event for record in card.events(request))
    assert isinstance(admitted, ev.Admitted)
    assert isinstance(moved, ev.Rerouted)
    assert (admitted.decision.action, foreign(admitted.decision)) == ("run-gpu", 0)
    assert (moved.decision.action, moved.decision.rule, foreign(moved.decision)) == (
        "reroute-cpu",
        "no-room",
        150 * MIB,
    )
    assert facts_of(moved.decision).second_look
    text = " ".join(alternative.reason for alternative in moved.decision.rejected)
    assert str(200 * MIB) in text
    assert str(150 * MIB) in text
    assert all(again.same for again in redecide(card.events(request)))

    claim = card.take("cpu")
    card.complete(claim, 2)
    state = card.state(request)
    assert (state.state, state.degraded and state.degraded.rule) == ("completed", "no-room")
    assert card.verify().ok


def test_what_still_fits_starts_and_nothing_more_is_written(card: Desk) -> None:
    request = card.admit(max_units=95)
    card.show(total=TOTAL, used=200 * MIB, processes={})
    assert card.take().state.id == request
    assert card.types(request) == ["Admitted", "Started"]


def test_who_cannot_move_waits_with_the_reason_once_and_starts_when_there_is_room(card: Desk) -> None:
    request = card.admit(max_units=195, failover="gpu-only")
    card.show(total=TOTAL, used=150 * MIB, processes={})
    for _ in range(3):
        assert card.claim() is None
    assert card.types(request) == ["Admitted", "Replanned"]
    state = card.state(request)
    assert (state.state, state.waits_for) == ("admitted", "gpu-only")
    card.show(total=TOTAL, used=100 * MIB, processes={})
    assert card.take().state.id == request
    assert card.state(request).waits_for is None
    assert card.types(request) == ["Admitted", "Replanned", "Started"]
    assert all(again.same for again in redecide(card.events(request)))


def test_a_delayed_request_gets_its_promise_when_the_bytes_are_back(card: Desk) -> None:
    first, second = card.admit(max_units=195), card.admit(max_units=195)
    claim = card.take()
    assert claim.state.id == first
    assert card.claim() is None
    card.complete(claim, 1)
    assert card.take().state.id == second
    assert card.ask("SELECT holder, bytes FROM reservations") == [(second, 200 * MIB)]


def test_the_queue_limit_is_for_new_requests_only(card: Desk) -> None:
    card.policy = Policy(headroom_bytes=0, unseen_margin_bytes=0, gpu_queue_limit=2, cpu_queue_limit=2)
    ids = [card.admit(max_units=95) for _ in range(2)]
    moved = card.submit(max_units=95)
    assert (moved.state.lane, moved.state.degraded and moved.state.degraded.rule) == ("cpu", "gpu-queue-full")
    assert {card.take().state.id, card.take().state.id} == set(ids)


@pytest.mark.parametrize(
    ("alike", "failover", "outcome"),
    [
        (True, "auto", "moved"),
        (True, "identical", "moved"),
        (True, "boundary", "waits"),
        (True, "never", "waits"),
        (False, "auto", "waits"),
    ],
)
def test_units_that_were_shown_go_to_the_cpu_lane_only_where_it_answers_alike(
    card: Desk, alike: bool, failover: str, outcome: str
) -> None:
    request = card.admit(max_units=195, failover=failover)
    claim = card.take()
    card.checkpoint(claim, 4)
    card.fault(request, "service-stopped")  # back into the GPU queue, from its checkpoint
    state = card.state(request)
    assert (state.state, state.lane, state.running) == ("checkpointed", "gpu", False)
    if not alike:
        contract = "UPDATE lanes SET contract='another' WHERE lane='cpu'"
        card.run(lambda tx: tx.execute(contract))
    card.show(total=TOTAL, used=250 * MIB, processes={})
    assert card.claim() is None
    state = card.state(request)
    assert state.units == 4
    assert state.lane == ("cpu" if outcome == "moved" else "gpu")
    if outcome == "moved":
        assert card.take("cpu").done == (*claim.done, 97, 98, 99, 100)
    else:
        assert state.waits_for is not None


def test_a_model_that_holds_its_requests_bytes_itself_needs_no_second_look(paths: Paths, clock: HandClock) -> None:
    desk = Desk(paths, clock)
    desk.policy = EXACT
    desk.open_lanes(total=TOTAL)
    desk.run(lambda tx: tx.execute("UPDATE lanes SET load_bytes=? WHERE lane='gpu'", (100 * MIB,)))
    desk.show(total=TOTAL, used=0, processes={})
    request = desk.admit()
    assert desk.ask("SELECT holder, bytes FROM reservations") == [("model:null", 100 * MIB)]
    desk.show(total=TOTAL, used=TOTAL, processes={})
    assert desk.take().state.id == request
    desk.close()


def test_two_models_share_one_card(paths: Paths, clock: HandClock) -> None:
    desk = Desk(paths, clock)
    desk.policy = EXACT
    desk.open_lanes(total=TOTAL, token=MIB, models=("null-a", "null-b"))
    desk.show(total=TOTAL, used=0, processes={})
    first = desk.admit(model="null-a", max_units=195)
    second = desk.admit(model="null-b", max_units=195)
    assert desk.state(second).waits_for == "fits-soon"

    def take(model: str) -> claims.Claim | None:
        who = claims.Owner(f"gpu-{model}", "gpu", model, "sim-0", owner("gpu").engine)
        return desk.run(lambda tx: claims.claim(tx, who, 15_000_000, EXACT))

    assert take("null-b") is None
    claim = take("null-a")
    assert claim is not None
    assert claim.state.id == first
    assert take("null-b") is None
    desk.complete(claim, 1)
    claim = take("null-b")
    assert claim is not None
    assert claim.state.id == second
    assert desk.run(lambda tx: reservations.promised(tx, second)) == 200 * MIB
    assert desk.run(lambda tx: laneviews.position(tx, desk_state(tx, second))) is None
    desk.close()


def desk_state(tx: object, request: str) -> object:
    return tx.state(request)  # type: ignore[attr-defined]
