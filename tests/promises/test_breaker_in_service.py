"""Promise: a device that fails is left alone and tried with canaries; what is not its doing opens nothing.

Times are shortened by policy; what is asserted is how often the device was tried, in which order, and where work ran.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import FakeUpstream
from house import House, house, until
from null_answer import answer_to
from upstreams import BOX, UNITS, at_work_again, built_in, by_server, config

from core.policy import Policy
from runners.devices.simulated import SimulatedDevice

MIB = 1 << 20
QUICK = """
[policy]
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
return_to_gpu = false
hang_grace_s = 5.0
slow_factor = 0
breaker_faults = 3
breaker_window_s = 600.0
breaker_cooldown_s = {cooldown}
breaker_canaries = 2
"""


def story(home: House, device: str = "sim-0") -> list[str]:
    """What happened to the breaker of a device, canaries and their verdicts among it."""
    rows = home.rows(
        "SELECT type, json_extract(data, '$.verdict'), json_extract(data, '$.decision.rule') FROM events "
        "WHERE stream=? ORDER BY version",
        f"device-{device}",
    )
    return [f"{kind} {verdict or rule or ''}".strip() for kind, verdict, rule in rows]


def opened(home: House, device: str = "sim-0") -> int:
    return sum(line.startswith("BreakerOpened") for line in story(home, device))


def on_gpu(home: House, request_id: str) -> list[dict[str, Any]]:
    """Its attempts on the GPU lane."""
    return [e["data"] for e in home.events(request_id) if e["type"] == "Started" and e["data"]["lane"] == "gpu"]


def breaker(home: House) -> dict[str, Any]:
    devices = home.client.get("/api/devices").json()["items"]
    return dict(next(one for one in devices if one["id"] == "sim-0")["breaker"])


def crashes(home: House, count: int) -> list[str]:
    """So many workers die under so many requests, one after the other."""
    ids = []
    for n in range(count):
        at_work_again(home)
        request_id = home.submit(f"[[tps=60]] fault {n}", max_tokens=40)
        until(lambda one=request_id: home.units(one) >= 4, "some text")  # type: ignore[misc]
        home.send(home.runner("gpu"), signal.SIGSEGV)
        assert home.settled(request_id)["state"] == "completed"
        ids.append(request_id)
    return ids


def test_faults_open_it_and_canaries_bring_it_back(tmp_path: Path) -> None:
    """Three workers die; from then on 12 requests reach the GPU lane not once, until two canaries were answered."""
    with house(tmp_path / "data", config=QUICK.format(cooldown=3600.0)) as home:
        tried = [request_id for request_id in crashes(home, 3) if on_gpu(home, request_id)]
        until(lambda: breaker(home)["state"] == "open", "the breaker to open")
        assert len(tried) == 3
        during = [home.settled(home.submit(f"[[tps=0]] {n}", max_tokens=8)) for n in range(12)]
        for n, view in enumerate(during):
            assert (view["state"], view["lane"], view["degraded"]["rule"]) == ("completed", "cpu", "gpu-out")
            assert on_gpu(home, view["id"]) == []
            assert view["output"]["text"] == answer_to(f"user: [[tps=0]] {n}\nassistant:", 8)
        body = {"model": "null", "prompt": "x", "max_tokens": 4, "failover": "gpu-only"}
        refused = home.client.post("/api/requests", json=body)
        assert refused.status_code == 503, "who wants the GPU or nothing is told at once"
        answer = home.client.post("/api/devices/sim-0/reset-breaker", json={"reason": "it was looked at"})
        assert answer.status_code == 200
        at_work_again(home)
        assert home.settled(home.submit("[[tps=0]] back", max_tokens=8))["lane"] == "gpu"
        lines = [line for line in story(home) if not line.endswith("recorded")]
        assert lines == [
            "DeviceFound",
            *["FaultCounted"] * 3,
            "BreakerOpened worker-faults",
            "BreakerHalfOpened",
            *["CanaryAnswered right"] * 2,
            "BreakerClosed canaries-right",
        ]
        for view in during:
            assert all(decision["same"] for decision in home.replay(view["id"])["decisions"])
        assert home.verify().ok


@pytest.mark.prove
def test_restarted_while_it_is_open_the_rest_of_the_cooldown_is_waited_for(tmp_path: Path) -> None:
    """Open for 12 seconds, stopped at once, started again: it is still open then, and closes by itself in time."""
    with house(tmp_path / "data", config=QUICK.format(cooldown=12.0)) as home:
        crashes(home, 3)
        until(lambda: breaker(home)["state"] == "open", "the breaker to open")
        ((since_us,),) = home.rows("SELECT max(at_us) FROM events WHERE type='BreakerOpened'")
        assert home.stop() == 0
        home.start(ready=False)
        home.wait_ready()
        assert home.settled(home.submit("[[tps=0]] meanwhile", max_tokens=8))["lane"] == "cpu"
        at_work_again(home)
        ((tried_us,),) = home.rows("SELECT max(at_us) FROM events WHERE type='BreakerHalfOpened'")
        assert tried_us - since_us >= 12_000_000, "it was tried before its cooldown was over"
        assert opened(home) == 1, "a restart is no fault"
        assert home.settled(home.submit("[[tps=0]] back", max_tokens=8))["lane"] == "gpu"
        assert home.verify().ok


def test_what_does_not_fit_opens_nothing(tmp_path: Path) -> None:
    """20 requests too big for the card, and small ones among them: the big ones go to the CPU lane with the numbers,
    every small one runs on the GPU. Then allocations fail in the middle, which is a matter of size as well."""
    text = f"null_load_bytes = {16 * MIB}\nnull_token_bytes = {MIB}\n" + QUICK.format(cooldown=3600.0)
    text = text.replace("slow_factor = 0\n", "slow_factor = 0\nheadroom_bytes = 0\npressure_high = 1.0\n")
    with house(tmp_path / "data", gpu="300MiB", config=text) as home:
        home.runner("gpu")
        for n in range(20):
            big = home.settled(home.submit("", prompt=f"[[tps=0]] {n}", max_tokens=400, allow_shrink=False))
            assert (big["state"], big["lane"], big["degraded"]["rule"]) == ("completed", "cpu", "never-fits")
            decision = home.events(big["id"])[0]["data"]["decision"]
            assert decision["facts"]["need"]["token"] == MIB, "the numbers are told"
            if n % 5 == 0:
                small = home.settled(home.submit("", prompt=f"[[tps=0]] s{n}", max_tokens=40))
                assert (small["state"], small["lane"]) == ("completed", "gpu")
        SimulatedDevice(home.paths.sim / "sim-0.json").fail_allocations(4)
        for n in range(4):
            view = home.settled(home.submit("", prompt=f"[[tps=0]] f{n}", max_tokens=40))
            assert (view["state"], view["lane"]) == ("completed", "cpu")
            assert [e["data"]["fault"] for e in home.events(view["id"]) if e["type"] == "FaultSeen"] == ["size"]
        assert breaker(home)["state"] == "closed"
        assert story(home)[0] == "DeviceFound"
        assert "FaultCounted" not in story(home)
        assert home.settled(home.submit("", prompt="[[tps=0]] last", max_tokens=40))["lane"] == "gpu"
        assert home.verify().ok


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    made = FakeUpstream()
    yield made
    made.close()


@pytest.mark.prove
def test_each_answer_of_500_counts_and_the_limit_opens_it(tmp_path: Path, fake: FakeUpstream) -> None:
    """Five, one for each request, and the server is well in between; the sixth request does not reach it any more."""
    # It is well again before the next worker asks it for a canary.
    policy = {"breaker_faults": 5, "breaker_cooldown_s": 3600.0, "slow_factor": 0, "restart_backoff_s": 3.0}
    # A busy machine makes it late at times, which would count as well.
    text = config(url=fake.url, continues="tokens", policy=policy, first_byte_s=60.0, silence_s=60.0)
    with house(tmp_path / "data", gpu=None, config=text) as home:
        for n in range(5):
            at_work_again(home)
            assert opened(home, BOX) == 0
            fake.set(status=500, times=1, only_at="Number")
            view = home.settled(home.submit(f"Number {n}?", max_tokens=UNITS))
            assert (view["state"], view["lane"]) == ("completed", "cpu")
            assert view["output"]["text"] == built_in(f"Number {n}?", UNITS)
        until(lambda: opened(home, BOX) == 1, "the breaker to open")
        asked = len(fake.seen())
        view = home.settled(home.submit("And now?", max_tokens=UNITS))
        assert (view["state"], view["lane"], view["degraded"]["rule"]) == ("completed", "cpu", "gpu-out")
        assert len(fake.seen()) == asked
        assert home.verify().ok


DEAD = Policy(breaker_faults=3, breaker_probes=2, breaker_cooldown_s=3600.0)
LIMITS = {
    "breaker_faults": DEAD.breaker_faults,
    "breaker_probes": DEAD.breaker_probes,
    "breaker_cooldown_s": DEAD.breaker_cooldown_s,
    "slow_factor": 0,
}


def by_cpu(home: House, numbers: range) -> list[str]:
    """So many requests, one after the other, each answered by the CPU lane."""
    ids = []
    for n in numbers:
        view = home.settled(home.submit(f"Number {n}?", max_tokens=UNITS))
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        assert view["output"]["text"] == built_in(f"Number {n}?", UNITS)
        ids.append(view["id"])
    return ids


def way(home: House, request_id: str) -> list[str]:
    """What happened to it up to its first start, and on which lane that was."""
    events = home.events(request_id)
    first = next(at for at, event in enumerate(events) if event["type"] == "Started")
    return [event["type"] for event in events[:first]] + [f"Started {events[first]['data']['lane']}"]


def tried_again(home: House) -> None:
    """An operator has the device tried at once, so that no time matters here."""
    answer = home.client.post(f"/api/devices/{BOX}/reset-breaker", json={"reason": "try"})
    assert answer.status_code == 200


def questions(fake: FakeUpstream) -> int:
    """How often the server was asked one of the numbered questions."""
    prompts = [seen["body"]["prompt"] for seen in fake.seen()]
    return sum("Number" in (one if isinstance(one, str) else bytes(one).decode()) for one in prompts)


@pytest.mark.prove
def test_a_dead_gpu_is_hardly_tried(tmp_path: Path, fake: FakeUpstream) -> None:
    """Dead for 15 requests, one after the other, its health page green all the while: no more of them reach it than
    its breaker takes to open, and than may try it in between. Nothing else is asked of it in their name."""
    with house(tmp_path / "data", gpu=None, config=config(url=fake.url, continues="tokens", policy=LIMITS)) as home:
        at_work_again(home)
        by_server(home, "Well?")
        fake.set(status=500)
        attempts = sum(len(on_gpu(home, one)) for one in by_cpu(home, range(15)))
        assert 1 <= attempts <= DEAD.breaker_faults + DEAD.breaker_probes
        assert questions(fake) == attempts
        fake.set()
        tried_again(home)
        at_work_again(home)
        by_server(home, "And now?")
        assert home.verify().ok


@pytest.mark.prove
def test_what_fails_at_all_but_canaries_is_hardly_tried_either(tmp_path: Path, fake: FakeUpstream) -> None:
    """Dead for 15 requests, and right about canaries all the while: so many reach it as open its breaker, and one more
    after it was closed by canaries. While it is open the others start on the CPU lane and nowhere else."""
    with house(tmp_path / "data", gpu=None, config=config(url=fake.url, continues="tokens", policy=LIMITS)) as home:
        at_work_again(home)
        by_server(home, "Well?")
        fake.set(status=500, only_at="Number")
        ids = []
        for n in range(DEAD.breaker_faults):
            at_work_again(home)
            ids += by_cpu(home, range(n, n + 1))
            until(lambda count=n + 1: story(home, BOX).count("FaultCounted") == count, "the count")  # type: ignore[misc]
        for opening, numbers in enumerate((range(3, 10), range(11, 15)), start=1):
            until(lambda count=opening: opened(home, BOX) == count, "the breaker to open")  # type: ignore[misc]
            asked = len(fake.seen())
            during = by_cpu(home, numbers)
            assert [way(home, one) for one in during] == [["Admitted", "Rerouted", "Started cpu"]] * len(numbers)
            assert len(fake.seen()) == asked, "nobody asks it anything, not even whether it is well"
            ids += during
            if opening == 1:
                tried_again(home)
                at_work_again(home)
                ids += by_cpu(home, range(10, 11))
        attempts = sum(len(on_gpu(home, one)) for one in ids)
        assert (len(ids), attempts, questions(fake)) == (15, DEAD.breaker_faults + 1, DEAD.breaker_faults + 1)
        assert attempts <= DEAD.breaker_faults + DEAD.breaker_probes
        assert [line for line in story(home, BOX) if "Opened" in line] == [
            "BreakerOpened worker-faults",
            "BreakerHalfOpened",
            "BreakerOpened relapse",
        ]
        assert home.verify().ok


@pytest.mark.prove
def test_what_was_dead_comes_back_by_itself(tmp_path: Path, fake: FakeUpstream) -> None:
    """Its cooldown ends, its canaries are answered, and it serves: nobody had to say so."""
    policy = {"breaker_faults": 1, "breaker_cooldown_s": 0.5, "slow_factor": 0}
    with house(tmp_path / "data", gpu=None, config=config(url=fake.url, continues="tokens", policy=policy)) as home:
        at_work_again(home)
        fake.set(status=500)
        by_cpu(home, range(1))
        until(lambda: opened(home, BOX) >= 2, "a try that fails")
        fake.set()
        at_work_again(home)
        by_server(home, "And now?")
        assert home.verify().ok


@pytest.mark.prove
def test_swinging_around_a_mark_of_pressure_changes_lanes_at_most_twice(tmp_path: Path) -> None:
    """A neighbour takes 96 %, then swings between 89 and 91 % twenty times; the calm time is longer than a swing."""
    text = "[policy]\nheadroom_bytes = 0\ncalm_for_s = 5.0\nbreaker_faults = 0\nslow_factor = 0\n"
    with house(tmp_path / "data", gpu="1000MiB", config=text) as home:
        home.runner("gpu")
        device = SimulatedDevice(home.paths.sim / "sim-0.json")
        device.set_foreign(960 * MIB)
        until(lambda: "PressureRose" in story(home), "pressure")
        view = home.settled(home.submit("[[tps=0]] now", max_tokens=4))
        assert (view["state"], view["lane"], view["degraded"]["rule"]) == ("completed", "cpu", "pressure")
        for n in range(20):
            device.set_foreign((890 if n % 2 else 910) * MIB)
            time.sleep(0.25)
        assert [line for line in story(home) if "Pressure" in line] == ["PressureRose"]
        device.set_foreign(100 * MIB)
        until(lambda: "PressureFell" in story(home), "calm")
        assert home.settled(home.submit("[[tps=0]] then", max_tokens=4))["lane"] == "gpu"
        assert [line for line in story(home) if "Pressure" in line] == ["PressureRose", "PressureFell"]
        assert home.verify().ok
