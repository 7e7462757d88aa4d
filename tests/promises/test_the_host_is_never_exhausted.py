"""The CPU lane keeps to its share of the host's memory: by arithmetic before, and by mechanism when that was wrong."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import upstreams
from fake_upstream import answer
from house import House, house, kept, until

from runners.process import proportional, with_descendants

MIB = 1 << 20
GIB = 1 << 30
FAST = "restart_backoff_s = 0.02\nrestart_backoff_max_s = 0.1\n"


def config(top: str = "", **policy: float | str) -> str:
    return f"{top}\n[policy]\n{FAST}" + "".join(f"{name} = {value}\n" for name, value in policy.items())


def exits(home: House) -> list[str]:
    """Why runners of ours are gone, oldest first."""
    sql = "SELECT json_extract(data, '$.killed_for') FROM events WHERE type='RunnerExited' ORDER BY seq"
    return [row[0] for row in home.rows(sql)]


def kinds(home: House, request_id: str) -> list[tuple[str, str]]:
    faults = [event["data"] for event in home.events(request_id) if event["type"] == "FaultSeen"]
    return [(fault["fault"], fault["kind"]) for fault in faults]


def out(home: House) -> bool:
    return bool(home.rows("SELECT 1 FROM lanes WHERE lane='cpu' AND out_reason='host-memory'"))


def was_out(home: House) -> bool:
    sql = "SELECT 1 FROM events WHERE type='LaneOut' AND json_extract(data, '$.reason')='host-memory'"
    return bool(home.rows(sql))


def kernel_kills() -> int:
    """How many processes of this machine the kernel has ended for want of memory."""
    return int(dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())["oom_kill"])


def post(home: House, **fields: Any) -> Any:
    body = {"workload": "generate", "model": home.model, "max_tokens": 16, "seed": 7} | fields
    return home.patiently(lambda: home.client.post("/api/requests", json=body))


def test_a_worker_that_grows_is_stopped_from_taking_then_ended_and_its_work_goes_on(tmp_path: Path) -> None:
    """60 units that take 8 MiB each are 480 MiB; 300 may be held. A worker of its own begins anew each time."""
    with house(tmp_path / "data", gpu=None, config=config(cpu_budget_bytes=300 * MIB)) as home:
        home.runner("cpu")
        request_id = home.submit("[[tps=20]][[grow=8@0]]", max_tokens=60)
        until(lambda: out(home), "the lane to take nothing more")
        refused = post(home, prompt="x")
        if refused.status_code == 503:  # it may have been ended meanwhile
            assert refused.json()["reason"] == "host-memory"
            assert str(300 * MIB * 9 // 10) in refused.json()["detail"], "the numbers are told"
        view = home.settled(request_id)
        assert (view["state"], view["usage"]["completion_tokens"]) == ("completed", 60)
        assert set(kinds(home, request_id)) == {("host", "over-budget")}
        assert set(exits(home)) == {"over-budget"}
        assert home.rows("SELECT json_extract(doc, '$.deaths') FROM requests WHERE id=?", request_id)[0][0] in {0, None}
        until(lambda: home.serves("cpu"), "the lane to take work again")
        assert home.settled(home.submit("[[emit=well]]"))["state"] == "completed"
        assert home.verify().problem is None


@pytest.mark.prove
@pytest.mark.parametrize(("size", "what"), [(400, "it can map it, and is seen"), (9000, "it is not given that much")])
def test_what_is_too_large_by_itself_stops_honestly_after_two_tries(tmp_path: Path, size: int, what: str) -> None:
    """No unit can be made durable before the first of so many MiB: the second time it is the request's own size."""
    with house(tmp_path / "data", gpu=None, config=config(cpu_budget_bytes=300 * MIB)) as home:
        home.runner("cpu")
        request_id = home.submit(f"[[tps=1]][[grow={size}@0]]", max_tokens=10)
        view = home.settled(request_id)
        assert view["state"] == "resumable-error", what
        assert kinds(home, request_id) == [("host", "over-budget"), ("size", "over-budget")]
        assert "too-big-for-lane" in [
            event["data"].get("decision", {}).get("rule") for event in home.events(request_id)
        ]
        until(lambda: home.serves("cpu"), "the lane to take work again")
        assert home.settled(home.submit("[[emit=well]]"))["state"] == "completed"


