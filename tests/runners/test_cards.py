"""Which card is chosen, what a process is shown of it, whether an engine can compute there, and whether it does."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from carded import Cards, card
from desk import Desk, HandClock, lane_row
from fake_nvml import GIB, MIB, FakeSlice

from core import events as ev
from core.contract import kind_of
from core.errors import DeviceFault, Malformed
from runners import accelerator, onboard, xids
from runners.accelerator import Accelerator
from runners.children import Child, Exit, RunnerSpec
from runners.deaths import fault_of
from runners.devices.backends import cuda_devices
from runners.devices.base import MigPlace, Reading
from runners.devices.cards import Gone, Offer, choose
from runners.devices.real import RealDevice, environment_for
from runners.needs import need_of
from runners.onboard import NotOnDevice, held_on, taken
from runners.startup import specs_for
from store.database import Paths
from store.journal import Tx
from store.laneviews import path_of
from store.models.catalog import ModelEntry
from store.models.null_model import NULL_ID
from store.settings import Settings, Upstream, load

A = "GPU-af7b61d8-0b5e-4c1d-9c3e-111111111111"
B = "GPU-af7b99aa-0b5e-4c1d-9c3e-222222222222"
C = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
S1 = "MIG-11111111-aaaa-bbbb-cccc-000000000001"
S2 = "MIG-22222222-aaaa-bbbb-cccc-000000000002"
# On the bus the order is C (05), A (41), B (c1).
THREE = (
    Offer(A, "ok", "small", "00000000:41:00.0", 8 * GIB),
    Offer(B, "ok", "large", "00000000:C1:00.0", 24 * GIB),
    Offer(C, "ok", "large", "00000000:05:00.0", 24 * GIB),
)
SLICED = (
    THREE[0],
    Offer(S1, "ok", "part", "00000000:C1:00.0", 10 * GIB, mig=MigPlace(B, 1, 0)),
    Offer(S2, "ok", "part", "00000000:C1:00.0", 20 * GIB, mig=MigPlace(B, 2, 0)),
)


# ---- the choice ----


def changed(index: int, **values: Any) -> tuple[Offer, ...]:
    offers = list(THREE)
    offers[index] = msgspec.structs.replace(offers[index], **values)
    return tuple(offers)


@pytest.mark.parametrize(
    ("wanted", "offers", "environment", "expected"),
    [
        ("auto", THREE, {}, C),  # of two alike the first on the bus
        ("auto", changed(2, state="lost", total=None), {}, B),
        ("auto", changed(2, state="reset-required"), {}, B),
        ("auto", changed(2, state="blind", total=None), {}, B),
        ("auto", (msgspec.structs.replace(THREE[0], state="blind", total=None),), {}, A),
        ("auto", THREE, {"CUDA_VISIBLE_DEVICES": A}, A),
        ("auto", THREE, {"CUDA_VISIBLE_DEVICES": "GPU-af7b6"}, A),
        ("auto", THREE, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, A),
        ("auto", THREE, {"CUDA_VISIBLE_DEVICES": ""}, None),
        ("auto", (), {}, None),
        ("auto", SLICED, {}, S2),  # a slice is its own size
        ("auto", SLICED, {"CUDA_VISIBLE_DEVICES": S1}, S1),
        ("GPU-af7b6", THREE, {}, A),
        ("GPU-AF7B99AA", THREE, {}, B),
        (A, changed(0, state="lost"), {}, A),
        (S1, SLICED, {}, S1),
        (f"MIG-{B}/2/0", SLICED, {}, S2),
    ],
)
def test_the_card(wanted: str, offers: Sequence[Offer], environment: dict[str, str], expected: str | None) -> None:
    found = choose(wanted, offers, environment)
    assert (None if found is None else found.id) == expected


@pytest.mark.parametrize(
    ("wanted", "offers", "environment", "words"),
    [
        ("GPU-af7b", THREE, {}, "fits 2 cards"),
        ("GPU-0000", THREE, {}, "is no card of this machine; there are GPU-af7b61d8"),
        ("GPU-0000", (), {}, "there is none"),
        ("MIG-1111", SLICED, {}, "is no card"),
        (B, SLICED, {}, "name one of its slices: MIG-1"),
        (B, THREE, {"CUDA_VISIBLE_DEVICES": A}, "hidden by CUDA_VISIBLE_DEVICES"),
        ("auto", THREE, {"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    ],
)
def test_a_wrong_name_is_refused(wanted: str, offers: Sequence[Offer], environment: dict[str, str], words: str) -> None:
    with pytest.raises(Malformed, match=words):
        choose(wanted, offers, environment)


def test_a_card_that_was_used_and_is_gone_is_no_mistake() -> None:
    assert choose("GPU-af7b99", THREE[:1], {}, known=(B,)) == Gone(B)


@pytest.mark.parametrize("value", ["auto", "none", "GPU-af7b61d8", S1, f"MIG-{A}/1/0"])
def test_what_the_setting_takes(value: str) -> None:
    assert load(None, {"FAILSOFT_GPU": value}).gpu == value


@pytest.mark.parametrize("value", ["0", "cuda:0", "GPU-", "GPU-a,GPU-b", "all"])
def test_what_the_setting_refuses(value: str) -> None:
    with pytest.raises(Malformed, match="nvidia-smi -L"):
        load(None, {}, gpu=value)


def test_cards_of_a_type_are_of_a_kind() -> None:
    assert kind_of("NVIDIA GeForce RTX 4090") == "nvidia-geforce-rtx-4090"
    assert kind_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb") == "nvidia-a100-sxm4-40gb-mig-1g.5gb"


@pytest.mark.parametrize(("device", "expected"), [(A, A), (S1, S1), ("cpu", ""), ("sim-0", ""), ("upstream:box", None)])
def test_a_process_sees_its_card_and_no_other(device: str, expected: str | None) -> None:
    assert environment_for(device).get("CUDA_VISIBLE_DEVICES") == expected


# ---- at the start ----


def entry(name: str, engine: str) -> ModelEntry:
    return ModelEntry(id=name, engine=engine)


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cards:
    """Cards that this process's children see."""
    cards = Cards(tmp_path / "cards.json", card(A), card(B, pci="00000000:C1:00.0", total=24 * GIB))
    monkeypatch.setattr(accelerator, "DRIVER_NODES", (str(tmp_path),))
    for name, value in cards.environment.items():
        monkeypatch.setenv(name, value)
    return cards


