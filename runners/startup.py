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
import time
from pathlib import Path
from typing import Final

from core import events as ev
from core.errors import FailsoftError
from core.pool import BLOCK
from core.words import Lane
from runners.accelerator import Accelerator
from runners.children import HOST_ID, RunnerSpec
from runners.loading import UPSTREAM, build_of, upstream_of, wanted_slots
from runners.needs import ModelNeed, need_of
from runners.process import belongs_to, end_instance
from store import claims, failover, house, laneviews, roster
from store.database import Paths, read_engine, sqlite_version
from store.journal import Look, Tx
from store.laneviews import LaneRow, put_lane
from store.models.catalog import DEFAULT_ID, Catalog, ModelEntry
from store.settings import Settings

log = logging.getLogger("failsoft")

VERSION: Final = "0.1.0"


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


def specs_for(models: list[ModelEntry], device: Accelerator | None, settings: Settings) -> list[RunnerSpec]:
    """One runner per model and lane; an upstream computes the lane that it is for."""
    specs = []
    for entry in models:
        there = device.id if device is not None and entry.id in device.models else None
        lanes: list[tuple[Lane, str | None]] = [("gpu", there), ("cpu", HOST_ID)]
        for lane, ours in lanes:
            upstream = upstream_of(settings, lane, entry.id)
            where = ours if upstream is None else f"{UPSTREAM}{upstream.name}"
            if where is not None:
                command = upstream is not None and bool(upstream.cmd)
                specs.append(RunnerSpec(lane, entry.id, where, build_of(settings, entry, lane), command))
    return specs


def recover(
    tx: Tx, settings: Settings, models: list[ModelEntry], specs: list[RunnerSpec], device: Accelerator | None
) -> None:
    """The one transaction."""
    actor = "supervisor"
    started = tx.append("service", ev.ServiceStarted(VERSION, os.getpid(), sqlite_version()), actor=actor)
    if device is not None and not house.known(tx, device.id):
        tx.append(f"device-{device.id}", ev.DeviceFound(device.name, device.simulated, device.total), actor=actor)
    for name in sorted({spec.device for spec in specs if spec.device.startswith(UPSTREAM)}):
        if not house.known(tx, name):
            tx.append(f"device-{name}", ev.DeviceFound(name.removeprefix(UPSTREAM), False, None), actor=actor)
    house.clear_run(tx)
    entries = {entry.id: entry for entry in models}
    for spec in specs:
        put_lane(tx, _lane(tx, settings, entries[spec.model], spec))
    _requeue(tx, settings, cause=started.seq)
    served = {spec.model for spec in specs if spec.lane == "gpu"}
    # What is not configured now waits on while there is an accelerator: it may be configured again.
    gone = entries.keys() - served if device is not None else None
    _leave_gpu_lane(tx, settings, served, gone, cause=started.seq)


def greet(specs: list[RunnerSpec], device: Accelerator | None, address: str, paths: Paths) -> None:
    """Say in the log what is served, where, and on what."""
    lanes = {spec.device: spec.lane for spec in specs}
    said = []
    for where, lane in sorted(lanes.items(), key=lambda one: one[1], reverse=True):
        if device is not None and where == device.id:
            said.append("a simulated GPU lane" if device.simulated else f"a GPU lane on {device.name} ({device.id})")
        elif where.startswith(UPSTREAM):
            said.append(f"a {lane.upper()} lane on {where}")
        else:
            said.append("a CPU lane")
    names = ", ".join(dict.fromkeys(spec.model for spec in specs)) or "no model"
    log.info("failsoft %s on %s", VERSION, address)
    log.info("serving %s on %s; data in %s", names, " and ".join(said) or "no lane", paths.root)


def _lane(tx: Tx, settings: Settings, entry: ModelEntry, spec: RunnerSpec) -> LaneRow:
    theirs = spec.device.startswith(UPSTREAM)
    need = (
        need_of(tx, entry, settings, spec.engine, spec.lane, spec.device)
        if not theirs
        else ModelNeed(0, 0, 0, "declared", "")
    )
    slots = wanted_slots(settings, entry, spec.lane)
    return LaneRow(
        lane=spec.lane,
        model=spec.model,
        serving=True,
        out_reason=None,
        context=_context(settings, entry, spec.lane, slots),
        device=spec.device,
        engine=spec.engine,
        contract=entry.contract,
        load_bytes=need.load,
        token_bytes=need.token if spec.lane == "gpu" else 0,
        need_basis=need.basis,
        resident=theirs or (spec.lane == "cpu" and settings.cpu_readiness == "warm"),
        pinned=entry.id in settings.pinned,
        layers=need.layers,
        parts=need.parts if spec.lane == "gpu" else (),
        slots=slots,
    )


def _context(settings: Settings, entry: ModelEntry, lane: Lane, slots: int) -> int:
    """Tokens that one request may come to: no more than a cache that is shared by several holds in whole blocks."""
    shared = settings.pool_tokens // BLOCK * BLOCK if slots > 1 else 0
    return min(settings.context_on(lane), entry.context_length, shared or settings.context)


def _requeue(tx: Tx, settings: Settings, cause: int | None) -> None:
    """Whatever somebody ran goes back to its lane; leases of what has ended are leftovers."""
    for request_id, runner in claims.running(tx):
        state = tx.state(request_id)
        assert state is not None
        assert state.lane is not None
        fault = ev.FaultSeen("host", "service-stopped", state.lane, runner, state.device or "")
        failover.after_fault(tx, request_id, fault, settings.policy, actor="supervisor", cause=cause)
    claims.release_all(tx)


def _leave_gpu_lane(tx: Tx, settings: Settings, served: set[str], gone: set[str] | None, cause: int) -> None:
    """What waits for a GPU lane that is not there any more moves by rule; `gone` None: any that is not served."""
    for request_id, model in laneviews.waiting_by_model(tx, "gpu"):
        if model in served or (gone is not None and model not in gone):
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
