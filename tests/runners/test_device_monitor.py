"""The monitor as a process: what it writes, and that one device's trouble is nobody else's."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from carded import Cards
from desk import ROOT, HandClock
from fake_nvml import GIB, FakeCard, FakeEvent
from house import House, house, until

from runners.children import MONITOR_PAUSE_S, Child
from runners.devices.base import Reading
from runners.devices.simulated import SimulatedDevice
from runners.devices.watcher import Watcher
from store.clock import start_ticks
from store.database import Paths, read_engine
from store.settings import Settings, write_in_force

SUPPORT = ROOT / "tests" / "support"
GPU = "GPU-af7b61d8"


class Watching:
    """A running monitor, and what it wrote."""

    def __init__(self, paths: Paths, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.paths = paths
        self.process = process
        self.log = log

    def reading(self, device: str) -> dict[str, Any]:
        """The latest document with its time under `at_us`; {} before the first."""
        with read_engine(self.paths).connect() as connection:
            row = connection.exec_driver_sql("SELECT at_us, doc FROM readings WHERE device=?", (device,)).first()
        return {} if row is None else {"at_us": row[0], **msgspec.json.decode(row[1])}

    def sees(self, device: str, **values: Any) -> dict[str, Any]:
        def same() -> bool:
            seen = self.reading(device)
            return bool(seen) and all(seen.get(name) == value for name, value in values.items())

        until(same, f"{device} to show {values} ({self.log})")
        return self.reading(device)

    def passes(self, device: str) -> None:
        """Until two more readings of a device are written."""
        for _ in range(2):
            before = self.reading(device)["at_us"]
            until(lambda before=before: self.reading(device)["at_us"] > before, f"a newer reading of {device}")


@contextmanager
def monitor(paths: Paths, command: list[str], *arguments: str) -> Iterator[Watching]:
    log = paths.root / "monitor.log"
    search = os.pathsep.join(map(str, (ROOT, SUPPORT)))
    with log.open("ab") as into:
        process = subprocess.Popen(
            [sys.executable, *command, "--data", str(paths.root), "--parent", str(os.getpid()), *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": search},
            stdout=into,
            stderr=into,
        )
    try:
        yield Watching(paths, process, log)
    finally:
        process.kill()
        process.wait()


@contextmanager
def watching(paths: Paths, cards: Cards) -> Iterator[Watching]:
    with monitor(paths, [str(SUPPORT / "fake_nvml_monitor.py"), str(cards.file)]) as running:
        yield running


def test_real_cards_and_the_host_are_written_and_it_stops_when_asked(paths: Paths, tmp_path: Path) -> None:
    cards = Cards(tmp_path / "cards.json", FakeCard(GPU, total=8 * GIB, used=GIB))
    before = time.time_ns() // 1000
    with watching(paths, cards) as running:
        seen = running.sees(GPU, state="ok", total=8 * GIB, used=GIB, free=7 * GIB)
        assert before < seen["at_us"] <= time.time_ns() // 1000
        assert running.sees("nvml", state="ok")["driver"] == "999.10"
        assert running.sees("host")["total"] > 0
        cards.box.cards[0].used = 3 * GIB
        cards.write()
        running.sees(GPU, used=3 * GIB)
        running.process.terminate()
        assert running.process.wait(60) == 0


def test_a_hanging_card_grows_old_and_nothing_else_does(paths: Paths, tmp_path: Path) -> None:
    cards = Cards(
        tmp_path / "cards.json", FakeCard(GPU, used=GIB), FakeCard("GPU-second", pci="00000000:02:00.0", used=GIB)
    )
    with watching(paths, cards) as running:
        running.sees(GPU, used=GIB)
        running.sees("GPU-second", used=GIB)
        cards.box.cards[0].hangs = ["*"]
        cards.box.cards[0].used = cards.box.cards[1].used = 2 * GIB
        cards.write()
        running.sees("GPU-second", used=2 * GIB)
        until(lambda: "has not answered" in running.log.read_text(), "the silence to be told")
        frozen = running.reading(GPU)
        assert (frozen["state"], frozen["used"]) == ("ok", GIB)
        running.passes("GPU-second")
        running.passes("host")
        assert running.reading(GPU) == frozen
        assert running.log.read_text().count("has not answered") == 1
        assert running.process.poll() is None
        running.process.terminate()
        assert running.process.wait(60) == 0


def test_a_card_that_never_answered_does_not_stop_the_host(paths: Paths, tmp_path: Path) -> None:
    cards = Cards(tmp_path / "cards.json", FakeCard(GPU, hangs=["*"]))
    with watching(paths, cards) as running:
        running.sees("host")
        running.passes("host")
        assert running.reading(GPU) == {}


def test_an_xid_is_in_the_reading_and_the_card_is_out(paths: Paths, tmp_path: Path) -> None:
    cards = Cards(tmp_path / "cards.json", FakeCard(GPU))
    with watching(paths, cards) as running:
        running.sees(GPU, state="ok")
        cards.box.cards[0].events = [FakeEvent(31), FakeEvent(79)]
        cards.write()
        seen = running.sees(GPU, state="lost")
        assert [(x["code"], x["class"]) for x in seen["xids"]] == [(31, "app"), (79, "lost")]
        assert seen["reason"] == "Xid 79 (the card fell off the bus)"
        running.passes(GPU)
        assert running.reading(GPU)["state"] == "lost"


@pytest.mark.prove
def test_an_unknown_error_for_ever_makes_few_lines(paths: Paths, tmp_path: Path) -> None:
    """The container lost its card, as seen after some days."""
    cards = Cards(tmp_path / "cards.json", FakeCard(GPU))
    with watching(paths, cards) as running:
        running.sees(GPU, state="ok")
        cards.box.cards[0].code = 999
        cards.write()
        seen = running.sees(GPU, state="lost", code=999)
        assert "container" in seen["advice"]
        for _ in range(3):
            running.passes(GPU)
        lines = [line for line in running.log.read_text().splitlines() if GPU in line]
        assert len(lines) == 3  # found, unknown, lost
        cards.box.cards[0].code = 0
        cards.write()
        running.sees(GPU, state="ok")


def test_the_operators_word_on_unified_memory_is_heard(paths: Paths, tmp_path: Path) -> None:
    write_in_force(paths, Settings(unified_memory={"GPU-af7b": True}))
    with watching(paths, Cards(tmp_path / "cards.json", FakeCard(GPU))) as running:
        seen = running.sees(GPU, unified=True)
        assert seen["total"] == running.sees("host")["total"]


def test_a_simulated_accelerator_is_watched_and_real_ones_are_not(paths: Paths, tmp_path: Path) -> None:
    device = SimulatedDevice(paths.sim / "sim-0.json", GIB)
    cards = Cards(tmp_path / "cards.json", FakeCard(GPU))
    command = [str(SUPPORT / "fake_nvml_monitor.py"), str(cards.file)]
    with monitor(paths, command, "--simulated", "sim-0") as running:
        running.sees("sim-0", state="ok", used=0)
        device.set_foreign(GIB // 2)
        running.sees("sim-0", used=GIB // 2, foreign=GIB // 2)
        device.require_reset("as ordered")
        running.sees("sim-0", state="reset-required", reason="as ordered")
        device.restore()
        running.sees("sim-0", state="ok")
        running.passes("host")
        assert running.reading(GPU) == running.reading("nvml") == {}


def test_one_look_that_fails_does_not_end_the_watch() -> None:
    rang = threading.Event()
    answers = iter([RuntimeError("torn"), {"x": Reading("ok", total=1)}])
    gate = threading.Event()

    def look() -> dict[str, Reading]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    pauses = iter([None])

    def pause() -> None:
        if next(pauses, "end") == "end":
            gate.wait()

    clock = HandClock(now_us=77)
    watcher = Watcher("x", look, pause, rang, clock)
    watcher.start()
    until(lambda: watcher.latest.get("x") and "total" in watcher.latest["x"].document, "the second look")
    assert watcher.latest["x"].at_us == 77


# ---- in the house ----


def test_a_card_that_must_be_reset_is_out_and_comes_back(tmp_path: Path) -> None:
    with house(tmp_path / "data") as home:
        device = SimulatedDevice(home.paths.sim / "sim-0.json")
        home.runner("gpu")
        device.require_reset("as ordered")
        until(lambda: home.rows("SELECT 1 FROM devices WHERE state='lost'"), "the device to be out")
        view = home.settled(home.submit("meanwhile", max_tokens=4))
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        device.restore()
        until(home.serves, "the GPU lane to come back")
        assert home.verify().ok


def test_a_stopped_monitor_is_left_alone_and_the_service_goes_on(tmp_path: Path) -> None:
    """It may be stuck in a driver; readings grow old, and nobody kills it."""
    with house(tmp_path / "data") as home:
        pid = home.child("runners.monitor")
        assert pid is not None
        ticks = start_ticks(pid)
        until(lambda: home.rows("SELECT 1 FROM readings WHERE device='sim-0'"), "a first reading")
        stop_outside_the_gate(home, pid)
        ((before,),) = home.rows("SELECT at_us FROM readings WHERE device='sim-0'")
        until(lambda: time.time_ns() // 1000 - before > 6_000_000, "the reading to grow old")
        assert home.settled(home.submit("meanwhile", max_tokens=4))["state"] == "completed"
        assert home.rows("SELECT at_us FROM readings WHERE device='sim-0'") == [(before,)]
        assert start_ticks(pid) == ticks
        home.send(pid, signal.SIGCONT)


def stop_outside_the_gate(home: House, pid: int) -> None:
    """Whoever stops with the writer gate held is ended, by another rule."""

    def stopped() -> bool:
        home.send(pid, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the stop")
        if int.from_bytes(home.paths.gate.read_bytes()[:8], "little") != pid:
            return True
        home.send(pid, signal.SIGCONT)
        return False

    until(stopped, "a stop outside the gate")


def test_a_monitor_is_not_started_twice_within_a_minute(paths: Paths) -> None:
    child = Child("monitor", paths, arguments=("--simulated", ""))
    began = time.monotonic()
    child.start()
    try:
        child.kill("test")
        until(lambda: child.reap(0.0, 0.0), "its end")
        assert began + MONITOR_PAUSE_S <= child.not_before <= time.monotonic() + MONITOR_PAUSE_S
        assert MONITOR_PAUSE_S >= 60
    finally:
        if child.process is not None:
            child.process.kill()