NULL = entry(NULL_ID, "null")
REAL = entry("real", "llamacpp")
OLD = entry("old", "ctransformers")


def test_the_largest_card_gets_the_models_that_can_use_it(
    paths: Paths, shown: Cards, caplog: pytest.LogCaptureFixture
) -> None:
    """Both packages here are installed without CUDA: each model is told of, with what to install."""
    found = accelerator.find(paths, Settings(), [NULL, REAL, OLD])
    assert found == Accelerator(B, "NVIDIA Fake 4090", False, 24 * GIB, (NULL_ID,))
    specs = specs_for([NULL, REAL, OLD], found, Settings())
    assert [(spec.model, spec.lane, spec.device) for spec in specs if spec.lane == "gpu"] == [(NULL_ID, "gpu", B)]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert f"old has no lane on NVIDIA Fake 4090 ({B}): the CUDA library of ctransformers" in lines[0]
    assert "pip install 'ctransformers[cuda]" in lines[0]
    assert f"real has no lane on NVIDIA Fake 4090 ({B}): the package xllamacpp computes on CPU" in lines[1]
    assert "Install a CUDA build of the package xllamacpp" in lines[1]


def test_a_card_that_nothing_can_use_is_no_lane(paths: Paths, shown: Cards, caplog: pytest.LogCaptureFixture) -> None:
    assert accelerator.find(paths, Settings(), [REAL]) is None
    assert "nothing computes on it, so the CPU lane serves alone" in caplog.text


