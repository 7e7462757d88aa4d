"""Admission as one transaction: the event, the contents, the row and the key, or nothing."""

import pytest
from desk import MODEL, Desk, submission

from core import events as ev
from core.errors import Impossible
from core.replay import redecide
from store import laneviews, submit


def test_admitted_with_its_contents_and_its_decision(desk: Desk) -> None:
    answer = desk.submit(stops=("END",), idempotency_key="k")
    request = answer.state.id
    assert (answer.outcome, answer.state.state, answer.state.lane) == ("new", "admitted", "gpu")
    (admitted,) = desk.events(request)
    assert isinstance(admitted.event, ev.Admitted)
    assert admitted.event.decision.rule == "gpu-ready"
    assert [again.same for again in redecide([admitted])] == [True]
    assert desk.take().spec.stops == ("END",)
    assert "hello" not in desk.ask("SELECT data FROM events WHERE stream=?", request)[0][0]


def test_the_same_key_answers_the_same_request(desk: Desk) -> None:
    first = desk.submit(idempotency_key="k")
    again = desk.submit(idempotency_key="k")
    assert (again.outcome, again.state.id) == ("replayed", first.state.id)
    assert desk.ask("SELECT count(*) FROM events WHERE type='Admitted'") == [(1,)]
    desk.complete(desk.take(), 2)
    assert desk.submit(idempotency_key="k").state.state == "completed"
    with pytest.raises(Impossible, match="different body") as told:
        desk.submit(idempotency_key="k", body_digest="of-another-body")
    assert told.value.code == "idempotency_key_reused"
    assert desk.submit(idempotency_key="k", owner="somebody-else").outcome == "new"


def test_two_with_one_key_in_one_batch(desk: Desk) -> None:
    subs = [submission(idempotency_key="k") for _ in range(8)]
    futures = [desk.writer.submit(lambda tx, sub=sub: submit.submit(tx, sub, desk.policy)) for sub in subs]
    answers = [future.result(60) for future in futures]
    assert [answer.outcome for answer in answers] == ["new"] + ["replayed"] * 7
    assert len({answer.state.id for answer in answers}) == 1


def test_too_long_leaves_nothing_behind(desk: Desk) -> None:
    head = desk.ask("SELECT seq FROM head")
    with pytest.raises(Impossible, match="8200") as told:
        desk.submit(max_units=8195, idempotency_key="k")
    assert told.value.extra["context"] == 8192
    assert desk.ask("SELECT seq FROM head") == head
    assert desk.submit(max_units=8187, idempotency_key="k").outcome == "new"


def test_a_full_gpu_queue_spills_and_full_queues_refuse(desk: Desk) -> None:
    policy = desk.policy
    lanes = [desk.submit().state.lane for _ in range(policy.gpu_queue_limit + policy.cpu_queue_limit)]
    assert lanes == ["gpu"] * policy.gpu_queue_limit + ["cpu"] * policy.cpu_queue_limit
    refused = desk.submit(idempotency_key="k")
    assert (refused.outcome, refused.state.ended_by, refused.state.retry_after_s) == ("refused", "queue-full", 5)
    desk.take("cpu")
    assert desk.submit(idempotency_key="k").outcome == "new", "a refusal does not use up the key"
    assert desk.ask("SELECT count(*) FROM contents WHERE request_id=?", refused.state.id) == [(0,)]
    assert desk.verify().ok


def test_a_cpu_only_machine(bare: Desk) -> None:
    bare.open_lanes(gpu=None)
    request = bare.admit()
    state = bare.state(request)
    assert (state.state, state.lane, state.failovers[0].from_lane) == ("rerouted-cpu", "cpu", None)
    assert state.degraded is not None
    assert bare.take("cpu").state.id == request


def test_a_refusal_says_whether_trying_again_can_help(bare: Desk) -> None:
    bare.open_lanes(gpu=None)
    refused = bare.submit(failover="gpu-only")
    assert (refused.outcome, refused.state.retry_after_s) == ("refused", None), "there is no GPU here at all"


def test_a_gpu_that_is_out_may_come_back(desk: Desk) -> None:
    desk.run(lambda tx: laneviews.set_serving(tx, "gpu", MODEL, "device-lost", actor="test"))
    refused = desk.submit(failover="gpu-only")
    assert (refused.outcome, refused.state.retry_after_s) == ("refused", 5)
    assert desk.submit().state.lane == "cpu"


def test_a_draining_service_refuses(desk: Desk) -> None:
    desk.run(lambda tx: tx.execute("INSERT INTO service (key, value) VALUES ('draining', '1')"))
    assert desk.submit().state.ended_by == "draining"
