"""Where work goes on when a server of others is a lane: as far as is proved, and never round and round.

Expected texts are arithmetic, as in test_upstream_lanes.py.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import FakeUpstream, answer
from house import House, house, until
from upstreams import (
    BOX,
    SUPPORT,
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

STAYS = ("never", "gpu-only", "boundary", "identical", "auto")


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    made = FakeUpstream()
    yield made
    made.close()


@contextlib.contextmanager
def lane_of(root: Path, fake: FakeUpstream, gpu: str | None = None, slots: int = 5, **fields: Any) -> Iterator[House]:
    """A service whose GPU lane is the server, unless `fields` say that it is the other one."""
    text = config(settings={"gpu_slots": slots}, **({"url": fake.url, "continues": "tokens"} | fields))
    with house(root / "data", gpu=gpu, config=text) as made:
        at_work_again(made, fields.get("lane", "gpu"))
        yield made


def requeues(home: House, request_id: str) -> list[str]:
    found = [event for event in home.events(request_id) if event["type"] == "Requeued"]
    return [event["data"]["decision"]["rule"] for event in found]


def test_it_is_shown_as_what_it_is(tmp_path: Path, fake: FakeUpstream) -> None:
    """A server of others: no card, no simulation, no memory of ours."""
    with lane_of(tmp_path, fake, gpu="1GiB") as home:
        (request_id,) = ask(home, "Who are you?")
        assert home.settled(request_id)["output"]["text"] == answer("Who are you?", UNITS)
        assert faults(home, request_id) == []
        lanes = {lane["lane"]: lane for lane in home.client.get("/api/lanes").json()["items"]}
        assert (lanes["gpu"]["device"], lanes["gpu"]["engine"]) == (BOX, "upstream/fake")
        assert (lanes["cpu"]["device"], lanes["cpu"]["engine"]) == ("cpu", "null/1")
        health = home.client.get("/health").json()
        assert health["status"] == "pass"
        computes = {one["lane"]: one for one in health["computes_on"]}
        assert (computes["gpu"]["device"], computes["gpu"]["simulated"]) == (BOX, False)
        devices = {device["id"]: device for device in home.client.get("/api/devices").json()["items"]}
        assert (devices[BOX]["total_bytes"], devices[BOX]["simulated"]) == (None, False)
        assert devices[BOX]["breaker"]["state"] == "closed"
        assert home.client.get("/readyz").status_code == 200
        (model,) = home.client.get("/api/models").json()["items"]
        assert (model["readiness"], model["serving"]) == ("warm", ["cpu", "gpu"])
        page = home.client.get(f"/requests/{request_id}").text
        assert BOX in page
        assert "simulated" not in page.partition("<main")[2]
        overview = home.client.get("/")
        assert overview.status_code == 200
        row = overview.text.partition("upstream/fake")[0].rpartition("<tr")[2]
        assert "GPU" in row
        assert "simulated" not in row
        assert home.stop() == 0


def test_without_a_proof_it_goes_on_where_it_began(tmp_path: Path, fake: FakeUpstream) -> None:
    """The same server takes it up again, and what was not shown yet may be moved."""
    with lane_of(tmp_path, fake) as home:
        fake.set(hang_after=22)
        with Watched(home, *ask(home, "What now?", "What then?")) as watched:
            views = watched.settled()
        for question, (request_id, view) in zip(("What now?", "What then?"), views.items(), strict=True):
            assert (view["state"], view["lane"]) == ("completed", "gpu")
            assert view["output"]["text"] == answer(question, UNITS)
            assert set(requeues(home, request_id)) == {"pair-none"}
        assert home.verify().ok


# ---- one that cannot go on ------------------------------------------------------------------------------------


def outcomes(home: House, fake: FakeUpstream, blow: str) -> dict[str, Any]:
    """By `failover`: what became of requests of which some was shown before the server, or the service, stopped."""
    fake.set(continues=[], **({"hang_after": 20} if blow == "fault" else {"slow_ms": 60}))
    ids = [home.submit(f"Who {stay}?", max_tokens=UNITS, failover=stay) for stay in STAYS]
    until(lambda: all(home.units(one) >= 6 for one in ids), "some of all to be shown")
    if blow == "restart":
        assert home.stop() == 0
        home.start()
    with Watched(home, *ids) as watched:
        views = watched.settled()
    for stay, view in zip(STAYS, views.values(), strict=True):
        shown, whole = view["output"]["text"], answer(f"Who {stay}?", UNITS)
        assert len(shown) >= 6
        assert whole.startswith(shown) or view["state"] == "completed"
        assert view["attempt"] <= 3
    return dict(zip(STAYS, views.values(), strict=True))


def ends(views: dict[str, Any]) -> dict[str, str]:
    return {stay: view["error"]["rule"] if view["error"] else view["lane"] for stay, view in views.items()}


@pytest.mark.parametrize("alike", [False, pytest.param(True, marks=pytest.mark.prove)], ids=["unproved", "proved"])
@pytest.mark.parametrize(
    ("blow", "never"),
    [("fault", "failover-never"), pytest.param("restart", "cannot-continue", marks=pytest.mark.prove)],
)
def test_nothing_goes_round_and_round(tmp_path: Path, fake: FakeUpstream, blow: str, never: str, alike: bool) -> None:
    """Declared to go on with messages, and found out not to: what it began ends elsewhere, or honestly."""
    fake.set(continues=[])
    with lane_of(tmp_path, fake, continues="message") as home:
        if alike:
            prove(home)
        views = outcomes(home, fake, blow)
        assert ends(views) == {
            "never": never,
            "gpu-only": "cannot-continue",
            "boundary": "boundary-passed",
            "identical": "pair-below-demand" if alike else "pair-none",
            "auto": "cpu" if alike else "pair-none",
        }
        if alike:
            cut = cut_at(home, views["auto"]["id"])
            assert views["auto"]["output"]["text"] == spliced("Who auto?", cut, UNITS)
        stopped = views["gpu-only"]
        assert "cannot go on" in stopped["error"]["detail"]
        fake.set(continues=[])
        at_work_again(home)
        resumed(home, stopped["id"])
        by_server(home, "And now?")


def resumed(home: House, request_id: str) -> None:
    """From its checkpoint it stops again, and says so; from the start it is a new output, and whole."""
    before = home.view(request_id)["output"]["text"]
    answered = home.client.post(f"/api/requests/{request_id}/resume", json={"from": "checkpoint"})
    assert answered.status_code == 202
    again = home.settled(request_id)
    assert (again["state"], again["error"]["rule"]) == ("resumable-error", "cannot-continue")
    assert again["output"]["text"] == before
    assert home.client.post(f"/api/requests/{request_id}/resume", json={"from": "start"}).status_code == 202
    anew = home.settled(request_id)
    assert (anew["state"], anew["output_epoch"]) == ("completed", 1)
    assert anew["output"]["text"] == answer("Who gpu-only?", UNITS)


# ---- one that is not there ------------------------------------------------------------------------------------


@pytest.mark.prove
def test_one_that_comes_late_is_taken_in_and_one_that_goes_is_done_without(tmp_path: Path) -> None:
    early = FakeUpstream()
    early.close()
    with house(tmp_path / "data", gpu=None, config=config(url=early.url, continues="tokens")) as home:
        first = home.settled(home.submit("Anybody there?", max_tokens=UNITS))
        assert (first["state"], first["lane"]) == ("completed", "cpu")
        assert first["output"]["text"] == built_in("Anybody there?", UNITS)
        until(lambda: not home.serves("gpu"), "the lane to be out")
        second = home.settled(home.submit("Still nobody?", max_tokens=UNITS))
        assert (second["lane"], second["degraded"]["rule"]) == ("cpu", "gpu-out")
        command = [sys.executable, "-m", "fake_upstream", "--port", str(early.port)]
        late = subprocess.Popen(command, cwd=SUPPORT)
        try:
            at_work_again(home)
            by_server(home, "And now?")
        finally:
            late.kill()
            late.wait()
        gone = home.settled(home.submit("Gone again?", max_tokens=UNITS))
        assert (gone["state"], gone["output"]["text"]) == ("completed", built_in("Gone again?", UNITS))
        assert [seen["device"] for seen in faults(home, gone["id"])] == [BOX]


# ---- as the CPU lane ------------------------------------------------------------------------------------------


def test_as_the_cpu_lane_it_takes_over_from_the_gpu_lane(tmp_path: Path, fake: FakeUpstream) -> None:
    # A lane that went out would hand its work back to the GPU lane, which is another story.
    with lane_of(tmp_path, fake, gpu="1GiB", lane="cpu", policy={"lane_out_after": 50}) as home:
        prove(home)
        question = "[[tps=60]] And who goes on?"
        (request_id,) = ask(home, question)
        with Watched(home, request_id) as watched:
            until(lambda: home.units(request_id) >= 6, "six units")
            fake.set(hang_after=20)
            home.send(home.runner("gpu"), signal.SIGKILL)
            view = watched.settled()[request_id]
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        cut = cut_at(home, request_id)
        assert view["output"]["text"] == built_in(question, cut) + answer(question, UNITS)[cut:]
        seen = [(one["fault"], one["lane"], one["device"]) for one in faults(home, request_id)]
        assert seen[0] == ("worker", "gpu", "sim-0")
        assert set(seen[1:]) == {("worker", "cpu", BOX)}, "it hung, and was asked again from where it was"
        assert set(requeues(home, request_id)) == {"cpu-worker-lost"}


@pytest.mark.prove
def test_as_the_cpu_lane_it_may_be_out_or_unable_to_go_on(tmp_path: Path, fake: FakeUpstream) -> None:
    fake.set(continues=[])
    with lane_of(tmp_path, fake, gpu="1GiB", lane="cpu") as home:
        prove(home)
        (request_id,) = ask(home, "[[tps=60]] Who goes on?")
        with Watched(home, request_id) as watched:
            until(lambda: home.units(request_id) >= 6, "six units")
            home.send(home.runner("gpu"), signal.SIGKILL)
            view = watched.settled()[request_id]
        assert (view["state"], view["error"]["rule"]) == ("resumable-error", "cannot-continue")
        assert built_in("[[tps=60]] Who goes on?", UNITS).startswith(view["output"]["text"])
        fake.set(status=500)
        home.send(home.runner("cpu"), signal.SIGKILL)
        until(lambda: not home.serves("cpu"), "the CPU lane to be out")
        (request_id,) = ask(home, "[[tps=60]] Who stays?")
        until(lambda: home.units(request_id) >= 6, "six units")
        home.send(home.runner("gpu"), signal.SIGKILL)
        view = home.settled(request_id)
        assert (view["state"], view["lane"]) == ("completed", "gpu")
        assert view["output"]["text"] == built_in("[[tps=60]] Who stays?", UNITS)
        fake.set()
        at_work_again(home, "cpu")
