"""Before the first child starts: what a former run left behind is put in order, in one transaction.

1. Processes of a former run that live on (their supervisor was killed, the kernel was late) are ended first.
2. Whatever they held goes back to its lane, from its checkpoint. No engine is to blame.
3. Lanes and devices are what this machine and these settings have now.
"""

import contextlib
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from core import events as ev
from core.errors import FailsoftError
from core.words import Lane
from runners.children import RunnerSpec
from runners.devices.simulated import SimulatedDevice
from runners.loading import UPSTREAM, build_of, upstream_of, wanted_slots
from runners.needs import ModelNeed, need_of
from runners.process import belongs_to, end_instance
from store import failover, roster
from store.database import Paths, read_engine, sqlite_version
from store.house import clear_run
from store.journal import Look, Tx
from store.laneviews import LaneRow, put_lane
from store.models.catalog import DEFAULT_ID, Catalog, ModelEntry
from store.settings import Settings

log = logging.getLogger("failsoft")

VERSION: Final = "0.1.0"
SIMULATED_ID: Final = "sim-0"
HOST_ID: Final = "cpu"
_DRIVER_NODES: Final = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", "/dev/nvmap")
"""One of them is there where an NVIDIA driver is: Linux, Linux under Windows, Jetson."""
_LOOK_S: Final = 30.0


