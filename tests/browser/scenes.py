"""A service in the middle of its day, played by hand: what the pictures show and some tests look at."""

import math
import os
from collections.abc import Iterator
from typing import Any

import msgspec

from core import events as ev
from core.contract import PathFacts
from store import breakers, house, learned, proofs
from store.clock import boot_id
from store.models.catalog import NULL_ENTRY, Catalog, packaged_smollm2
from store.settings import Settings

TEXT = """\
The lane that answers is not always the lane that was asked. When a card falls off the bus, the words that were shown
stay as they are, and the next ones come from the processor. Slower, and the same words.
"""
WORDS = TEXT.split()


def settings() -> Settings:
    """One model, the built-in one."""
    return Settings(models=("null",))


def reading(box: Any, device: str, **numbers: Any) -> None:
    """What the monitor would have written."""
    doc = msgspec.json.encode(numbers).decode()
    box.writer.run(lambda tx: house.put_reading(tx, device, tx.now_us, doc))


def past(box: Any) -> None:
    """What the monitor would have written in the minutes before: use that grew, with a minute in which nobody read."""

    def unit(tx: Any) -> None:
        for step in range(170, 0, -1):
            at_us = tx.now_us - step * 5_000_000
            if 60 < step < 72:
                continue
            used = int((300 + 380 * (170 - step) / 170 + 40 * math.sin(step / 5)) * (1 << 20))
            card = msgspec.json.encode({"state": "ok", "total": 1 << 30, "used": used}).decode()
            host = msgspec.json.encode({"total": 16 << 30, "available": (12 << 30) - 4 * used}).decode()
            house.put_reading(tx, "sim-0", at_us, card)
            house.put_reading(tx, "host", at_us, host)

    box.writer.run(unit)


def runner(box: Any, name: str, lane: str, state: str, held: int) -> None:
    """A runner process, as the supervisor would have entered it."""
    device = "sim-0" if lane == "gpu" else "cpu"

    def unit(tx: Any) -> None:
        tx.append(f"runner-{name}", ev.RunnerStarted(lane, device, os.getpid(), "null", "null"), actor="supervisor")  # type: ignore[arg-type]
        tx.append(f"runner-{name}", ev.RunnerLoaded(420_000, held), actor=name)
        tx.execute(
            "INSERT INTO runners (id, lane, model, device, engine, pid, ticks, boot_id, state, rss_bytes, beat_us, "
            "started_us) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            (name, lane, "null", device, "null", os.getpid(), 1, boot_id(), state, held * 2, tx.now_us, tx.now_us),
        )

    box.writer.run(unit)


def speak(hand: Any, words: list[str], *, chunk: int = 4) -> None:
    """Make these words durable, some at a time."""
    for at in range(0, len(words), chunk):
        hand.say(" ".join(words[at : at + chunk]) + " ", took_us=40_000)


def play(box: Any) -> Iterator[tuple[str, str]]:
    """Play the day, and stop wherever a page is worth a look: its name and address."""
    yield "empty", "/"
    past(box)
    reading(box, "sim-0", state="ok", total=1 << 30, used=700 << 20, ours=450 << 20, foreign=250 << 20, simulated=True)
    reading(box, "host", total=16 << 30, available=9 << 30, limited_by="memory")
    runner(box, "gpu-hand", "gpu", "busy", 400 << 20)
    runner(box, "cpu-hand", "cpu", "idle", 180 << 20)
    plain = box.completed("All of it ", "came from the GPU lane.")
    stopped = box.failed("Some words were shown, ")
    gpu, cpu = box.hand("gpu"), box.hand("cpu")
    moved = box.submit(max_tokens=400)["id"]
    assert gpu.take() == moved
    speak(gpu, WORDS[:18])
    box.submit(max_tokens=32)
    yield "overview", "/"
    yield "running", f"/requests/{moved}"
    lose(box)
    yield "degraded", "/"
    assert cpu.take() == moved
    speak(cpu, WORDS[18:])
    cpu.finish("The end.")
    cpu.take()
    speak(cpu, WORDS[:4])
    yield "moved", f"/requests/{moved}"
    yield "travel", f"/requests/{moved}?at=10"
    yield "stopped", f"/requests/{stopped}"
    yield "plain", f"/requests/{plain}"
    yield "missing", "/requests/req_nowhere"
    yield from play_record(box)


def play_record(box: Any) -> Iterator[tuple[str, str]]:
    """The pages over the record of that day, with two strangers' names in it and a model that was measured."""
    strange = "\u202e<b>" + "w" * 300
    path = PathFacts("null", NULL_ENTRY.contract, "nvidia-x")
    proof = ev.EquivalenceProved(path.name, "null@host", path.contract, "faithful", 12, 7, 500, 490, 0.002)

    def unit(tx: Any) -> None:
        tx.append(f"device-{strange}", ev.DeviceFound(strange, simulated=True, total_bytes=None), actor=strange)
        proofs.keep(tx, path, PathFacts("null", NULL_ENTRY.contract, "host"), proof, actor="equivalence")
        learned.learn(
            tx, runner="gpu-hand", engine="null", model="null", settings="ctx=2048", formula=400 << 20, seen=417 << 20
        )

    box.writer.run(unit)
    if (file := packaged_smollm2()) is not None:
        Catalog(box.paths.models).add(file, "smollm2-135m", trial=False)
    yield "audit", "/events"
    yield "audit-narrowed", "/events?type=Rerouted&since=1d"
    yield "what-if", "/what-if?cpu_queue=1&headroom_mib=900&since=1d"
    yield "models", "/models"
    yield "model", "/models/null"
    yield "model-file", "/models/smollm2-135m"
    yield "no-imports", "/imports"
    last = box.client.get("/api/requests?state=completed").json()["items"][0]["id"]
    brought = box.client.post("/api/imports", json=box.client.get(f"/api/requests/{last}/export").json()).json()["id"]
    yield "imports", "/imports"
    yield "imported", f"/imports/{brought}?at=9"
    yield "health", "/status"
    yield "overview-narrowed", "/?state=completed"


def lose(box: Any) -> None:
    """The simulated card falls off the bus."""
    policy = box.settings.policy
    box.writer.run(lambda tx: breakers.device_lost(tx, "sim-0", policy, reason="fell off the bus", actor="monitor"))
    reading(box, "sim-0", state="lost", reason="fell off the bus", simulated=True)