def test_a_server_of_the_operators_is_taken_at_its_word_and_an_address_is_not(
    paths: Paths, shown: Cards, caplog: pytest.LogCaptureFixture
) -> None:
    found = accelerator.find(paths, Settings(llama_server="llama-server --port ${PORT}"), [REAL])
    assert found is not None
    assert found.models == ("real",)
    assert accelerator.find(paths, Settings(llama_server="http://127.0.0.1:8080"), [REAL]) is None
    assert "nobody can tell which card" in caplog.text


def test_a_lane_of_an_upstream_asks_no_engine(paths: Paths, shown: Cards) -> None:
    served = Settings(upstreams=(Upstream("box", "real", "http://127.0.0.1:1"),))
    found = accelerator.find(paths, served, [NULL, REAL])
    assert found is not None
    assert found.models == (NULL_ID,)


def test_none_is_none_and_no_driver_is_no_question(
    paths: Paths, shown: Cards, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accelerator, "LOOK", ("/nonexistent",))
    assert accelerator.find(paths, Settings(gpu="none"), [NULL]) is None
    monkeypatch.setattr(accelerator, "DRIVER_NODES", (str(paths.root / "no-such-node"),))
    assert accelerator.find(paths, Settings(), [NULL]) is None
    assert caplog.text == ""
    assert accelerator.find(paths, Settings(gpu=A), [NULL]) is None
    assert f"so {A} cannot be used: the CPU lane serves alone" in caplog.text


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import time; time.sleep(600)", "does not answer within"),
        ("import os; os.abort()", "cannot be asked for cards"),
        ('print(\'{"problem": "the driver is of another time", "code": 18, "advice": "Reboot."}\')', "Reboot."),
    ],
)
def test_a_driver_in_trouble_leaves_the_cpu_lane(
    paths: Paths,
    shown: Cards,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    program: str,
    words: str,
) -> None:
    monkeypatch.setattr(accelerator, "LOOK", (sys.executable, "-c", program))
    monkeypatch.setattr(accelerator, "LOOK_S", 1.0 if "sleep" in program else 60.0)
    assert accelerator.find(paths, Settings(), [NULL]) is None
    assert words in caplog.text
    assert "the CPU lane serves alone" in caplog.text


@pytest.mark.parametrize(
    ("program", "words"),
    [("import time; time.sleep(600)", "did not tell within"), ("import os; os.abort()", "its native code ended")],
)
def test_an_engine_in_trouble_has_no_lane(
    paths: Paths,
    shown: Cards,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    program: str,
    words: str,
) -> None:
    monkeypatch.setattr(accelerator, "ABILITY", (sys.executable, "-c", program))
    monkeypatch.setattr(accelerator, "ABILITY_S", 1.0 if "sleep" in program else 60.0)
    assert accelerator.find(paths, Settings(), [REAL]) is None
    assert words in caplog.text


def test_a_slice_is_offered_with_its_own_size(paths: Paths, shown: Cards) -> None:
    shown.box.cards[1].slices = [FakeSlice(S1, total=5 * GIB), FakeSlice(S2, total=10 * GIB, gpu_instance=2)]
    shown.write()
    found = accelerator.find(paths, Settings(), [NULL])
    assert found is not None
    assert (found.id, found.total) == (S2, 10 * GIB)


def test_what_llama_cpp_lists() -> None:
    """Names as its backends give them; a Vulkan device cannot be chosen by UUID."""
    assert cuda_devices([{"name": "CUDA0"}, {"name": "CPU"}]) == ["CUDA0"]
    assert cuda_devices([{"name": "Vulkan0"}, {"name": "CPU"}]) == []


# ---- as its runner sees it ----


def test_a_card_that_is_out_is_a_fault_and_one_that_was_never_seen_is_not() -> None:
    seen: list[tuple[int, Reading] | None] = [None]
    device = RealDevice(A, lambda: seen[0])
    device.allocate(1 << 40)
    device.check()
    assert device.observe().state == "unknown"
    for state in ("lost", "reset-required"):
        seen[0] = (1, Reading(state, reason="Xid 79"))
        with pytest.raises(DeviceFault, match="Xid 79"):
            device.allocate(0)
        fresh = RealDevice(A, lambda: seen[0])
        with pytest.raises(DeviceFault, match="Xid 79"):
            fresh.check()
    seen[0] = (2, Reading("blind"))
    device.allocate(0)