def test_its_work_goes_to_the_gpu_lane_where_that_is_back_and_nobody_there_notices(tmp_path: Path) -> None:
    with house(tmp_path / "data", config=config(cpu_budget_bytes=300 * MIB, return_to_gpu="true")) as home:
        home.runner("cpu")
        request_id = home.submit("[[tps=20]][[grow=8@20]]", max_tokens=70)
        until(lambda: home.units(request_id) >= 2, "two units")
        home.send(home.runner("gpu"), 9)
        until(lambda: home.view(request_id)["lane"] == "cpu", "the takeover")
        home.runner("gpu")
        until(lambda: was_out(home), "the lane to take nothing more")
        beside = [home.submit(f"[[emit=beside {n}]]") for n in range(3)]
        view = home.settled(request_id)
        assert (view["state"], view["lane"], view["usage"]["completion_tokens"]) == ("completed", "gpu", 70)
        assert "Returned" in home.types(request_id)
        assert "over-budget" in exits(home)
        for one in beside:
            assert (home.settled(one)["state"], home.view(one)["lane"]) == ("completed", "gpu")
            assert home.view(one)["failovers"] == []


def test_a_host_with_too_little_memory_starts_no_cpu_worker_and_the_gpu_lane_goes_on(tmp_path: Path) -> None:
    """The model needs 256 MiB and 9/10 of 200 may be used."""
    tight = config("null_load_bytes = 268435456", cpu_budget_bytes=200 * MIB)
    with house(tmp_path / "data", config=tight) as home:
        home.runner("gpu")
        until(lambda: out(home), "the CPU lane to take nothing")
        assert home.rows("SELECT 1 FROM runners WHERE lane='cpu'") == []
        view = home.settled(home.submit("[[emit=on the card]]"))
        assert (view["state"], view["lane"]) == ("completed", "gpu")
        home.send(home.runner("gpu"), 9)
        done = home.settled(home.submit("[[emit=after its worker was killed]]"))
        assert (done["state"], done["lane"]) == ("completed", "gpu")


@pytest.mark.prove
def test_a_worker_that_does_not_give_back_is_started_anew_when_it_is_idle(tmp_path: Path) -> None:
    with house(tmp_path / "data", gpu=None, config=config(cpu_growth_bytes=64 * MIB)) as home:
        first = home.runner("cpu")
        for size, growth in ((4, 40), (10, 100)):
            view = home.settled(home.submit(f"[[grow={size}@0]]", max_tokens=10))
            assert view["state"] == "completed", growth
        until(lambda: exits(home) == ["recycled"], "the worker to be ended")
        told = home.rows("SELECT data FROM events WHERE type='RunnerExited'")[0][0]
        assert "after_loading" in told
        assert home.runner("cpu") != first
        assert home.settled(home.submit("[[emit=well]]"))["state"] == "completed"
        assert home.serves("cpu")


def test_a_cold_lane_begins_when_it_is_needed_and_ends_when_it_is_not(tmp_path: Path) -> None:
    with house(tmp_path / "data", config=config('cpu_readiness = "cold"', cpu_idle_s=0.5)) as home:
        gpu = home.runner("gpu")
        lane = home.client.get("/api/lanes").json()["items"][1]
        assert (lane["lane"], lane["serving"], lane["resident"]) == ("cpu", True, False)
        assert home.rows("SELECT 1 FROM runners WHERE lane='cpu'") == []
        request_id = home.submit("[[tps=20]]", max_tokens=40)
        until(lambda: home.units(request_id) >= 2, "two units")
        home.send(gpu, 9)
        view = home.settled(request_id)
        assert (view["state"], view["usage"]["completion_tokens"]) == ("completed", 40)
        assert [move["to"] for move in view["failovers"]][:1] == ["cpu"]
        until(lambda: not home.rows("SELECT 1 FROM runners WHERE lane='cpu'"), "the worker to be ended")
        assert exits(home)[-1] == "not-needed"
        assert home.verify().problem is None


# ---- a budget of 2 GiB, and work of all kinds ----


