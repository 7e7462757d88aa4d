"""The promises with a server of others as a lane: whatever it does, nobody's answer is lost, changed or told twice.

What the made-up server and the built-in model say is arithmetic, done again in `fake_upstream` and `upstreams`; a text
that was moved must be the one up to the cut, and the other from there on, token for token.
"""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from fake_upstream import FakeUpstream, answer
from house import House, house, until
from upstreams import (
    BOX,
    UNITS,
    Watched,
    ask,
    at_work_again,
    built_in,
    by_server,
    config,
    cut_at,
    faults,
    prove,
    spliced,
)


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeUpstream]:
    made = FakeUpstream()
    yield made
    made.close()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, fake: FakeUpstream) -> Iterator[House]:
    """The server is the GPU lane, asked for three answers at once, and said to be proved alike."""
    text = config(url=fake.url, continues="tokens", settings={"gpu_slots": 3})
    with house(tmp_path_factory.mktemp("proved") / "data", gpu=None, config=text) as made:
        prove(made)
        yield made


@pytest.fixture
def proved(built: House, fake: FakeUpstream) -> House:
    """Nothing wrong with either, whatever the test before it left."""
    fake.set()
    at_work_again(built)
    return built


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"hang_after": 22}, "gave no sign of progress for 1 s"),
        pytest.param({"hang_after": 22, "pings": True}, "gave no sign of progress for 1 s", marks=pytest.mark.prove),
        ({"reset_after": 25}, "broke off its answer"),
        pytest.param({"cut_after": 17}, "broke off its answer", marks=pytest.mark.prove),
        pytest.param(
            {"error_after": 30, "error": "no 'idea'"}, "ended its answer with an error", marks=pytest.mark.prove
        ),
        ({"garbage_after": 19}, "sent what is not JSON in its stream"),
        ({"no_finish": True, "stop_at": 33}, "answer broke off"),
    ],
    ids=["silence", "pings", "reset", "cut", "error", "garbage", "no-end"],
)
def test_what_was_shown_stays_and_the_cpu_lane_goes_on(
    proved: House, fake: FakeUpstream, fault: dict[str, Any], told: str
) -> None:
    """It breaks in the middle of answers that were shown in part; three at once, and one that waits for a place."""
    fake.set(**fault)
    questions = [f"What breaks {name}?" for name in "abcd"]
    with Watched(proved, *ask(proved, *questions)) as watched:
        views = watched.settled()
    for question, (request_id, view) in zip(questions, views.items(), strict=True):
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        cut = cut_at(proved, request_id)
        assert view["degraded"]["rule"] == ("continue-faithful" if cut else "restart-nothing-shown")
        assert cut < UNITS
        assert view["output"]["text"] == spliced(question, cut, UNITS)
        assert [(seen["fault"], seen["device"]) for seen in faults(proved, request_id)] == [("worker", BOX)]
    assert any(cut_at(proved, request_id) for request_id in views), "some of it was shown before"
    struck = [seen["evidence"] for one in views for seen in faults(proved, one) if "error" in seen["evidence"]]
    assert struck, "others lost their worker with them"
    for evidence in struck:
        assert evidence["error"] == "EngineFault"
        assert evidence["why"].endswith(told), "and nothing of what the server said"
    fake.set()
    at_work_again(proved)
    by_server(proved, "And now?")


@pytest.mark.parametrize(
    "fault",
    [
        {"ignore": True},
        pytest.param({"hang_after": 0}, marks=pytest.mark.prove),
        {"status": 500},
        pytest.param({"status": 503}, marks=pytest.mark.prove),
        pytest.param({"status": 401}, marks=pytest.mark.prove),
        {"garbage": "<html>Welcome!</html>"},
        pytest.param({"garbage": '{"choices": []}', "garbage_type": "application/json"}, marks=pytest.mark.prove),
        pytest.param({"letters": "?!"}, marks=pytest.mark.prove),
    ],
    ids=["accepts-and-ignores", "silence", "500", "503", "401", "a-page", "json", "no-words"],
)
def test_one_that_gives_no_answer_at_all_takes_nobodys_answer_away(
    proved: House, fake: FakeUpstream, fault: dict[str, Any]
) -> None:
    """Its health page stays green. Those that wait for it are moved once it is clear that it stays away."""
    fake.set(**fault)
    proved.send(proved.runner("gpu"), signal.SIGKILL)
    questions = [f"What is mute {name}?" for name in "abcd"]
    with Watched(proved, *ask(proved, *questions)) as watched:
        views = watched.settled()
    for question, view in zip(questions, views.values(), strict=True):
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        assert view["degraded"]["rule"] in {"restart-nothing-shown", "gpu-out"}
        assert view["output"]["text"] == built_in(question, UNITS)
    until(lambda: not proved.serves("gpu"), "the lane to be out")
    health = proved.client.get("/health").json()
    assert (health["status"], [one["lane"] for one in health["computes_on"]]) == ("warn", ["cpu"])
    assert "GPU lane" in proved.client.get("/").text
    fake.set()
    at_work_again(proved)
    by_server(proved, "And now?")


def test_one_bad_answer_is_one_requests_trouble(proved: House, fake: FakeUpstream) -> None:
    """Others that run beside it end where they began, however long they take, and the lane goes on."""
    fake.set(slow_ms=90)
    neighbours = ask(proved, "Long one?", "Long two?", max_tokens=60)
    until(lambda: all(proved.units(one) >= 2 for one in neighbours), "both to be under way")
    with Watched(proved, *neighbours) as watched:
        fake.set(slow_ms=90, status=500, times=1)
        (struck,) = ask(proved, "Which one?")
        view = proved.settled(struck)
        assert (view["lane"], view["output"]["text"]) == ("cpu", built_in("Which one?", UNITS))
        (seen,) = faults(proved, struck)
        assert (seen["fault"], seen["device"]) == ("worker", BOX)
        assert seen["evidence"]["why"].endswith("answered 500")
        views = watched.settled()
    for question, view in zip(("Long one?", "Long two?"), views.values(), strict=True):
        assert (view["state"], view["lane"], view["attempt"]) == ("completed", "gpu", 1)
        assert view["output"]["text"] == answer(question, 60)
    fake.set()
    at_work_again(proved)
    by_server(proved, "And now?")


def test_slow_is_no_fault(proved: House, fake: FakeUpstream) -> None:
    """A token every so often is progress, though the whole takes longer than any silence may."""
    fake.set(slow_ms=60, first_ms=300)
    with Watched(proved, *ask(proved, "How slow?", "How slow?")) as watched:
        views = watched.settled()
    for request_id, view in views.items():
        assert (view["state"], view["lane"], faults(proved, request_id)) == ("completed", "gpu", [])
        assert view["output"]["text"] == answer("How slow?", UNITS)
    fake.set()


def test_a_cancelled_one_ends_and_leaves_the_server(proved: House, fake: FakeUpstream) -> None:
    """Even while the server is silent."""
    fake.set(hang_after=20)
    (request_id,) = ask(proved, "Still there?")
    until(lambda: proved.units(request_id) >= 14, "some text")
    assert proved.client.post(f"/api/requests/{request_id}/cancel").status_code in {200, 202}
    assert proved.settled(request_id)["state"] == "cancelled"
    assert faults(proved, request_id) == []
    fake.set()
    by_server(proved, "And now?")


def test_the_record_of_it_all_is_whole(proved: House) -> None:
    assert proved.verify().ok
    open_ones = proved.rows("SELECT id FROM requests WHERE state NOT IN ('completed','cancelled','resumable-error')")
    assert open_ones == []
