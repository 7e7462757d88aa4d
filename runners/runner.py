"""A runner: one process, one loaded model, one lane. Claims requests of its lane and works them off.

1. The main thread claims and hands out; each slot of the engine is a thread that works one request at a time.
2. Whatever goes wrong is written down in the transaction that also says what follows; then a suspect process ends.
3. It dies with the supervisor, by the kernel's hand.

Not here: whether it is alive (the supervisor watches its pulse), where a request goes after a fault (the deciders).
"""

import argparse
import logging
import os
import queue
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from core import events as ev
from core.decision import Part
from core.errors import AllocationFailed, DeviceFault, EngineFault, Fenced, NoSpace, StopWork
from core.machine import CLAIMABLE_SQL
from core.words import FaultClass
from runners import stops
from runners.corebook import CoreBook
from runners.devices.base import Device
from runners.devices.simulated import SimulatedDevice
from runners.engines.base import Loaded, LoadPlan
from runners.engines.registry import engine_named
from runners.holding import Holding
from runners.host import CANCEL, Doorbell, EngineHost
from runners.needs import ModelNeed, need_of
from runners.process import die_with_parent, usable_cores
from runners.pulse import Phase, Pulse
from runners.work import Work, patient
from store import claims, failover, laneviews, reservations, roster
from store.claims import Claim, Owner
from store.database import Paths, read_engine
from store.journal import Look, Tx
from store.learned import learn, record_load
from store.models.catalog import Catalog, ModelEntry, load_prompt_side
from store.settings import in_force
from store.writer import Writer

log = logging.getLogger("failsoft.runner")

_IDLE_S: Final = 0.004
_FULL_S: Final = 0.05
"""With every slot taken there is nothing to look for; a slot that is free again says so."""
_RECHECK_S: Final = 0.25
_WAITING: Final = (
    f"SELECT 1 FROM requests WHERE {CLAIMABLE_SQL} AND lane=? AND model=? "  # noqa: S608 -- constants
    "AND (not_before_us IS NULL OR not_before_us<=?) LIMIT 1"
)