def end_orphans(paths: Paths) -> None:
    """End what a former supervisor left alive.

    Runners are told apart by pid, start time and data directory; what they started, by the mark in its environment.
    """
    with read_engine(paths).connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        former = roster.of_this_boot(Look(driver, 0))
    for name, pid, ticks in former:
        deadline = time.monotonic() + 10
        while belongs_to(pid, ticks, paths.root) and time.monotonic() < deadline:
            log.warning("ending %s (pid %d), left over from a former run", name, pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
    for pid in end_instance(paths.root):
        log.warning("ended process %d, left over from a former run", pid)


def usable_models(paths: Paths, settings: Settings) -> list[ModelEntry]:
    """The models that can be served now; what is wrong with the others is said and does not stop these."""
    catalog = Catalog(paths.models)
    if DEFAULT_ID in settings.models and DEFAULT_ID not in {entry.id for entry in catalog.entries()}:
        log.info("preparing %s, once; this takes some seconds", DEFAULT_ID)
        try:
            catalog.add_default()
        except FailsoftError as error:
            log.error("%s cannot be prepared: %s", DEFAULT_ID, error)  # noqa: TRY400 -- the message says it all
    usable = []
    for name in settings.models:
        try:
            entry = catalog.get(name)
        except FailsoftError as error:
            log.error("%s is not served: %s", name, error)  # noqa: TRY400 -- the message says it all
            continue
        if entry.problem:
            log.error("%s is not served: %s", name, entry.problem)
        else:
            usable.append(entry)
    return usable


def find_device(paths: Paths, settings: Settings) -> SimulatedDevice | None:
    """The accelerator of the GPU lane, or None: then this is an honest CPU-only service."""
    if settings.simulate_gpu is None:
        threading.Thread(target=tell_of_cards, name="cards", daemon=True).start()
        return None
    return SimulatedDevice(paths.sim / f"{SIMULATED_ID}.json", settings.simulate_gpu)


def tell_of_cards(command: tuple[str, ...] = (sys.executable, "-P", "-m", "runners.devices.nvml")) -> None:
    """Say in the log which real cards there are and that no lane computes on them; nothing where there are none.

    Another process asks, since the driver may hang.
    """
    if not any(Path(node).exists() for node in _DRIVER_NODES):
        return
    try:
        look = subprocess.run(
            command, capture_output=True, timeout=_LOOK_S, check=False, cwd=Path(__file__).parent.parent
        )
        found = msgspec.json.decode(look.stdout)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        log.warning("there is an NVIDIA driver, and it cannot be asked for cards: %s", error)
        return
    if "problem" in found:
        log.warning("there is an NVIDIA driver, and no card can be used: %s. %s", found["problem"], found["advice"])
        return
    for card in found["devices"]:
        log.warning(
            "found %s (%s): it is watched, and nothing is computed on it; a GPU lane on real cards needs the CUDA "
            "build of an engine, and this version has no such lane. --simulate-gpu 1GiB shows a simulated one",
            card.get("name", "a card"),
            card["id"],
        )


def specs_for(models: list[ModelEntry], device: SimulatedDevice | None, settings: Settings) -> list[RunnerSpec]:
    """One runner per model and lane; an upstream computes the lane that it is for."""
    lanes: list[tuple[Lane, str | None]] = [("gpu", device.id if device is not None else None), ("cpu", HOST_ID)]
    specs = []
    for entry in models:
        for lane, ours in lanes:
            upstream = upstream_of(settings, lane, entry.id)
            where = ours if upstream is None else f"{UPSTREAM}{upstream.name}"
            if where is not None:
                specs.append(RunnerSpec(lane, entry.id, where, build_of(settings, entry, lane)))
    return specs


def recover(tx: Tx, settings: Settings, models: list[ModelEntry], specs: list[RunnerSpec], total: int | None) -> None:
    """The one transaction. `total` is the simulated card's size, or None."""
    actor = "supervisor"
    started = tx.append("service", ev.ServiceStarted(VERSION, os.getpid(), sqlite_version()), actor=actor)
    if total is not None and tx.execute("SELECT 1 FROM devices WHERE id=?", (SIMULATED_ID,)).fetchone() is None:
        tx.append(f"device-{SIMULATED_ID}", ev.DeviceFound("Simulated accelerator", True, total), actor=actor)
    clear_run(tx)
    entries = {entry.id: entry for entry in models}
    for spec in specs:
        put_lane(tx, _lane(tx, settings, entries[spec.model], spec))
    _requeue(tx, settings, cause=started.seq)
    if total is None:
        served = {spec.model for spec in specs if spec.lane == "gpu"}
        _leave_gpu_lane(tx, settings, served, cause=started.seq)


def _lane(tx: Tx, settings: Settings, entry: ModelEntry, spec: RunnerSpec) -> LaneRow:
    theirs = spec.device.startswith(UPSTREAM)
    need = need_of(tx, entry, settings, spec.engine, spec.lane) if not theirs else ModelNeed(0, 0, 0, "declared", "")
    slots = wanted_slots(settings, entry, spec.lane)
    return LaneRow(
        lane=spec.lane,
        model=spec.model,
        serving=True,
        out_reason=None,
        context=min(settings.context, entry.context_length, (slots > 1 and settings.pool_tokens) or settings.context),
        device=spec.device,
        engine=spec.engine,
        contract=entry.contract,
        load_bytes=need.load,
        token_bytes=need.token if spec.lane == "gpu" else 0,
        need_basis=need.basis,
        resident=spec.lane == "cpu" or theirs,
        pinned=entry.id in settings.pinned,
        layers=need.layers,
        parts=need.parts if spec.lane == "gpu" else (),
        slots=slots,
    )


def _requeue(tx: Tx, settings: Settings, cause: int | None) -> None:
    """Whatever somebody ran goes back to its lane; leases of what has ended are leftovers."""
    running = tx.execute(
        "SELECT r.id, coalesce(l.runner, '') FROM requests r "
        "LEFT JOIN leases l ON l.request_id = r.id WHERE r.running = 1"
    ).fetchall()
    for request_id, runner in running:
        state = tx.state(request_id)
        assert state is not None
        assert state.lane is not None
        fault = ev.FaultSeen("host", "service-stopped", state.lane, runner, state.device or "")
        failover.after_fault(tx, request_id, fault, settings.policy, actor="supervisor", cause=cause)
    tx.execute("DELETE FROM leases")


def _leave_gpu_lane(tx: Tx, settings: Settings, served: set[str], cause: int) -> None:
    """What waits for a GPU lane that is not there any more moves by rule."""
    waiting = tx.execute(
        "SELECT id, model FROM requests WHERE lane='gpu' AND state IN ('admitted','running-gpu','checkpointed')"
    ).fetchall()
    for request_id, model in waiting:
        if model in served:
            continue
        fault = ev.FaultSeen("device", "no-device", "gpu", "", "")
        failover.after_fault(tx, request_id, fault, settings.policy, actor="supervisor", cause=cause)


def clear_run_files(paths: Paths) -> None:
    """Pulses and the core ledger of a former run."""
    for file in paths.run.iterdir():
        if file.suffix == ".pulse" or file.name == "cores":
            Path(file).unlink(missing_ok=True)


def hand_back(tx: Tx, settings: Settings) -> None:
    """At the end of a run: whatever is still held goes back to its lane, and no runner is left."""
    _requeue(tx, settings, cause=None)
    roster.disband(tx)
