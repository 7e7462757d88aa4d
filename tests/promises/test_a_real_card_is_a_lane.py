"""A GPU lane on an NVIDIA card: real processes and the real binding, over a library that shows cards of a file."""

import sys
from pathlib import Path
from typing import Any

import pytest
from bare_llama import packaged_model
from carded import GPU, SUPPORT, Cards, card, carded
from fake_nvml import GIB, FakeEvent, FakeSlice
from house import House, until
from upstreams import built_in, prove

from store.database import Paths
from store.models.catalog import Catalog

SLICE = "MIG-5f1b0c3a-90d4-5c0e-8f42-6a1e0a7d2b11"
SLOW = "[[tps=40]] tell me something long"
UNITS = 160
MEMORY = "null_token_bytes = 4194304\n"


@pytest.fixture
def cards(tmp_path: Path) -> Cards:
    return Cards(tmp_path / "cards.json", card())


def under_way(home: House, question: str = SLOW, **fields: Any) -> str:
    """A request on the GPU lane whose first words were shown."""
    request_id = home.submit(question, **({"max_tokens": UNITS} | fields))
    until(lambda: home.units(request_id) >= 8, "the first words")
    assert home.view(request_id)["lane"] == "gpu"
    return request_id


def device_state(home: House) -> str:
    return str(home.rows("SELECT state FROM devices WHERE id=?", GPU)[0][0])


def environment_of(pid: int) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    return {name: value for name, _, value in pairs}


def reading(home: House, device: str = GPU) -> dict[str, Any]:
    items = home.patiently(lambda: home.client.get("/api/devices")).json()["items"]
    return dict(next(item for item in items if item["id"] == device)["reading"] or {})


def read_at(home: House, device: str = GPU) -> int:
    return int(home.rows("SELECT at_us FROM readings WHERE device=?", device)[0][0])


