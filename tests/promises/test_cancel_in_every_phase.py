"""Promise: a cancel settles wherever the request is, frees what it held, and nothing is completed after it.

One service for all: its prompts take time (400 tokens a second), and a hang is nobody's business but the cancel's.
"""

import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from house import SETTLED, House, house, until
from null_answer import answer_to

CONFIG = """
[policy]
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
hang_grace_s = 3600
lease_s = 3600
return_to_gpu = false
cpu_queue_limit = 1000
"""
ENDS = {"Completed", "Cancelled", "Expired", "Failed"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("cancel") / "data", config=CONFIG)
    try:
        yield made.start({"FAILSOFT_NULL_PREFILL_TPS": "400"})
    finally:
        made.client.close()
        if made.process is not None and made.process.poll() is None:
            made.kill()


def at_rest(home: House) -> None:
    """Nothing runs, nothing is owned, both lanes are ready: by the store, and by what is told outside."""
    until(lambda: home.rows("SELECT count(*) FROM leases") == [(0,)], "no leases")
    until(lambda: in_flight(home) == 0, "no work under way")
    until(lambda: home.serves() and home.runner("gpu") and home.runner("cpu"), "both lanes")


def in_flight(home: House) -> int:
    lanes = home.patiently(lambda: home.client.get("/api/lanes")).json()["items"]
    return sum(lane["running"] for lane in lanes)


def cancel(home: House, request_id: str) -> httpx.Response:
    return home.patiently(lambda: home.client.post(f"/api/requests/{request_id}/cancel", json={}))


def stopped(home: House, request_id: str) -> dict[str, Any]:
    """It has come to its end by the cancel, once, with nothing after it, and says so the next time as well."""
    view = home.settled(request_id)
    assert view["state"] == "cancelled"
    types = home.types(request_id)
    assert [name for name in types if name in ENDS] == ["Cancelled"]
    assert types[-1] == "Cancelled"
    again = cancel(home, request_id)
    assert (again.status_code, again.json()["state"]) == (202, "cancelled")
    return view


def serves_others(home: House) -> None:
    view = home.settled(home.submit("[[tps=0]] next", max_tokens=8))
    assert view["state"] == "completed"
    at_rest(home)


def test_in_the_queue(home: House) -> None:
    """All places are taken; who waits is out at once, and never began."""
    filling = [home.submit(f"[[tps=5]] {n}", max_tokens=400) for n in range(17)]
    until(lambda: home.rows("SELECT count(*) FROM requests WHERE running=1") == [(16,)], "all places taken")
    (waiting,) = [one for one in filling if not home.view(one)["running"]]
    assert cancel(home, waiting).json()["state"] == "cancelled"
    stopped(home, waiting)
    assert home.types(waiting) == ["Admitted", "CancelAsked", "Cancelled"]
    for one in filling:
        assert cancel(home, one).status_code == 202
    for one in filling:
        stopped(home, one)
    serves_others(home)


@pytest.mark.prove
def test_while_its_model_is_not_up(tmp_path: Path) -> None:
    slow = CONFIG.replace("restart_backoff_s = 0.02", "restart_backoff_s = 3600").replace("max_s = 0.1", "max_s = 3600")
    with house(tmp_path / "data", config=slow) as home:
        home.send(home.runner("gpu"), signal.SIGKILL)
        until(lambda: home.rows("SELECT 1 FROM events WHERE type='RunnerExited'"), "the runner to be missed")
        request_id = home.submit("x", max_tokens=4, failover="gpu-only")
        assert home.state(request_id) == "admitted"
        assert cancel(home, request_id).json()["state"] == "cancelled"
        stopped(home, request_id)
        assert "Started" not in home.types(request_id)
        assert home.verify().ok


def test_while_its_prompt_is_read(home: House) -> None:
    """4,000 tokens take 10 seconds; its worker stops within a step of it, and lives."""
    runner = home.runner("gpu")
    request_id = home.submit("", prompt="p" * 4000, max_tokens=64)
    until(lambda: home.view(request_id)["running"], "it to be taken up")
    cancel(home, request_id)
    view = stopped(home, request_id)
    assert (view["output"]["text"], home.units(request_id)) == ("", 0)
    assert "FaultSeen" not in home.types(request_id)
    assert home.runner("gpu") == runner
    serves_others(home)


def test_in_the_middle_of_an_answer(home: House) -> None:
    """At token 20 of 2,048: what was shown stays, the rest is never computed, and the worker lives."""
    runner = home.runner("gpu")
    prompt = "[[tps=40]] long"
    request_id = home.submit("", prompt=prompt, max_tokens=2048)
    until(lambda: home.units(request_id) >= 20, "20 tokens")
    cancel(home, request_id)
    view = stopped(home, request_id)
    done = view["progress"]["done"]
    assert 20 <= done < 2048
    assert view["output"]["text"] == answer_to(prompt, done)
    assert "FaultSeen" not in home.types(request_id)
    assert home.runner("gpu") == runner
    serves_others(home)


def test_in_the_queue_of_the_cpu_lane(home: House) -> None:
    """Of 18 that were moved 16 work there; those that wait are out at once, and what works soon."""
    at_rest(home)
    ids: list[str] = []
    for count in (16, 2):
        more = [home.submit(f"[[tps=10]] {n}", max_tokens=400) for n in range(count)]
        until(lambda more=more: all(home.units(one) >= 2 for one in more), "all at work")  # type: ignore[misc]
        home.send(home.runner("gpu"), signal.SIGKILL)
        ids += more
        until(lambda more=more: all(home.view(one)["lane"] == "cpu" for one in more), "the moves")  # type: ignore[misc]
    until(lambda: in_flight(home) == 16, "all places of the CPU lane to be taken")
    runner = home.runner("cpu")
    views = {one: home.view(one) for one in ids}
    waiting = [one for one, view in views.items() if not view["running"]]
    assert len(waiting) == 2
    assert cancel(home, waiting[0]).json()["state"] == "cancelled"
    stopped(home, waiting[0])
    working = next(one for one, view in views.items() if view["running"])
    cancel(home, working)
    stopped(home, working)
    until(lambda: home.view(waiting[1])["running"], "the next one")
    for one in ids:
        assert cancel(home, one).status_code == 202
    for one in ids:
        stopped(home, one)
    assert home.runner("cpu") == runner
    serves_others(home)


