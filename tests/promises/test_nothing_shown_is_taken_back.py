"""Promise 2: text a client has seen is never changed, repeated or skipped by a failover."""

import json
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from house import FAST, House, house, until

QUESTION = "Tell me why the sky is blue, in a few sentences."
SAMPLED = {"max_tokens": 96, "temperature": 0.8, "seed": 7}
GREEDY = {"max_tokens": 96, "temperature": 0.0, "seed": 7}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("null") / "data", config=FAST) as made:
        yield made


@pytest.fixture
def null_house(shared: House) -> House:
    """One service for all of them: they strike its runners only."""
    return shared.well()


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, str]:
    return {}


def reference(home: House, known: dict[str, str], name: str, options: dict[str, Any]) -> str:
    if name not in known:
        view = home.settled(home.submit(QUESTION, **options))
        assert view["state"] == "completed"
        assert view["degraded"] is None
        known[name] = view["output"]["text"]
        assert len(known[name]) > 40
    return known[name]


def strike(home: House, seed: int, request_id: str) -> None:
    """One seeded blow at a seeded moment: the GPU runner, both runners, or the whole house."""
    draw = random.Random(seed)
    moment = draw.choice([0, 0, 2, 2, 6, 14, 14, 30, 46])
    until(lambda: home.units(request_id) >= moment or home.state(request_id) == "completed", f"{moment} units")
    what = ("gpu", "gpu", "both", "house")[seed % 4]
    if what == "house":
        home.kill()
        home.start()
        return
    for lane in ("gpu", "cpu")[: 2 if what == "both" else 1]:
        home.send(home.runner(lane), signal.SIGKILL)


@pytest.mark.model
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.prove) for n in range(4, 20))])
def test_the_answer_is_the_same_whenever_and_whatever_is_killed(
    model_house: House, undisturbed: dict[str, str], seed: int
) -> None:
    name, options = ("sampled", SAMPLED) if seed % 5 else ("greedy", GREEDY)
    expected = reference(model_house, undisturbed, name, options)
    request_id = model_house.submit(QUESTION, **options)
    strike(model_house, seed, request_id)
    view = model_house.settled(request_id)
    assert view["state"] == "completed"
    assert view["output"]["text"] == expected
    replay = model_house.replay(request_id)
    assert replay["decisions"]
    assert all(decision["same"] for decision in replay["decisions"])
    assert model_house.verify().ok


def test_every_frame_a_reader_saw_is_a_piece_of_the_final_text(null_house: House) -> None:
    request_id = null_house.submit("[[tps=100]] watched", max_tokens=64)
    seen: list[str] = []

    def watch() -> None:
        with null_house.client.stream(
            "GET", f"/api/requests/{request_id}/events", headers={"Accept": "text/event-stream"}
        ) as answer:
            seen.extend(answer.iter_lines())

    reader = threading.Thread(target=watch)
    reader.start()
    until(lambda: null_house.units(request_id) >= 6, "some text")
    null_house.send(null_house.runner("gpu"), signal.SIGKILL)
    final = null_house.settled(request_id)
    reader.join()
    frames = [json.loads(line.removeprefix("data: ")) for line in seen if line.startswith("data: ")]
    deltas = [frame["delta"] for frame in frames if "delta" in frame]
    assert "Rerouted" in [frame["type"] for frame in frames]
    assert "".join(delta["text"] for delta in deltas) == final["output"]["text"]
    position = 0
    for delta in deltas:
        assert (delta["from"], delta["to"]) == (position, position + len(delta["text"]))
        position = delta["to"]


def test_interrupted_answers_are_all_the_undisturbed_ones(null_house: House, kills: int, record_property: Any) -> None:
    """Each SIGKILL interrupts up to a dozen answers, each at a moment of its own."""
    draw = random.Random(2026)
    prompts = [f"[[tps=60]] question {n}" for n in range(8)]
    expected = {p: null_house.settled(null_house.submit(p, max_tokens=48))["output"]["text"] for p in prompts}
    running: dict[str, str] = {}
    finished = 0
    before = interrupted(null_house)
    while interrupted(null_house) - before < kills:
        while len(running) < 12:
            prompt = draw.choice(prompts)
            running[null_house.submit(prompt, max_tokens=48)] = prompt
        threading.Event().wait(draw.random() * 0.4)
        null_house.send(null_house.runner("gpu" if draw.random() < 0.6 else "cpu"), signal.SIGKILL)
        for request_id in [r for r in running if null_house.state(r) == "completed"]:
            assert null_house.view(request_id)["output"]["text"] == expected[running.pop(request_id)]
            finished += 1
    for request_id, prompt in running.items():
        view = null_house.settled(request_id)
        assert (view["state"], view["output"]["text"]) == ("completed", expected[prompt])
        finished += 1
    record_property("interrupted answers", interrupted(null_house) - before)
    record_property("all equal of", finished)
    assert finished >= 24
    assert null_house.verify().ok


def interrupted(home: House) -> int:
    return int(home.rows("SELECT count(*) FROM events WHERE type='FaultSeen' AND stream LIKE 'req%'")[0][0])


@pytest.mark.parametrize("cap", [1, 2, 3, 16])
def test_characters_and_stop_strings_split_at_every_boundary_are_never_half_shown(null_house: House, cap: int) -> None:
    text = r"[[emit=ab\xf0\x9f\xa6\x9ccd\xe2\x82\xacef]] [[tps=300]]"
    view = null_house.settled(null_house.submit(text, max_tokens=11 + cap, stop=["🦜cdX", "never"]))
    whole = "ab🦜cd€ef"
    assert whole.startswith(view["output"]["text"])
    frames = [event["delta"]["text"] for event in null_house.events(view["id"]) if "delta" in event]
    assert "".join(frames) == view["output"]["text"]
    assert "�" not in "".join(frames) or view["finish_reason"] == "length"


@pytest.mark.parametrize("at", [1, 4, 7])
def test_a_stop_string_never_leaks_wherever_a_kill_falls(null_house: House, at: int) -> None:
    answer = "x" * at + "STOP" + "leaked"
    request_id = null_house.submit(f"[[emit={answer}]] [[tps=30]]", max_tokens=40, stop=["STOP"])
    until(lambda: null_house.units(request_id) >= 2 or null_house.state(request_id) == "completed", "two units")
    null_house.send(null_house.runner("gpu"), signal.SIGKILL)
    view = null_house.settled(request_id)
    assert (view["output"]["text"], view["finish_reason"]) == ("x" * at, "stop")
    assert all("S" not in event["delta"]["text"] for event in null_house.events(request_id) if "delta" in event)
