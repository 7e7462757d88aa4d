"""A device goes with sixty requests on it: none lost, none refused, each says where it waits and why, all complete."""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from house import ROOT, House, house, until
from null_answer import answer_to

LIMIT = 32
NUMBER = 60
HOLDERS = 2
POLICY = f"""
gpu_slots = 2
cpu_slots = 3

[policy]
cpu_queue_limit = {LIMIT}
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
breaker_cooldown_s = 0.2
return_after_s = 0.2
"""


def device(home: House, *command: str) -> None:
    program = [sys.executable, "-m", "runners.sim", *command, "--data", str(home.paths.root)]
    subprocess.run(program, cwd=ROOT, check=True, capture_output=True)


def prompt(number: int) -> str:
    """Two long ones, which hold the places of the GPU lane, and many short ones."""
    return f"[[tps={2 if number < HOLDERS else 10}]] {number}"


def units(number: int) -> int:
    return 44 if number < HOLDERS else 12


def moved_to_cpu(home: House) -> int:
    return int(home.rows("SELECT count(*) FROM events WHERE type='Rerouted'")[0][0])


def waiting_on_cpu(home: House) -> int:
    sql = "SELECT count(*) FROM requests WHERE lane='cpu' AND running=0 AND state IN ('rerouted-cpu','checkpointed')"
    return int(home.rows(sql)[0][0])


def views(home: House) -> list[dict[str, Any]]:
    """All requests, as one moment shows them."""
    answer = home.patiently(lambda: home.client.get("/api/requests", params={"limit": 100}))
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def in_flight(home: House, number: int) -> list[str]:
    """So many for the GPU lane, of which the first are begun and the others wait."""

    def submit(which: int) -> str:
        return home.submit("", prompt=prompt(which), max_tokens=units(which))

    requests = [submit(which) for which in range(HOLDERS)]
    until(lambda: all(home.units(one) for one in requests), "the first words")
    with ThreadPoolExecutor(4) as several:
        return requests + list(several.map(submit, range(HOLDERS, number)))


def all_whole(home: House, requests: Sequence[str]) -> None:
    for number, request in enumerate(requests):
        view = home.settled(request)
        assert view["state"] == "completed", view["error"]
        assert view["output"]["text"] == answer_to(prompt(number), units(number)), "nothing shown was changed"
    assert home.verify().ok


def test_sixty_requests_and_the_device_is_lost(tmp_path: Path) -> None:
    with house(tmp_path / "data", config=POLICY) as home:
        home.runner("cpu")
        requests = in_flight(home, NUMBER)
        device(home, "lose")
        until(lambda: home.rows("SELECT 1 FROM devices WHERE state='lost'"), "the loss to be known")
        until(lambda: not home.rows("SELECT 1 FROM requests WHERE lane='gpu' AND running=1"), "its work to be let go")
        assert waiting_on_cpu(home) <= LIMIT
        found = [view for view in views(home) if view["state"] != "completed"]
        assert len(found) > LIMIT + 1, "more than the CPU lane may hold"
        in_place = [view for view in found if view["lane"] == "gpu"]
        assert in_place
        for view in in_place:
            assert view["state"] in {"admitted", "checkpointed"}
            assert view["queue"]["waits_for_code"] == "cpu-lane-full"
            assert view["queue"]["status"] == "waiting"
            assert (view["degraded"]["reason_code"], view["degraded"]["lane"]) == ("cpu-lane-full", "gpu")
        for view in found:
            assert view["degraded"], "whoever does not get what it asked for is told"
        newest = in_place[0]["id"]  # the last that room on the CPU lane will come to
        header = home.client.get(f"/api/requests/{newest}").headers
        assert header["x-degraded"] == "cpu-lane-full"
        before = moved_to_cpu(home)
        until(lambda: moved_to_cpu(home) > before, "room on the CPU lane, and somebody to take it")
        assert waiting_on_cpu(home) <= LIMIT
        device(home, "restore")
        until(lambda: home.rows("SELECT 1 FROM events WHERE type='Returned'"), "the first who come back")
        all_whole(home, requests)
        assert home.rows("SELECT count(*) FROM requests WHERE state='refused'") == [(0,)]
        again = [home.view(one) for one in requests[-3:]]
        assert all(decision["same"] for one in again for decision in home.replay(one["id"])["decisions"])
        started = {
            row[0] for row in home.rows("SELECT DISTINCT json_extract(data,'$.lane') FROM events WHERE type='Started'")
        }
        assert started == {"gpu", "cpu"}


@pytest.mark.prove
def test_a_device_that_comes_and_goes_does_not_toss_work_about(tmp_path: Path) -> None:
    """Each way back doubles the wait before the next one, so ten losses are not ten moves each."""
    config = POLICY.replace("return_after_s = 0.2", "return_after_s = 5.0")
    with house(tmp_path / "data", config=config) as home:
        home.runner("cpu")
        requests = in_flight(home, 40)
        for _ in range(10):
            device(home, "lose")
            until(lambda: home.rows("SELECT 1 FROM devices WHERE state='lost'"), "the loss to be known")
            device(home, "restore")
            until(home.serves, "the lane to take work again")
        all_whole(home, requests)
        for view in views(home):
            assert len(view["failovers"]) <= 6