def test_requests_run_on_the_card_and_nothing_is_called_simulated(tmp_path: Path, cards: Cards) -> None:
    with carded(tmp_path / "data", cards, MEMORY) as home:
        runner = home.runner("gpu")
        request_id = home.submit("hello", max_tokens=48)
        view = home.settled(request_id)
        assert (view["state"], view["lane"]) == ("completed", "gpu")
        assert [e["data"]["device"] for e in home.events(request_id) if e["type"] == "Started"] == [GPU]
        assert view["output"]["text"] == built_in("hello", 48)
        assert environment_of(runner)["CUDA_VISIBLE_DEVICES"] == GPU
        assert environment_of(runner)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert environment_of(home.runner("cpu"))["CUDA_VISIBLE_DEVICES"] == ""
        devices = {item["id"]: item for item in home.client.get("/api/devices").json()["items"]}
        assert set(devices) == {GPU, "host"}
        told = devices[GPU]
        assert (told["name"], told["label"]) == ("NVIDIA Fake 4090", "NVIDIA Fake 4090")
        assert (told["simulated"], told["total_bytes"]) == (False, 8 * GIB)
        health = home.client.get("/health").json()
        assert {(one["lane"], one["device"], one["simulated"]) for one in health["computes_on"]} == {
            ("gpu", GPU, False),
            ("cpu", "cpu", False),
        }
        page = home.client.get("/").text
        assert "NVIDIA Fake 4090" in page
        assert "simulated" not in page.replace("--simulate", "").lower()
        assert "simulated" not in home.log.read_text()
        # A neighbour takes most of it; what the next request needs is not there any more.
        cards.change(lambda one: setattr(one, "used", 7 * GIB + GIB // 2))
        until(lambda: reading(home).get("used") == 7 * GIB + GIB // 2, "the neighbour to be seen")
        view = home.settled(home.submit("hello", max_tokens=100, allow_shrink=False))
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        cards.change(lambda one: setattr(one, "used", 0))
        until(lambda: reading(home).get("used") == 0, "the neighbour to be gone")
        assert home.settled(home.submit("hello", max_tokens=100, allow_shrink=False))["lane"] == "gpu"
        assert home.verify().ok


@pytest.mark.prove
@pytest.mark.parametrize("code", [31, 43])
def test_a_failed_program_is_ended_and_its_card_stays(tmp_path: Path, cards: Cards, code: int) -> None:
    """The pair is not proved, and the device is sound: the same path goes on."""
    with carded(tmp_path / "data", cards) as home:
        before = home.runner("gpu")
        request_id = under_way(home)
        cards.change(lambda one: one.events.append(FakeEvent(code)))
        view = home.settled(request_id)
        assert (view["state"], view["lane"]) == ("completed", "gpu")
        assert view["output"]["text"] == built_in(SLOW, UNITS)
        (fault,) = [event["data"] for event in home.events(request_id) if event["type"] == "FaultSeen"]
        assert (fault["fault"], fault["kind"], fault["device"]) == ("worker", "xid", GPU)
        assert (fault["evidence"]["xid"], fault["evidence"]["signal"]) == (code, "SIGKILL")
        assert home.runner("gpu") != before
        assert device_state(home) == "ok"
        assert home.rows("SELECT count(*) FROM events WHERE type='RunnerExited'") == [(1,)]
        assert home.verify().ok


@pytest.mark.prove
def test_an_idle_runner_and_a_clean_up_are_nobodys_fault(tmp_path: Path, cards: Cards) -> None:
    with carded(tmp_path / "data", cards) as home:
        before = home.runner("gpu")
        cards.change(lambda one: one.events.append(FakeEvent(31)))
        until(lambda: reading(home).get("xids"), "the Xid")
        for _ in range(2):  # the supervisor looks more often than the monitor does
            at_us = read_at(home)
            until(lambda at_us=at_us: read_at(home) > at_us, "a newer reading")
        request_id = under_way(home)
        cards.change(lambda one: one.events.append(FakeEvent(45)))
        until(lambda: len(reading(home)["xids"]) == 2, "the second Xid")
        assert home.settled(request_id)["state"] == "completed"
        assert home.runner("gpu") == before
        assert "FaultSeen" not in home.types(request_id)


def test_a_card_that_fell_off_the_bus_is_lost_and_comes_back(tmp_path: Path, cards: Cards) -> None:
    def fall(one: Any) -> None:
        one.events.append(FakeEvent(79))
        one.recovery = 2

    with carded(tmp_path / "data", cards) as home:
        home.runner("gpu")
        unproved = under_way(home)
        cards.change(fall)
        view = home.settled(unproved)
        assert view["state"] == "resumable-error"
        assert [e["data"]["decision"]["rule"] for e in home.events(unproved) if e["type"] == "Failed"] == ["pair-none"]
        assert device_state(home) == "lost"
        assert not home.serves()
        assert home.settled(home.submit("meanwhile"))["lane"] == "cpu"
        assert home.client.get("/health").json()["status"] == "warn"
        cards.change(lambda one: setattr(one, "recovery", 0))
        until(lambda: home.serves() and home.runner("gpu"), "the card to come back")
        assert device_state(home) == "ok"
        prove(home)
        proved = under_way(home)
        cards.change(fall)
        view = home.settled(proved)
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        assert view["output"]["text"] == built_in(SLOW, UNITS)
        (moved,) = [e["data"] for e in home.events(proved) if e["type"] == "Rerouted"]
        assert moved["decision"]["rule"] == "continue-faithful"
        assert home.verify().ok


@pytest.mark.prove
def test_a_slice_that_is_blind_and_one_that_hangs(tmp_path: Path) -> None:
    slices = [FakeSlice(SLICE, total=2 * GIB), FakeSlice("MIG-other", total=5 * GIB, gpu_instance=2)]
    cards = Cards(tmp_path / "cards.json", card(slices=slices))
    with carded(tmp_path / "data", cards, f'gpu = "{SLICE}"\n') as home:
        assert environment_of(home.runner("gpu"))["CUDA_VISIBLE_DEVICES"] == SLICE
        assert home.rows("SELECT id, total_bytes FROM devices") == [(SLICE, 2 * GIB)]
        running = under_way(home)
        cards.change(lambda one: one.codes.update({"nvmlDeviceGetMemoryInfo_v2": 4}))
        until(lambda: reading(home, SLICE).get("state") == "blind", "the blindness")
        assert home.settled(home.submit("new work"))["lane"] == "cpu"
        assert home.settled(running)["lane"] == "gpu"
        cards.change(lambda one: one.codes.clear())
        until(lambda: reading(home, SLICE).get("state") == "ok", "sight")
        assert home.settled(home.submit("new work"))["lane"] == "gpu"
        cards.change(lambda one: one.hangs.append("*"))
        until(lambda: "has not answered" in home.log.read_text(), "the silence to be told")
        before = read_at(home, SLICE)
        assert home.settled(home.submit("in the dark"))["state"] == "completed"
        assert read_at(home, SLICE) == before
        assert home.stop() == 0


def test_no_card_is_a_cpu_only_service_and_a_wrong_name_is_refused(tmp_path: Path) -> None:
    cards = Cards(tmp_path / "cards.json")
    with carded(tmp_path / "data", cards) as home:
        assert home.settled(home.submit("hello"))["lane"] == "cpu"
        assert home.rows("SELECT lane FROM lanes") == [("cpu",)]
        assert "shows no card that can be used: the CPU lane serves alone" in home.log.read_text()
        home.stop()
        cards.box.cards.append(card())
        cards.write()
        home.config.write_text('gpu = "GPU-0000"\n')
        assert home.start(cards.environment, ready=False).process is not None
        assert home.process is not None
        assert home.process.wait(120) == 2
        assert f"gpu = 'GPU-0000' is no card of this machine; there are {GPU}" in home.log.read_text()


@pytest.mark.prove
@pytest.mark.model
def test_a_model_that_takes_nothing_of_the_card_has_no_lane_there(tmp_path: Path, cards: Cards) -> None:
    """The operator's server computes on the CPU and does not say so. One that holds memory on the card is believed."""
    data = tmp_path / "data"
    Catalog(Paths(data).make().models).add(packaged_model(), "small", engine="llamacpp")
    command = f"{sys.executable} {SUPPORT / 'bare_llama.py'} ${{MODEL}} ${{PORT}} 512 1 ${{SLOTS}}"
    config = f'context = 512\nllama_server = "{command}"\n[policy]\nrestart_backoff_max_s = 0.2\n'
    with carded(data, cards, config, "small") as home:
        until(lambda: home.rows("SELECT 1 FROM lanes WHERE out_reason='not-on-device'"), "the lane to be out")
        assert "MiB were to be: its engine computes elsewhere" in home.log.read_text()
        view = home.settled(home.submit("hello", max_tokens=8))
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        until(lambda: show_server(home, cards) and home.serves(), "a model that holds memory on the card")
        ((held,),) = home.rows(
            "SELECT json_extract(data, '$.bytes_held') FROM events WHERE type='RunnerLoaded' AND "
            "json_extract(data, '$.device')=?",
            GPU,
        )
        assert held == GIB // 2
        assert home.settled(home.submit("hello", max_tokens=8))["lane"] == "gpu"


def show_server(home: House, cards: Cards) -> bool:
    """Let the driver show half a GiB in the hands of the server that the GPU lane's runner started."""
    runner = next(iter(pid for pid in home.children() if b"gpu" in words(pid)), None)
    server = next((pid for pid in below(runner) if any(b"bare_llama" in word for word in words(pid))), None)
    if server is not None and cards.box.cards[0].processes != {server: GIB // 2}:
        cards.change(lambda one: setattr(one, "used", GIB // 2) or setattr(one, "processes", {server: GIB // 2}))
    return server is not None


def words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def below(pid: int | None) -> list[int]:
    """A process and all that it started."""
    if pid is None:
        return []
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [more for child in task.read_text().split() for more in below(int(child))]
    return found