class Peak:
    """The most that the CPU lane's workers were seen to hold together."""

    def __init__(self, home: House) -> None:
        self.bytes = 0
        self._home = home
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._done.wait(0.05):
            pids = [row[0] for row in self._home.rows("SELECT pid FROM runners WHERE lane='cpu'")]
            self.bytes = max(self.bytes, sum(proportional(with_descendants(pid)) for pid in pids))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@contextmanager
def mixed(root: Path) -> Iterator[House]:
    """The real small model, and one that says it needs 3 GiB, on a CPU lane that may hold 2."""
    two = config("null_load_bytes = 3221225472", cpu_budget_bytes=2 * GIB, cpu_queue_limit=200)
    home = House(root, model="smollm2-135m", more_models=("null",), gpu=None, config=two)
    address = home.paths.run / "address"
    with kept(home):
        home.start(ready=False)  # it is not: one of its models cannot be served
        until(lambda: address.exists() and address.read_text(), "the address")
        home.client.base_url = httpx.URL(address.read_text())
        home.runner("cpu")
        yield home


@pytest.mark.usefixtures("model_house")
@pytest.mark.prove
@pytest.mark.parametrize("count", [12, 100])
def test_mixed_work_within_2_gib(tmp_path: Path, model_root: Path, record_property: Any, count: int) -> None:
    """No kill, no peak beyond the budget, and what cannot fit is refused with the numbers, not tried."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "models").symlink_to(model_root / "models")
    before = kernel_kills()
    with mixed(tmp_path / "data") as home, Peak(home) as peak:
        accepted = []
        for n in range(count):
            large = n % 4 == 3
            answer = post(
                home,
                model="null" if large else "smollm2-135m",
                prompt="The sea was calm. " * (1 + 37 * (n % 3)),
                max_tokens=4 + n % 9,
                temperature=0.0 if n % 2 else 0.8,
            )
            assert answer.status_code == (503 if large else 202), answer.text
            if large:
                problem = answer.json()
                assert problem["reason"] == "host-memory"
                assert f"{3 * GIB} bytes of host memory are needed" in problem["detail"]
                assert str(2 * GIB * 9 // 10) in problem["detail"]
                assert problem["rejected"][-1]["action"] == "reroute-cpu"
            else:
                accepted.append(answer.json()["id"])
        states = {home.settled(request_id, 900)["state"] for request_id in accepted}
        assert states == {"completed"}
        assert exits(home) == []
        assert home.verify().problem is None
    assert kernel_kills() == before
    record_property("submissions", count)
    record_property("peak", f"{peak.bytes / MIB:.0f} MiB of 2048")
    assert 100 * MIB < peak.bytes < 2 * GIB


def ordered(home: House, **faults: Any) -> None:
    """Tell the server that the service has started itself to do something."""
    words = next(
        command
        for pid in with_descendants(home.runner("cpu"))
        if "--port" in (command := Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
    )
    port = words[words.index("--port") + 1]
    assert httpx.post(f"http://127.0.0.1:{port}/faults", json=faults, timeout=60.0).status_code == 200


def held(home: House) -> dict[str, int]:
    rows = home.rows("SELECT json_extract(value, '$.held') FROM service WHERE key='cpu-memory'")
    return dict(json.loads(rows[0][0] or "{}")) if rows else {}


def test_a_command_that_serves_the_cpu_lane_is_held_to_the_budget_like_any_worker(tmp_path: Path) -> None:
    """500 MiB may be held: what the server takes counts as the lane's, and beyond that it is ended and begins anew."""
    text = upstreams.config(cmd=upstreams.FAKE, lane="cpu", policy={"cpu_budget_bytes": 500 * MIB})
    with house(tmp_path / "data", gpu=None, config=text) as home:
        first = home.runner("cpu")
        ordered(home, holds_mib=100)
        until(lambda: sum(held(home).values()) >= 100 * MIB, "the server's memory to be counted")
        assert home.serves("cpu")
        assert exits(home) == []
        with suppress(httpx.TransportError):  # it may be ended before it has answered
            ordered(home, holds_mib=600)
        until(lambda: exits(home), "it to be ended")
        assert exits(home) == ["over-budget"]
        assert was_out(home)
        until(lambda: home.serves("cpu") and home.runner("cpu") != first, "a new one")
        view = home.settled(home.submit("And now?", max_tokens=8))
        assert (view["state"], view["output"]["text"]) == ("completed", answer("And now?", 8))
        assert home.verify().problem is None