def test_a_pulse_looks_now_and_then_only() -> None:
    looks: list[int] = []

    def latest() -> tuple[int, Reading] | None:
        looks.append(1)
        return 1, Reading("ok")

    device = RealDevice(A, latest)
    for _ in range(1000):
        device.check()
    assert len(looks) <= 2


# ---- whether a model is there ----

BEFORE = Reading("ok", 8 * GIB, GIB)


def told(used: int | None = None, processes: dict[int, int | None] | None = None, **more: Any) -> Reading:
    ours = None if processes is None else sum(size or 0 for size in processes.values())
    return Reading("ok", 8 * GIB, used, ours, processes=processes, **more)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (told(3 * GIB, {}), (0, True)),
        (told(3 * GIB, {1: GIB}), (0, True)),  # somebody else's
        (told(3 * GIB), (2 * GIB, False)),
        (told(GIB), (0, False)),
        (told(GIB // 2), None),  # a neighbour left meanwhile
        (told(None), None),
        (told(3 * GIB, unified=True), None),  # the host's memory rises wherever it computes
    ],
)
def test_what_a_reading_says(after: Reading, expected: tuple[int, bool] | None) -> None:
    assert taken(BEFORE, after) == expected


def test_what_this_process_and_its_children_hold_counts() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as child:
        listed: dict[int, int | None] = {os.getpid(): 300 * MIB, child.pid: GIB, os.getppid(): 5 * GIB}
        assert taken(BEFORE, told(7 * GIB, listed)) == (300 * MIB + GIB, True)
        child.communicate(b"\n")


def look(*readings: tuple[int, Reading]) -> tuple[RealDevice, list[int]]:
    """A card whose readings come one after the other; the last one stays."""
    left, beats = list(readings), []

    def latest() -> tuple[int, Reading] | None:
        return left.pop(0) if len(left) > 1 else left[0]

    return RealDevice(A, latest), beats


def test_a_model_is_looked_for_until_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.getpid()
    device, beats = look((5, told(0, {})), (11, told(GIB, {me: 100 * MIB})), (12, told(2 * GIB, {me: GIB})))
    assert held_on(device, BEFORE, 2 * GIB, 10, lambda: beats.append(1)) == GIB
    assert len(beats) == 3


@pytest.mark.parametrize(
    ("after", "expected"),
    [(told(2 * GIB, {os.getpid(): 400 * MIB}), 400), (told(2 * GIB, {}), 0), (told(GIB + 100 * MIB), 100)],
)
def test_less_than_a_quarter_is_nothing(monkeypatch: pytest.MonkeyPatch, after: Reading, expected: int) -> None:
    """A driver takes some hundred MiB for a process that computes elsewhere."""
    monkeypatch.setattr(onboard, "WAIT_S", 0.3)
    device, _ = look((11, after))
    with pytest.raises(NotOnDevice, match=rf"holds {expected} MiB on {A} where 4096 MiB were to be"):
        held_on(device, BEFORE, 4 * GIB, 10, lambda: None)


@pytest.mark.parametrize("seen", [(9, told(GIB, {})), (11, told(None)), (11, told(3 * GIB))])
def test_what_is_not_told_is_unknown(monkeypatch: pytest.MonkeyPatch, seen: tuple[int, Reading]) -> None:
    """An old reading, one without numbers; or a rise, which is enough to go on and says no exact number."""
    monkeypatch.setattr(onboard, "WAIT_S", 0.3)
    device, _ = look(seen)
    assert held_on(device, BEFORE, 2 * GIB, 10, lambda: None) is None


# ---- Xids ----


class Phase:
    def __init__(self, phase: str) -> None:
        self._phase = phase

    def phase(self) -> str:
        return self._phase


class Process:
    pid = 0


