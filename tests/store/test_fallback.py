"""A smaller model serves where a request allows it and no lane can take the one that it asked for."""

import msgspec
import pytest
from desk import CONTRACT, LEASE_US, Desk, lane_row, owner, submission

from core import events as ev
from core.replay import redecide
from store import claims, laneviews
from store.journal import Tx
from store.submit import Submitted, submit

SMALL = "small"


@pytest.fixture
def two(desk: Desk) -> Desk:
    """Beside the model `null` a smaller one, with lanes of its own."""

    def unit(tx: Tx) -> None:
        for lane in ("gpu", "cpu"):
            laneviews.put_lane(tx, msgspec.structs.replace(lane_row(lane), model=SMALL, contract="of-small"))

    desk.run(unit)
    return desk


def close(desk: Desk, model: str = "null") -> None:
    for lane in ("gpu", "cpu"):
        desk.run(lambda tx, lane=lane: laneviews.set_serving(tx, lane, model, "load-failed", actor="test"))


def ask(desk: Desk, *, allowed: bool, **fields: object) -> Submitted:
    sub = submission(**fields)
    small = msgspec.structs.replace(sub, model=SMALL, contract="of-small", tokens=(1, 2, 3))
    whole = msgspec.structs.replace(sub, fallback=small if allowed else None)
    return desk.run(lambda tx: submit(tx, whole, desk.policy))


def test_the_model_asked_for_serves_while_it_can(two: Desk) -> None:
    state = ask(two, allowed=True).state
    assert (state.model, state.served_model, state.asked_model, state.degraded) == ("null", "null", None, None)


def test_only_who_allows_it_gets_the_smaller_one(two: Desk) -> None:
    close(two)
    assert ask(two, allowed=False).outcome == "refused"
    state = ask(two, allowed=True).state
    assert (state.model, state.served_model, state.asked_model) == (SMALL, SMALL, "null")
    assert (state.contract, state.prompt_tokens, state.lane) == ("of-small", 3, "gpu")
    assert state.degraded is not None
    assert (state.degraded.rule, state.degraded.reason, state.degraded.model) == ("fallback-model", "no-lane", SMALL)


def test_the_refusal_is_kept_and_asked_again(two: Desk) -> None:
    close(two)
    request = ask(two, allowed=True).state.id
    admitted = two.events(request)[0].event
    assert isinstance(admitted, ev.Admitted)
    assert (admitted.model, admitted.served_model) == ("null", SMALL)
    assert admitted.instead is not None
    assert [one.rule for one in redecide(two.events(request))] == ["no-lane", "gpu-ready"]
    assert all(one.same for one in redecide(two.events(request)))
    assert two.verify().ok


def test_where_the_smaller_one_cannot_be_taken_either_the_first_refusal_stands(two: Desk) -> None:
    close(two)
    close(two, SMALL)
    refused = ask(two, allowed=True)
    assert (refused.outcome, refused.state.model, refused.state.ended_by) == ("refused", "null", "no-lane")


def test_it_stays_a_smaller_model_wherever_it_goes(two: Desk) -> None:
    close(two)
    request = ask(two, allowed=True).state.id
    runner = msgspec.structs.replace(owner("gpu", ""), model=SMALL, contract="of-small")
    claim = two.run(lambda tx: claims.claim(tx, runner, LEASE_US, two.policy))
    assert claim is not None
    assert claim.state.id == request
    assert claim.spec.tokens == (1, 2, 3)
    state = two.state(request)
    assert state.degraded is not None
    assert state.degraded.model == SMALL
    assert state.contract != CONTRACT
