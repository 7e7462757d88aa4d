"""Promise: memory is decided before it runs out. No byte is promised twice; what does not fit waits or moves."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from house import House, house, until

from runners.devices.simulated import SimulatedDevice

MIB = 1 << 20
GIB = 1 << 30
POLICY = """
[policy]
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
hang_grace_s = 5.0
headroom_bytes = 0
pressure_high = 1.0
evict_period_s = 0.5
release_wait_s = 3.0
"""


class Watch(threading.Thread):
    """Looks at the promises again and again; one query is one consistent picture of the store."""

    def __init__(self, home: House, room: int) -> None:
        super().__init__(daemon=True)
        self.home, self.room = home, room
        self.over: list[int] = []
        self.most = self.looks = 0
        self.done = threading.Event()
        self.device = SimulatedDevice(home.paths.sim / "sim-0.json")

    def run(self) -> None:
        while not self.done.wait(0.002):
            (promised,) = self.home.rows("SELECT coalesce(sum(bytes), 0) FROM reservations")[0]
            used = self.device.observe().used or 0
            self.looks += 1
            self.most = max(self.most, promised)
            self.over += [size for size in (promised, used) if size > self.room]


@contextmanager
def watched(home: House, room: int) -> Iterator[Watch]:
    watch = Watch(home, room)
    watch.start()
    try:
        yield watch
    finally:
        watch.done.set()
        watch.join()
    assert watch.looks > 10
    assert watch.over == [], f"of {room} bytes"


def test_64_submissions_at_once_with_room_for_three(tmp_path: Path) -> None:
    # The model takes 16 MiB and 1 MiB a token; each request has 250 tokens. Of 790 MiB three fit and a fourth does not.
    config = f"null_load_bytes = {16 * MIB}\nnull_token_bytes = {MIB}\n" + POLICY
    with house(tmp_path / "data", gpu="790MiB", config=config) as home, watched(home, 790 * MIB) as watch:
        home.runner("gpu")
        prompt = "[[tps=800]] x"
        body = {"model": "null", "prompt": prompt, "max_tokens": 250 - len(prompt), "allow_shrink": False}
        barrier = threading.Barrier(16)

        def submit(number: int) -> dict[str, object]:
            if number < 16:
                barrier.wait()
            answer = home.client.post("/api/requests", json=body)
            assert answer.status_code == 202, answer.text
            return dict(answer.json())

        with ThreadPoolExecutor(16) as pool:
            views = list(pool.map(submit, range(64)))
        ids = [str(view["id"]) for view in views]
        admitted = {request_id: home.events(request_id)[0]["data"]["decision"] for request_id in ids}
        for request_id in ids:
            assert home.settled(request_id)["state"] == "completed"
    actions = [decision["action"] for decision in admitted.values()]
    assert actions.count("run-gpu") >= 3
    assert set(actions) == {"run-gpu", "delay"}
    assert actions.count("delay") >= 32
    for view in views:
        decision = admitted[str(view["id"])]
        assert decision["facts"]["device"]["total"] == 790 * MIB
        if decision["action"] == "delay":
            assert decision["rule"] == "fits-soon"
            assert isinstance(view["queue"], dict)
            assert view["queue"]["position"] is not None
            assert {one["action"] for one in decision["rejected"]} == {"run-gpu", "shrink", "reroute-cpu"}
    assert watch.most == (16 + 750) * MIB
    types = {kind for request_id in ids for kind in home.types(request_id)}
    assert "FaultSeen" not in types, "an allocation failed though its bytes were promised"
    assert home.rows("SELECT holder FROM reservations WHERE kind='request'") == []
    assert home.verify().ok


def test_a_ballast_between_decision_and_start_moves_the_request(tmp_path: Path) -> None:
    config = f"null_load_bytes = {16 * MIB}\nnull_token_bytes = {MIB}\n" + POLICY
    with house(tmp_path / "data", gpu="1000MiB", config=config) as home:
        device = SimulatedDevice(home.paths.sim / "sim-0.json")
        home.runner("gpu")
        # All 16 slots are taken, so that what is decided next cannot start yet.
        slow = [home.submit("", prompt="[[tps=2]] ", max_tokens=20) for _ in range(16)]
        until(lambda: len(home.rows("SELECT 1 FROM requests WHERE running=1")) == 16, "16 at work")
        request_id = home.submit("", prompt="last", max_tokens=396, allow_shrink=False)
        decided = home.events(request_id)[0]["data"]["decision"]
        assert (decided["action"], decided["rule"]) == ("run-gpu", "gpu-ready")
        device.set_foreign(700 * MIB)

        def seen() -> bool:
            (document,) = home.rows("SELECT doc FROM readings WHERE device='sim-0'")[0]
            return bool(msgspec.json.decode(document)["foreign"] == 700 * MIB)

        until(seen, "a reading that shows the ballast")
        home.client.post(f"/api/requests/{slow[0]}/cancel", json={})
        view = home.settled(request_id)
        assert (view["state"], view["lane"], view["degraded"]["rule"]) == ("completed", "cpu", "no-room")
        moved = next(event for event in home.events(request_id) if event["type"] == "Rerouted")
        assert moved["data"]["decision"]["facts"]["second_look"] is True
        assert moved["data"]["decision"]["facts"]["device"]["used"] >= 700 * MIB
        assert decided["facts"]["device"]["used"] < 700 * MIB
        assert "short" in str(moved["data"]["decision"]["rejected"])
        replay = home.replay(request_id)
        assert len(replay["decisions"]) >= 2, "it may have said what it waits for in between"
        assert all(decision["same"] for decision in replay["decisions"])
        for other in slow:
            home.settled(other)
        assert home.verify().ok


MODELS = ("null-a", "null-b", "null-c", "null-d", "null-e")


@pytest.mark.prove
def test_five_models_of_3_gib_take_turns_on_8_gib(tmp_path: Path) -> None:
    config = f"null_load_bytes = {3 * GIB}\n" + POLICY
    options = {"model": MODELS[0], "more_models": MODELS[1:], "gpu": "8GiB"}
    with house(tmp_path / "data", config=config, **options) as home, watched(home, 8 * GIB):  # type: ignore[arg-type]
        until(lambda: len(home.rows("SELECT 1 FROM lanes WHERE lane='gpu' AND resident=1")) == 2, "two to be loaded")
        ids = []
        for number in range(20):
            model = MODELS[number * 7 % 5]
            ids.append(home.submit("", model=model, prompt=f"[[tps=200]] {number}", max_tokens=40))
            if number % 3 == 2:
                home.settled(ids[-1])
        for request_id in ids:
            assert home.settled(request_id)["state"] == "completed"
        events = home.rows("SELECT seq, type, stream, data FROM events ORDER BY seq")
        busy: dict[str, set[str]] = {model: set() for model in MODELS}
        loaded: set[str] = set()
        loads = evictions = 0
        for _seq, kind, stream, text in events:
            data = msgspec.json.decode(text)
            model = stream.removeprefix("model-")
            if kind == "Admitted":
                busy[data["model"]].add(stream)
            elif kind in {"Completed", "Rerouted", "Cancelled"}:
                for streams in busy.values():
                    streams.discard(stream)
            elif kind == "LoadPlanned":
                loads += 1
                loaded.add(model)
                assert data["why"]
            elif kind == "EvictAsked":
                evictions += 1
                assert busy[model] == set(), f"{model} had work"
                assert data["rule"] == "idle-makes-room"
                assert "idle for" in data["why"]
            elif kind == "Evicted":
                loaded.discard(model)
                assert data["bytes_promised"] in {3 * GIB * quarters // 4 for quarters in (1, 2, 3, 4)}
                assert data.get("not_reclaimed", 0) == 0
        assert 1 <= evictions <= len(ids)
        assert loads - evictions <= len(loaded)
        on_gpu = [view for view in map(home.view, ids) if view["lane"] == "gpu"]
        assert {view["model"] for view in on_gpu} >= set(MODELS[:2])
        assert "FaultSeen" not in {kind for _seq, kind, _stream, _data in events}
        for request_id in ids:
            assert all(decision["same"] for decision in home.replay(request_id)["decisions"])
        assert home.verify().ok


@contextmanager
def two_models(root: Path, **top: str) -> Iterator[House]:
    """Two models of 3 GiB on a card that holds one of them, and no part of the other beside it."""
    lines = "".join(f"{name} = {value}\n" for name, value in top.items())
    config = f"null_load_bytes = {3 * GIB}\n{lines}{POLICY}"
    with house(root, model="null-a", more_models=("null-b",), gpu="3600MiB", config=config) as home:
        until(lambda: home.rows("SELECT 1 FROM runners WHERE model='null-a' AND lane='gpu' AND state='idle'"), "null-a")
        yield home


def test_bytes_that_do_not_come_back_in_time_are_told_and_not_promised(tmp_path: Path) -> None:
    with two_models(tmp_path / "data") as home:
        device = SimulatedDevice(home.paths.sim / "sim-0.json")
        device.set_lag(6.0)
        request_id = home.submit("", model="null-b", prompt="x", max_tokens=4)
        assert home.events(request_id)[0]["data"]["decision"]["rule"] == "fits-after-eviction"
        until(lambda: home.rows("SELECT 1 FROM events WHERE type='Evicted'"), "the eviction")
        (text,) = home.rows("SELECT data FROM events WHERE type='Evicted'")[0]
        evicted = msgspec.json.decode(text)
        assert (evicted["bytes_promised"], evicted["not_reclaimed"]) == (3 * GIB, 3 * GIB)
        assert home.settled(request_id)["state"] == "completed"
        assert "FaultSeen" not in home.types(request_id)
        assert home.verify().ok


def test_a_pinned_model_is_never_unloaded(tmp_path: Path) -> None:
    with two_models(tmp_path / "data", pinned='["null-a"]') as home:
        view = home.settled(home.submit("", model="null-b", prompt="x", max_tokens=4))
        assert (view["state"], view["lane"], view["degraded"]["rule"]) == ("completed", "cpu", "no-room")
        assert home.rows("SELECT 1 FROM events WHERE type='EvictAsked'") == []
        assert home.settled(home.submit("", model="null-a", prompt="x", max_tokens=4))["lane"] == "gpu"


def test_a_model_that_fits_only_in_part_is_placed_in_part_and_that_is_told(tmp_path: Path) -> None:
    """1 GiB less 100 MiB of headroom and 500 MiB of a neighbour's leaves 424 MiB; half of 600 MiB fits, three quarters
    do not."""
    config = "null_load_bytes = 629145600\n[policy]\nheadroom_bytes = 104857600\n"
    made = House(tmp_path / "data", config=config)
    SimulatedDevice(made.paths.sim / "sim-0.json", 1 << 30).set_foreign(500 << 20)
    with house(tmp_path / "data", config=config) as home:
        view = home.settled(home.submit("in part", max_tokens=8))
        assert (view["state"], view["lane"], view["degraded"]["rule"]) == ("completed", "gpu", "fits-in-part")
        decision = home.events(view["id"])[0]["data"]["decision"]
        assert (decision["action"], decision["part"]["layers"], decision["part"]["load"]) == ("offload", 2, 300 << 20)
        assert decision["part"]["rate"] > 0
        assert home.replay(view["id"])["decisions"][0]["same"]
        assert SimulatedDevice(home.paths.sim / "sim-0.json").observe().ours == 300 << 20
