"""A worker or a server that answers garbage, hangs, fails or crawls while its health page is green: found, and left.

How long each took is noted; that it was found, what was said of it and where the work went is asserted.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import FakeUpstream
from house import ROOT, House, house, kept, until
from upstreams import BOX, built_in, config, prove, spliced

from runners.devices.simulated import SimulatedDevice

POLICY = {"canary_every_s": 0.3, "breaker_cooldown_s": 1.0, "breaker_faults": 1, "slow_factor": 0.2}
LONG = 100


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    made = FakeUpstream()
    yield made
    made.close()


def openings(home: House, device: str) -> list[str]:
    """Rules by which its breaker opened."""
    rows = home.rows(
        "SELECT json_extract(data, '$.decision.rule') FROM events WHERE stream=? AND type='BreakerOpened' ORDER BY seq",
        f"device-{device}",
    )
    return [rule for (rule,) in rows]


def told(note: Callable[[str, object], None], began: float) -> None:
    note("found after", f"{time.monotonic() - began:.2f} s")


def work_until(home: House, found: Callable[[], Any], what: str) -> None:
    """Give the lane something to do again and again; a lane that does nothing is asked nothing."""

    def again() -> Any:
        home.settled(home.submit("hello", max_tokens=4))
        return found()

    until(again, what)


def test_a_card_that_computes_garbage_is_found_by_its_canary(tmp_path: Path, record_property: Any) -> None:
    text = "[policy]\ncanary_every_s = 0.3\nbreaker_cooldown_s = 0.5\nrestart_backoff_s = 0.02\nsnapshot_bytes = 0\n"
    with house(tmp_path / "data", config=text) as home:
        home.runner("gpu")
        assert home.settled(home.submit("before", max_tokens=8))["lane"] == "gpu"
        device = SimulatedDevice(home.paths.sim / "sim-0.json")
        device.set_garbage(garbage=True)
        began = time.monotonic()
        work_until(home, lambda: openings(home, "sim-0"), "the breaker to open")
        told(record_property, began)
        assert openings(home, "sim-0")[0] == "canary-wrong"
        view = home.settled(home.submit("meanwhile", max_tokens=20))
        assert (view["lane"], view["output"]["text"]) == ("cpu", built_in("meanwhile", 20))
        until(lambda: len(openings(home, "sim-0")) >= 2, "it to be tried, and found wrong again")
        assert not home.rows("SELECT 1 FROM events WHERE type='BreakerClosed'")
        device.set_garbage(garbage=False)
        until(lambda: home.serves() and home.runner("gpu"), "the card to be trusted again")
        view = home.settled(home.submit("and now", max_tokens=20))
        assert (view["lane"], view["output"]["text"]) == ("gpu", built_in("and now", 20))
        assert home.verify().ok


@pytest.mark.prove
def test_a_card_that_is_fast_and_wrong_from_the_start_never_gets_work(tmp_path: Path) -> None:
    home = House(tmp_path / "data", config="[policy]\nrestart_backoff_s = 0.02\nbreaker_cooldown_s = 0.5\n")
    SimulatedDevice(home.paths.sim / "sim-0.json", 1 << 30).set_garbage(garbage=True)
    with kept(home):
        home.start()
        until(lambda: openings(home, "sim-0"), "the card to be found wrong")
        view = home.settled(home.submit("hello", max_tokens=20))
        assert (view["lane"], view["output"]["text"]) == ("cpu", built_in("hello", 20))
        until(lambda: len(openings(home, "sim-0")) >= 2, "it to be tried again")
        assert set(openings(home, "sim-0")) == {"canary-wrong"}


NO_HURRY = "[policy]\ncanary_every_s = 3600.0\nbreaker_cooldown_s = 3600.0\nrestart_backoff_s = 0.02\n"


def signs(home: House, request_id: str) -> list[str]:
    """What made somebody doubt its answer."""
    seen = [event["data"] for event in home.events(request_id) if event["type"] == "FaultSeen"]
    return [data["evidence"]["sign"] for data in seen if data["kind"] == "output-in-doubt"]


def answered(home: House) -> None:
    """Wait for the canary that is asked after loading."""
    until(lambda: home.rows("SELECT 1 FROM events WHERE type='CanaryAnswered' AND stream='device-sim-0'"), "a canary")


def garble(home: House, how: str) -> None:
    """As an operator does it."""
    command = [sys.executable, "-m", "runners.sim", "garble", how, "--data", str(home.paths.root)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def test_garbage_in_the_middle_of_an_answer_is_found_long_before_a_canary_is_due(tmp_path: Path) -> None:
    """An hour is between two canaries. The 24th unit of garbage in a row is not shown any more."""
    with house(tmp_path / "data", config=NO_HURRY) as home:
        answered(home)
        question = "[[tps=12]] tell me something long"
        request_id = home.submit(question, max_tokens=240)
        until(lambda: home.units(request_id) >= 14, "some text")
        garble(home, "on")
        until(lambda: openings(home, "sim-0"), "the breaker to open")
        assert openings(home, "sim-0") == ["canary-wrong"]
        view = home.settled(request_id)
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        assert signs(home, request_id) == ["repeated"]
        text, right = view["output"]["text"], built_in(question, 240)
        wrong = [at for at, unit in enumerate(text) if unit == "!"]
        assert "!" not in right
        assert 0 < len(wrong) < 24
        first, beyond = wrong[0], wrong[0] + len(wrong)
        assert text == right[:first] + "!" * len(wrong) + right[beyond:], "what was shown stays, and the rest is right"
        assert home.settled(home.submit("meanwhile", max_tokens=4))["lane"] == "cpu"
        assert all(decision["same"] for decision in home.replay(request_id)["decisions"])
        assert home.verify().ok


def test_a_neighbour_makes_way_for_the_canary(tmp_path: Path) -> None:
    """One that takes minutes is at work beside it: garbage goes on no further for that, and neither loses a word."""
    with house(tmp_path / "data", config=f"gpu_slots = 2\n{NO_HURRY}snapshot_bytes = 0\n") as home:
        answered(home)
        slow = home.submit("[[tps=3]] slow", max_tokens=40)
        until(lambda: home.units(slow) >= 14, "some of the slow one")
        garble(home, "on")
        view = home.settled(home.submit("[[tps=60]] quick", max_tokens=120))
        assert (view["state"], view["lane"], signs(home, view["id"])) == ("completed", "cpu", ["repeated"])
        assert view["output"]["text"].count("!") < 24
        assert openings(home, "sim-0") == ["canary-wrong"]
        view = home.settled(slow)
        assert (view["state"], view["lane"], len(view["output"]["text"])) == ("completed", "cpu", 40)
        (sign,) = signs(home, slow)
        assert sign in {"beside", "repeated"}, "on a busy machine it may show the sign itself by then"
        assert home.verify().ok


@pytest.mark.prove
def test_a_short_answer_of_one_unit_is_asked_about_before_it_is_given(tmp_path: Path) -> None:
    with house(tmp_path / "data", config=NO_HURRY) as home:
        answered(home)
        garble(home, "on")
        view = home.settled(home.submit("[[tps=0]] short", max_tokens=8))
        assert (view["state"], view["lane"], signs(home, view["id"])) == ("completed", "cpu", ["one-unit"])
        assert openings(home, "sim-0") == ["canary-wrong"]


def test_a_sound_lane_that_says_one_thing_again_and_again_is_asked_once_and_goes_on(tmp_path: Path) -> None:
    with house(tmp_path / "data", config=NO_HURRY) as home:
        answered(home)
        said = "ha" + "!" * 120
        request_id = home.submit(f"[[emit={said}]]", max_tokens=200)
        view = home.settled(request_id)
        assert (view["state"], view["lane"], view["output"]["text"]) == ("completed", "gpu", said)
        assert (signs(home, request_id), view["attempt"], view["failovers"]) == (["repeated"], 2, [])
        assert [e["data"]["decision"]["rule"] for e in home.events(request_id) if e["type"] == "Requeued"] == [
            "asked-first"
        ]
        assert openings(home, "sim-0") == []
        assert home.verify().ok


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ({"wrong": True}, "canary-wrong"),
        pytest.param({"ignore": True}, "worker-faults", marks=pytest.mark.prove),
        pytest.param({"hang_after": 20}, "worker-faults", marks=pytest.mark.prove),
        pytest.param({"status": 500}, "worker-faults", marks=pytest.mark.prove),
        pytest.param({"slow_ms": 200}, "slow", marks=pytest.mark.prove),
    ],
    ids=["garbage", "accepts-and-ignores", "silence", "500", "a-tenth"],
)
def test_a_server_that_fails_with_a_green_health_page_is_left(
    tmp_path: Path, fake: FakeUpstream, record_property: Any, fault: dict[str, Any], rule: str
) -> None:
    fake.set(slow_ms=20)
    text = config(url=fake.url, continues="tokens", policy=POLICY)
    with house(tmp_path / "data", gpu=None, config=text) as home:
        prove(home)
        until(lambda: home.serves() and home.runner("gpu") and home.runner("cpu"), "both lanes")
        view = home.settled(home.submit("as usual", max_tokens=LONG))
        assert view["lane"] == "gpu"
        until(lambda: home.rows("SELECT 1 FROM rates WHERE lane='gpu' AND usual IS NOT NULL"), "the usual rate")
        fake.set(**({"slow_ms": 20} | fault))
        began = time.monotonic()
        if "wrong" in fault:
            work_until(home, lambda: openings(home, BOX), "the breaker to open")
        else:
            request_id = home.submit("which one?", max_tokens=LONG)
            view = home.settled(request_id)
            assert (view["state"], view["lane"]) == ("completed", "cpu")
            (cut,) = [e["data"]["resume_from"] for e in home.events(request_id) if e["type"] == "Rerouted"]
            assert view["output"]["text"] == spliced("which one?", cut, LONG)
            until(lambda: openings(home, BOX), "the breaker to open")
        told(record_property, began)
        assert openings(home, BOX)[0] == rule
        view = home.settled(home.submit("meanwhile", max_tokens=20))
        assert (view["lane"], view["output"]["text"]) == ("cpu", built_in("meanwhile", 20))
        fake.set(slow_ms=20)
        until(lambda: home.serves() and home.runner("gpu"), "the server to be taken back")
        assert home.settled(home.submit("and now", max_tokens=8))["lane"] == "gpu"
        assert home.verify().ok


@pytest.mark.prove
def test_a_server_that_falls_silent_after_some_requests_is_found_without_another(
    tmp_path: Path, fake: FakeUpstream
) -> None:
    """Its health page stays green, and nobody asks it anything: its canary does."""
    text = config(url=fake.url, continues="tokens", policy=POLICY | {"canary_every_s": 2.0, "breaker_faults": 0})
    with house(tmp_path / "data", gpu=None, config=text) as home:
        until(lambda: home.serves() and home.runner("gpu") and home.runner("cpu"), "both lanes")

        def asked_in_vain() -> bool:
            fake.set()
            until(home.serves, "the server to serve")
            home.settled(home.submit("hello", max_tokens=4))
            fake.set(ignore=True)
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline and not openings(home, BOX):
                time.sleep(0.05)
            return bool(openings(home, BOX))

        until(asked_in_vain, "the canary to be asked in vain")
        assert openings(home, BOX)[0] == "canary-wrong"
        assert home.settled(home.submit("meanwhile", max_tokens=4))["lane"] == "cpu"