@pytest.mark.parametrize(
    ("code", "at", "phase", "died", "ended"),
    [
        (31, 50, "busy", 0, "xid-31"),
        (13, 50, "loading", 0, "xid-13"),
        (43, 50, "busy", 0, "xid-43"),
        (999, 50, "busy", 0, "xid-999"),
        (31, 50, "idle", 0, None),
        (45, 50, "busy", 0, None),
        (63, 50, "busy", 0, None),
        (79, 50, "busy", 0, None),  # the card's, and comes as its state
        (31, 50, "busy", 48, None),  # about the one that died two seconds before
        (31, 50, "busy", 46, "xid-31"),
        (31, 5, "busy", 0, None),  # from before this runner
        (31, 0, "busy", 0, None),  # from before this service
    ],
)
def test_who_is_ended(
    monkeypatch: pytest.MonkeyPatch, paths: Paths, code: int, at: int, phase: str, died: int, ended: str | None
) -> None:
    """Seconds: the service began at 1, the runner at 10, and it is 60 now."""
    second = 1_000_000
    document = msgspec.json.encode({"state": "ok", "xids": [{"code": code, "class": "app", "at": at * second}]})
    monkeypatch.setattr(xids, "reading_of", lambda _look, _device: (at * second, document.decode()))
    ends: list[str] = []
    clock = HandClock(now_us=second)
    child: Any = Child("runner", paths, spec=RunnerSpec("gpu", "null", A, "null/1"))
    with closing(sqlite3.connect(":memory:")) as driver:
        watch = xids.Xids(A, [child], driver, clock)
        child.process, child.pulse, child.started, child.kill = (
            Process(),
            Phase(phase),
            time.monotonic() - 50,
            ends.append,
        )
        if died:
            clock.now = died * second
            watch.died(child)
        clock.now = 60 * second
        for _ in range(3):
            watch.tick()
    assert ends == ([] if ended is None else [ended])


def test_an_xid_is_evidence_against_the_worker_and_its_input() -> None:
    spec = RunnerSpec("gpu", "null", A, "null/1")
    fault = fault_of(spec, "gpu-null-1", Exit(9, None), "xid-31")
    assert (fault.fault, fault.kind, fault.blames_input) == ("worker", "xid", True)
    assert fault.evidence == {"signal": "SIGKILL", "ended_for": "xid-31", "xid": 31}


# ---- what is promised and proved ----


def test_a_proof_outlives_a_change_of_cards(bare: Desk) -> None:
    """Two cards of a type are one kind; another type, and the host, are others."""
    names = {A: "NVIDIA GeForce RTX 4090", B: "NVIDIA GeForce RTX 4090", C: "NVIDIA GeForce RTX 3090"}

    def unit(tx: Tx) -> dict[str, str]:
        for uuid, name in names.items():
            tx.append(f"device-{uuid}", ev.DeviceFound(name, False, GIB), actor="test")
        rows = {uuid: msgspec.structs.replace(lane_row("gpu", serving=True), device=uuid) for uuid in names}
        return {uuid: path_of(tx, row).kind for uuid, row in rows.items()}

    kinds = bare.run(unit)
    assert kinds == {A: "nvidia-geforce-rtx-4090", B: "nvidia-geforce-rtx-4090", C: "nvidia-geforce-rtx-3090"}


@pytest.mark.parametrize("device", [A, S1])
def test_a_card_costs_the_drivers_share_for_each_process(bare: Desk, device: str) -> None:
    """500 MiB, whatever the model; and what is learned on a simulated device says nothing about a card."""
    small = ModelEntry(
        id="small", engine="ctransformers", prepared_bytes=GIB, layers=4, width=64, heads=2, kv_heads=2,
        vocabulary=256, context_length=512,
    )  # fmt: skip
    there, elsewhere = (
        bare.run(lambda tx, d=d: need_of(tx, small, Settings(), "ctransformers/1", "gpu", d)) for d in (device, "sim-0")
    )
    assert there.load - elsewhere.load == there.formula - elsewhere.formula == 500 * MIB
    assert [one.load - two.load for one, two in zip(there.parts, elsewhere.parts, strict=True)] == [500 * MIB] * 3
    assert there.settings != elsewhere.settings
