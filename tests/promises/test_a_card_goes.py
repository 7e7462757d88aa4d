"""A real card goes, in the ways that were reported: the service goes on, says so, and takes it back when it is well.

Real processes and the real binding, over a library that shows cards of a file. The pair of lanes is said to be proved
alike, so that work that was begun may move; what the built-in model says is arithmetic, done again in `upstreams`.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from carded import GPU, Cards, card, carded
from fake_nvml import GIB, FakeEvent
from house import House, until
from upstreams import built_in, prove

SLOW = "[[tps=40]] tell me something long"
UNITS = 160
QUICK = """
[policy]
restart_backoff_s = 0.02
restart_backoff_max_s = 0.2
breaker_cooldown_s = 1.0
return_to_gpu = false
"""


@pytest.fixture
def cards(tmp_path: Path) -> Cards:
    return Cards(tmp_path / "cards.json", card())


def proved(home: House) -> None:
    home.runner("gpu")
    prove(home)


def under_way(home: House, number: int = 1) -> list[str]:
    """Requests on the GPU lane whose first words were shown."""
    found = [home.submit(f"{SLOW} {n}", max_tokens=UNITS) for n in range(number)]
    until(lambda: all(home.units(one) >= 8 for one in found), "the first words")
    return found


def all_moved(home: House, requests: list[str]) -> None:
    """Each went on on the CPU lane, from what had been shown."""
    for number, request_id in enumerate(requests):
        view = home.settled(request_id)
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        assert view["output"]["text"] == built_in(f"{SLOW} {number}", UNITS)
        (moved,) = [event["data"] for event in home.events(request_id) if event["type"] == "Rerouted"]
        assert moved["resume_from"] >= 8
        assert moved["decision"]["rule"] == "continue-faithful"


def device(home: House, name: str = GPU) -> dict[str, Any]:
    items = home.patiently(lambda: home.client.get("/api/devices")).json()["items"]
    return dict(next(item for item in items if item["id"] == name))


def of_device(home: House, kind: str) -> list[tuple[Any, ...]]:
    return home.rows(
        "SELECT seq, cause_seq, data FROM events WHERE stream=? AND type=? ORDER BY seq", f"device-{GPU}", kind
    )


def back(home: House) -> None:
    until(lambda: home.serves() and home.runner("gpu"), "the card to take work again")
    assert home.settled(home.submit("and now", max_tokens=4))["lane"] == "gpu"


def test_after_a_night_asleep_the_driver_fails_for_a_while(tmp_path: Path, cards: Cards) -> None:
    """Two hours pass on the wall in no time, then every question is answered with 999, then all is well."""
    with carded(tmp_path / "data", cards, QUICK) as home:
        proved(home)
        requests = under_way(home)
        monitor = home.child("runners.monitor")
        cards.change(lambda one: setattr(one, "code", 999))
        cards.sleep(7200)
        all_moved(home, requests)
        ((slept,),) = home.rows("SELECT json_extract(data, '$.slept_us') FROM events WHERE type='HostResumed'")
        assert slept == pytest.approx(7200e6, abs=60e6)
        told = device(home)
        assert (told["state"], told["breaker"]["state"], told["breaker"]["held"]) == ("lost", "open", True)
        assert told["reading"]["code"] == 999
        assert home.settled(home.submit("meanwhile", max_tokens=4))["lane"] == "cpu"
        cards.change(lambda one: setattr(one, "code", 0))
        back(home)
        assert home.child("runners.monitor") == monitor, "its readings were old for a reason"
        negative = home.rows(
            "SELECT e.type, j.key, j.value FROM events e, json_tree(e.data) j "
            "WHERE j.type IN ('integer','real') AND j.value<0 AND (j.key LIKE '%_us' OR j.key LIKE '%_s')"
        )
        assert negative == []
        assert home.verify().ok


@pytest.mark.prove
def test_a_night_asleep_and_all_is_well(tmp_path: Path, cards: Cards) -> None:
    """What was begun goes on where it is; nothing new begins on the card before canaries were answered."""
    with carded(tmp_path / "data", cards, QUICK) as home:
        proved(home)
        (request_id,) = under_way(home)
        cards.sleep(7200)
        until(lambda: home.rows("SELECT 1 FROM events WHERE type='HostResumed'"), "the sleep to be noticed")
        assert home.settled(home.submit("meanwhile", max_tokens=4))["lane"] == "cpu"
        assert home.settled(request_id)["lane"] == "gpu"
        back(home)


def steady(home: House, seconds: float) -> list[str]:
    """What is logged meanwhile."""
    before = len(home.log.read_text().splitlines())
    time.sleep(seconds)
    return home.log.read_text().splitlines()[before:]


@pytest.mark.prove
@pytest.mark.parametrize("seconds", [5, pytest.param(120, marks=pytest.mark.prove)])
def test_a_container_that_lost_its_card_is_quiet_about_it(tmp_path: Path, cards: Cards, seconds: float) -> None:
    """The driver is asked anew all the time, twice a second here."""
    with carded(tmp_path / "data", cards, QUICK) as home:
        proved(home)
        cards.change(lambda one: setattr(one, "code", 999))
        until(lambda: device(home)["state"] == "lost", "the card to be out")
        assert "restart the container" in device(home)["reading"]["advice"]
        assert home.settled(home.submit("meanwhile", max_tokens=4))["lane"] == "cpu"
        starts = home.rows("SELECT count(*) FROM events WHERE type='RunnerStarted'")
        assert steady(home, seconds) == []
        assert home.rows("SELECT count(*) FROM events WHERE type='RunnerStarted'") == starts, "no crash loop"
        assert len(of_device(home, "BreakerOpened")) == 1


@pytest.mark.prove
@pytest.mark.parametrize("takes", [False, pytest.param(True, marks=pytest.mark.prove)])
def test_a_driver_that_was_upgraded_beneath_it_is_blind(tmp_path: Path, cards: Cards, takes: bool) -> None:
    config = QUICK + f"blind_takes_work = {str(takes).lower()}\n"
    with carded(tmp_path / "data", cards, config) as home:
        proved(home)
        (request_id,) = under_way(home)
        cards.change(lambda one: setattr(one, "code", 18))
        until(lambda: device(home)["reading"]["state"] == "blind", "the blindness")
        assert "different versions" in device(home)["reading"]["reason"]
        assert home.settled(home.submit("new work", max_tokens=4))["lane"] == ("gpu" if takes else "cpu")
        assert home.settled(request_id)["lane"] == "gpu"
        assert device(home)["breaker"]["state"] == "closed"


@pytest.mark.prove
def test_xid_79_then_154_and_only_a_power_cycle_helps(tmp_path: Path, cards: Cards) -> None:
    with carded(tmp_path / "data", cards, QUICK) as home:
        proved(home)
        requests = under_way(home, 3)
        cards.change(lambda one: one.events.append(FakeEvent(79)) or setattr(one, "recovery", None))
        all_moved(home, requests)
        cards.change(lambda one: one.events.append(FakeEvent(154)) or setattr(one, "recovery", 2))
        until(lambda: device(home)["reading"].get("recovery") == 2, "the driver's word")
        told = device(home)
        assert told["reading"]["advice"] == "Reboot this machine.", "the last one's advice is the one shown"
        assert [xid["code"] for xid in told["reading"]["xids"]] == [79, 154]
        until(lambda: len(of_device(home, "FaultCounted")) == 2, "the last word to be in the record")
        assert steady(home, 3) == []
        assert (device(home)["breaker"]["state"], device(home)["breaker"]["held"]) == ("open", True)
        ((opened, _, _),) = of_device(home, "BreakerOpened")
        later = [
            (cause, json.loads(data)["evidence"])
            for seq, cause, data in of_device(home, "FaultCounted")
            if seq > opened
        ]
        assert {cause for cause, _ in later} == {opened}, "what came with it is one incident"
        assert later[-1][1]["advice"] == "Reboot this machine."
        ((_, _, lost),) = of_device(home, "DeviceLost")
        assert json.loads(lost)["evidence"]["reason"] == "Xid 79 (the card fell off the bus)"
        assert of_device(home, "BreakerHalfOpened") == []
        cards.change(lambda one: setattr(one, "recovery", 0))
        back(home)


@pytest.mark.prove
def test_an_xid_of_another_card_is_nobodys_business(tmp_path: Path) -> None:
    other = card("GPU-0ther000-0000-0000-0000-000000000000", pci="00000000:02:00.0", total=4 * GIB)
    cards = Cards(tmp_path / "cards.json", card(), other)
    with carded(tmp_path / "data", cards, QUICK) as home:
        proved(home)
        (request_id,) = under_way(home)
        other.events.append(FakeEvent(8))
        other.events.append(FakeEvent(79))
        cards.write()
        until(lambda: home.rows('SELECT 1 FROM readings WHERE doc LIKE \'%"state":"lost"%\''), "it to be seen")
        assert home.settled(request_id)["lane"] == "gpu"
        assert of_device(home, "FaultCounted") == []
        assert home.rows("SELECT id, breaker FROM devices") == [(GPU, "closed")]


@pytest.mark.prove
@pytest.mark.parametrize("code", [13, 31, 43, 94])
def test_an_xid_of_a_program_takes_no_card_out(tmp_path: Path, cards: Cards, code: int) -> None:
    with carded(tmp_path / "data", cards, QUICK + "breaker_faults = 3\n") as home:
        proved(home)
        before = home.runner("gpu")
        requests = under_way(home)
        cards.change(lambda one: one.events.append(FakeEvent(code)))
        all_moved(home, requests)
        until(lambda: home.runner("gpu") != before, "another worker")
        assert len(of_device(home, "FaultCounted")) == 1
        assert of_device(home, "BreakerOpened") == []
        back(home)


@pytest.mark.prove
@pytest.mark.parametrize("code", [48, 119, 154])
def test_an_xid_of_the_card_holds_it_until_it_is_found_anew(tmp_path: Path, cards: Cards, code: int) -> None:
    with carded(tmp_path / "data", cards, QUICK) as home:
        proved(home)
        requests = under_way(home)
        cards.change(lambda one: one.events.append(FakeEvent(code)) or setattr(one, "recovery", 1))
        all_moved(home, requests)
        until(lambda: device(home)["breaker"]["held"], "it to be held")
        cards.change(lambda one: setattr(one, "recovery", 0))
        back(home)