class Runner:
    """What one runner process holds."""

    def __init__(self, paths: Paths, owner: Owner, entry: ModelEntry, device: Device | None) -> None:
        self.paths = paths
        self.owner = owner
        self.entry = entry
        self.device = device
        self.settings = in_force(paths)
        self.policy = self.settings.policy
        self.writer = Writer(paths)
        self.clock = self.writer.clock
        self.pulse = Pulse(paths.run / f"{owner.runner}.pulse")
        self.cores = CoreBook(paths.run / "cores", total=usable_cores(), reserve=self.policy.reserve_cores)
        self.draining = threading.Event()
        self.lease_us = int(self.policy.lease_s * 1e6)
        self.side = load_prompt_side(entry)
        self._exit: int | None = None
        self._jobs: queue.SimpleQueue[Claim | None] = queue.SimpleQueue()
        self._busy = 0
        self._alone = False
        """What is worked on may end this worker: nothing is taken up beside it."""
        self._busy_lock = threading.Lock()
        self._freed = threading.Event()

    # ---- loading ------------------------------------------------------------------------------------------

    def load(self) -> Loaded:
        """Take the memory, load the model, say so."""
        began = time.monotonic_ns()
        self._beat("loading")
        context = min(self.settings.context, self.entry.context_length)
        with read_engine(self.paths).connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            look = Look(driver, self.clock.now_us())
            need = need_of(look, self.entry, self.settings, self.owner.engine)
            self.token_bytes = need.token if self.owner.lane == "gpu" else 0
            part = self._part(look, need)
        gpu_layers, before = 0, None
        if self.device is not None:
            before = self.device.observe().foreign
            self.device.allocate(need.formula if part is None else part.load)
            all_layers = self.entry.layers + 3 if part is None else part.layers
            gpu_layers = 0 if self.device.simulated else all_layers
        self.engine = engine_named(self.entry.engine)
        plan = LoadPlan(context=context, gpu_layers=gpu_layers, threads=1)
        loaded = self.engine.load(Path(self.entry.prepared), plan)
        took_us = (time.monotonic_ns() - began) // 1000
        seen = self._seen()

        def unit(tx: Tx) -> None:
            name, model, device = self.owner.runner, self.owner.model, self.owner.device
            held = seen or need.load
            record_load(tx, runner=name, model=model, device=device, took_us=took_us, held=held, before=before)
            self._learn(tx, need, seen if part is None else None)
            roster.ready(tx, self.owner.runner)
            laneviews.set_serving(tx, self.owner.lane, self.owner.model, None, actor=self.owner.runner)

        self.writer.run(unit)
        return loaded

    def _part(self, look: Look, need: ModelNeed) -> Part | None:
        """The partial placement that was promised to this model, or None: all of it."""
        if self.owner.lane != "gpu":
            return None
        row = look.execute("SELECT gpu_layers FROM lanes WHERE lane='gpu' AND model=?", (self.owner.model,)).fetchone()
        return next((part for part in need.parts if row is not None and part.layers == row[0]), None)

    def _seen(self) -> int | None:
        """Bytes of the device this process holds now, as the device tells; None: it does not."""
        if self.device is None:
            return None
        return (self.device.observe().processes or {}).get(os.getpid())

    def _learn(self, tx: Tx, need: ModelNeed, seen: int | None) -> None:
        if seen is None or need.basis == "declared":
            return
        owner = self.owner
        after = learn(
            tx,
            runner=owner.runner,
            engine=owner.engine,
            model=owner.model,
            settings=need.settings,
            formula=need.formula,
            seen=seen,
        )
        laneviews.set_learned(tx, owner.model, after.value)
        reservations.raise_to(tx, reservations.process_of(owner.model), after.value)

    # ---- claiming -----------------------------------------------------------------------------------------

    def serve(self, loaded: Loaded) -> int:
        """Claim and work until told to stop; answers the exit code."""
        slots = self.engine.capabilities.slots
        threads = [threading.Thread(target=self._slot, args=(loaded, n), name=f"slot-{n}") for n in range(1, slots + 1)]
        for thread in threads:
            thread.start()
        with read_engine(self.paths).connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            bell = Doorbell(driver)
            next_look = 0.0
            while not self.draining.is_set() and self._exit is None:
                self._beat("idle")
                if self._room(slots) and (bell.rang() or time.monotonic() >= next_look):
                    next_look = time.monotonic() + _RECHECK_S
                    while (room := self._room(slots)) and self._claim(driver, room):
                        pass
                elif self._room(slots):
                    time.sleep(_IDLE_S)
                else:
                    self._freed.wait(_FULL_S)
                    self._freed.clear()
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join()
        self._beat("stopping")
        self.writer.close()
        return self._exit or 0

    def _room(self, slots: int) -> int:
        """How many more may be taken up now."""
        return 0 if self._alone else slots - self._busy

    def _claim(self, driver: sqlite3.Connection, free: int) -> bool:
        """Take up to `free` requests in one transaction; False when there was none."""
        key = (self.owner.lane, self.owner.model, self.clock.now_us())
        if driver.execute(_WAITING, key).fetchone() is None:
            return False

        busy = self._busy

        def unit(tx: Tx) -> list[Claim]:
            several: list[Claim] = []
            while len(several) < free and not _suspect(several):
                company = busy + len(several)
                one = claims.claim(tx, self.owner, self.lease_us, self.policy, company)
                if one is None:
                    break
                several.append(one)
            return several

        try:
            taken = patient(self.writer.submit(unit), lambda: self._beat("idle"))
        except NoSpace as error:
            log.warning("cannot claim: %s", error)
            return False
        with self._busy_lock:
            self._busy += len(taken)
            self._alone = _suspect(taken)
        for one in taken:
            self._jobs.put(one)
        return bool(taken)

    # ---- working ------------------------------------------------------------------------------------------

    def _beat(self, phase: Phase, place: int = 0) -> None:
        self.pulse.beat(self.clock.mono_us(), phase, place)

    def _slot(self, loaded: Loaded, place: int) -> None:
        with read_engine(self.paths).connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            bell = Doorbell(driver)
            while (taken := self._jobs.get()) is not None:
                try:
                    self._work(taken, loaded, bell, place)
                except NoSpace as error:
                    # What follows could not be written; the lease runs out, and the request goes on by rule.
                    log.warning("cannot write what became of %s: %s", taken.fence.request_id, error)
                finally:
                    self._beat("idle", place)
                    with self._busy_lock:
                        self._busy -= 1
                        self._alone = self._alone and self._busy > 0
                        self._freed.set()
                        idle = self._busy == 0
                    if idle:
                        self.cores.release()

    def _work(self, taken: Claim, loaded: Loaded, bell: Doorbell, place: int) -> None:
        host = EngineHost(
            fence=taken.fence,
            chunk_cap=taken.state.chunk_cap,
            lease_us=self.lease_us,
            writer=self.writer,
            bell=bell,
            cores=self.cores if self.entry.engine != "null" else None,
            pulse=self.pulse,
            place=place,
            device=self.device,
            draining=self.draining,
        )
        self._beat("busy", place)
        size = self.token_bytes * (taken.state.prompt_tokens + taken.state.max_units)
        holding = Holding(self.device, size, lambda: host.pulse(0))
        work = Work(
            taken,
            writer=self.writer,
            lease_us=self.lease_us,
            piece=self.side.piece,
            pulse=lambda: host.pulse(0),
            ending=holding.give_back,
        )
        try:
            holding.take()
            work.run(loaded, host)
        except AllocationFailed as refused:
            self._no_memory(taken, refused)
        except StopWork as stop:
            holding.give_back()
            self._stopped(taken, work, stop)
        except Fenced:
            self._refused(taken, work)
        except DeviceFault as fault:
            self._device_lost(str(fault))
        except Exception as error:  # noqa: BLE001 -- an engine may raise anything, and all of it is its fault
            self._engine_failed(taken, error)
        finally:
            holding.give_back()

    def _stopped(self, taken: Claim, work: Work, stop: StopWork) -> None:
        """Asked to stop: what was computed is made durable first, then the lease is given back."""
        request_id = taken.fence.request_id

        def unit(tx: Tx) -> None:
            claims.check(tx, taken.fence)
            if stop.code == CANCEL:
                claims.cancelled(tx, taken.fence)
                return
            state = tx.state(request_id)
            assert state is not None
            fault = ev.FaultSeen("host", "service-stopped", self.owner.lane, self.owner.runner, self.owner.device)
            decision = failover.decide(tx, state, fault, self.policy)
            failover.follow(tx, state, decision, "service-stopped", actor=self.owner.runner, cause=None)

        try:
            work.settle()
            self.writer.run(unit)
        except Fenced:
            self._refused(taken, work)

    def _refused(self, taken: Claim, work: Work) -> None:
        log.warning("attempt %s of %s is not ours any more", taken.fence.attempt, taken.fence.request_id)
        self.writer.run(lambda tx: claims.late_write(tx, taken.fence, work.writing, work.units))

    def _device_lost(self, reason: str) -> None:
        log.error("device lost: %s", reason)
        self._exit = stops.DEVICE_LOST
        self.writer.run(
            lambda tx: failover.device_lost(tx, self.owner.device, self.policy, reason=reason, actor=self.owner.runner)
        )

    def _no_memory(self, taken: Claim, refused: AllocationFailed) -> None:
        """The device refused the request's bytes though the ledger had them: a fault of size, the worker is sound."""
        numbers = {key: value for key, value in refused.extra.items() if isinstance(value, int)}
        self._fault(taken, "size", "allocation-failed", numbers, blames_input=False)

    def _engine_failed(self, taken: Claim, error: Exception) -> None:
        log.error("engine failed on %s: %r", taken.fence.request_id, error)
        self._exit = stops.ENGINE_FAILED
        self._fault(taken, "worker", "engine-failed", {"error": type(error).__name__}, blames_input=True)

    def _fault(
        self,
        taken: Claim,
        fault: FaultClass,
        kind: str,
        evidence: Mapping[str, str | int | float],
        *,
        blames_input: bool,
    ) -> None:
        """Tell a fault of a request we hold, and what follows from it, under the fence."""
        owner = self.owner
        seen = ev.FaultSeen(fault, kind, owner.lane, owner.runner, owner.device, blames_input, dict(evidence))

        def unit(tx: Tx) -> None:
            claims.check(tx, taken.fence)
            failover.after_fault(tx, taken.fence.request_id, seen, self.policy, actor=owner.runner)

        try:
            self.writer.run(unit)
        except Fenced:
            log.warning("%s was taken from us meanwhile", taken.fence.request_id)