@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.prove)])
def test_while_it_is_moved(home: House, rounds: int) -> None:
    """A runner is killed and a cancel asked at nearly the same moment, in an order of their own each time."""
    draw = random.Random(rounds)
    ends = set()
    for n in range(rounds):
        at_rest(home)
        request_id = home.submit(f"[[tps=100]] moved {n}", max_tokens=draw.choice([24, 2000]))
        until(lambda one=request_id: home.units(one) >= 4, "four units")  # type: ignore[misc]
        gpu = home.runner("gpu")
        later = threading.Timer(draw.random() * 0.1, home.send, (gpu, signal.SIGKILL))
        late = threading.Timer(draw.random() * 0.1, cancel, (home, request_id))
        for one in (later, late):
            one.start()
        for one in (later, late):
            one.join()
        until(lambda one=request_id: home.state(one) in SETTLED, "its end")  # type: ignore[misc]
        types = home.types(request_id)
        assert len([name for name in types if name in ENDS]) == 1, types
        ends.add(home.state(request_id))
        assert all(decision["same"] for decision in home.replay(request_id)["decisions"])
    assert "cancelled" in ends
    at_rest(home)
    assert home.verify().ok


def test_a_worker_that_does_not_obey_is_ended_and_its_neighbour_is_not_lost(home: House) -> None:
    """It hangs in native code on both lanes' engines alike; nothing else would end it here."""
    at_rest(home)
    runner = home.runner("gpu")
    neighbour = home.submit("[[tps=20]] neighbour", max_tokens=200)
    deaf = home.submit("[[hang@8]]", max_tokens=64)
    until(lambda: home.view(deaf)["running"] and home.units(neighbour) >= 4, "both at work")
    cancel(home, deaf)
    view = stopped(home, deaf)
    assert view["output"]["text"] == answer_to("user: [[hang@8]]\nassistant:", view["progress"]["done"])
    (fault,) = [event["data"] for event in home.events(deaf) if event["type"] == "FaultSeen"]
    assert (fault["kind"], fault["evidence"]["ended_for"]) == ("hung", "cancel-ignored")
    assert home.runner("gpu") != runner
    other = home.settled(neighbour)
    blamed = [event["data"]["blames_input"] for event in home.events(neighbour) if event["type"] == "FaultSeen"]
    assert blamed == [False], "which request it was is known"
    assert (other["state"], other["lane"]) == ("completed", "cpu")
    assert other["output"]["text"] == answer_to("user: [[tps=20]] neighbour\nassistant:", 200)
    serves_others(home)


@pytest.mark.prove
def test_on_the_cpu_lane_a_worker_that_does_not_obey_frees_its_place(home: House) -> None:
    """The others there go on once the process is gone, from where they were."""
    at_rest(home)
    deaf = home.submit("[[tps=50]][[hang@60]]", max_tokens=100)
    next_one = home.submit("[[tps=50]] next", max_tokens=100)
    until(lambda: home.units(deaf) >= 4 and home.units(next_one) >= 4, "both at work")
    home.send(home.runner("gpu"), signal.SIGKILL)
    until(lambda: home.units(deaf) >= 44 and home.view(deaf)["lane"] == "cpu", "it to be near its end there")
    time.sleep(1.5)  # 16 tokens to go, at 50 a second
    runner = home.runner("cpu")
    cancel(home, deaf)
    stopped(home, deaf)
    view = home.settled(next_one)
    assert (view["state"], view["lane"]) == ("completed", "cpu")
    assert view["output"]["text"] == answer_to("user: [[tps=50]] next\nassistant:", 100)
    assert home.runner("cpu") != runner
    serves_others(home)


def test_who_hangs_up_cancels_nothing(home: House) -> None:
    """A reader of the stream and a caller that waits both go away in the middle; the answer is made, and is there."""
    prompt = "[[tps=60]] gone"
    request_id = home.submit("", prompt=prompt, max_tokens=80)
    with home.client.stream(
        "GET", f"/api/requests/{request_id}/events", headers={"Accept": "text/event-stream"}
    ) as told:
        for line in told.iter_lines():
            if '"delta"' in line:
                break
    body = {"model": "null", "prompt": prompt, "max_tokens": 80}
    with pytest.raises(httpx.ReadTimeout):
        home.client.post("/api/requests", json=body, headers={"Prefer": "wait=60", "Idempotency-Key": "k"}, timeout=0.5)
    kept = home.client.post("/api/requests", json=body, headers={"Idempotency-Key": "k"}).json()["id"]
    for one in (request_id, kept):
        view = home.settled(one)
        assert (view["state"], view["attempt"], view["output"]["text"]) == ("completed", 1, answer_to(prompt, 80))
        assert "CancelAsked" not in home.types(one)
    at_rest(home)


def test_the_record_of_it_all_is_whole(home: House) -> None:
    assert home.verify().ok
    assert home.rows("SELECT id FROM requests WHERE state NOT IN ('completed','cancelled')") == []
    assert home.rows("SELECT count(*) FROM reservations WHERE kind='request'") == [(0,)]