def _suspect(taken: list[Claim]) -> bool:
    return any(claim.state.deaths for claim in taken)


def main() -> None:
    """`python -m runners.runner`, started by the supervisor only."""
    parser = argparse.ArgumentParser()
    for name in ("data", "id", "lane", "model", "device"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--parent", type=int, required=True)
    args = parser.parse_args()
    die_with_parent(args.parent)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {args.id}: %(message)s")
    paths = Paths(Path(args.data))
    entry = Catalog(paths.models).get(args.model)
    device = SimulatedDevice(paths.sim / f"{args.device}.json") if args.device.startswith("sim-") else None
    owner = Owner(args.id, args.lane, args.model, args.device, engine_build(entry.engine), entry.contract)
    runner = Runner(paths, owner, entry, device)
    signal.signal(signal.SIGTERM, lambda *_: runner.draining.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        loaded = runner.load()
    except AllocationFailed as refused:
        log.error("%s", refused)  # noqa: TRY400 -- the message says it all
        sys.exit(stops.NO_MEMORY)
    except DeviceFault as fault:
        log.error("%s", fault)  # noqa: TRY400 -- the same
        sys.exit(stops.DEVICE_LOST)
    except EngineFault as fault:
        log.error("cannot load %s: %s", args.model, fault)  # noqa: TRY400 -- the same
        sys.exit(stops.LOAD_FAILED)
    code = runner.serve(loaded)
    # Native threads and interpreter teardown have nothing left to do and could only hang.
    logging.shutdown()
    os._exit(code)


def engine_build(name: str) -> str:
    """Engine name and version, as contracts and pages show it."""
    return f"{name}/{engine_named(name).version}"


if __name__ == "__main__":
    main()
