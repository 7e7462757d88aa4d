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
from collections.abc import Callable
from pathlib import Path
from typing import Final

from core.errors import (
    AllocationFailed,
    CannotContinue,
    DeviceFault,
    EngineFault,
    Fenced,
    NoSpace,
    RestoreFailed,
    StopWork,
    Unworkable,
)
from core.machine import CLAIMABLE_SQL
from core.state import RequestState
from runners import stops
from runners.boundary import Boundary, Pace
from runners.canary import Canary
from runners.corebook import CoreBook
from runners.devices.base import Device
from runners.devices.real import RealDevice, is_real, written
from runners.devices.simulated import SimulatedDevice
from runners.doubts import Doubts
from runners.endings import Endings
from runners.fitness import Fitness
from runners.holding import Holding
from runners.host import Doorbell, EngineHost
from runners.keeper import Keeper
from runners.loading import UPSTREAM, Loading, Place, build_of
from runners.onboard import NotOnDevice
from runners.pool import Pool, enter
from runners.process import be_ended_first, die_with_parent, usable_cores
from runners.pulse import Phase, Pulse
from runners.speed import Speed
from runners.work import Work, patient
from store import claims, rates
from store.claims import Claim, Owner
from store.database import Paths, read_engine
from store.journal import Look, Tx
from store.models.catalog import Catalog, ModelEntry, load_prompt_side
from store.settings import in_force
from store.writer import Writer

log = logging.getLogger("failsoft.runner")

_IDLE_S: Final = 0.004
_FULL_S: Final = 0.05
"""With every slot taken there is nothing to look for; a slot that is free again says so."""
_RECHECK_S: Final = 0.25
_PACE_EVERY_S: Final = 5.0
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
        self.keeper = Keeper(paths.snapshots, self.writer, owner.runner, self.policy.snapshot_bytes)
        self.endings = Endings(owner, self.writer, self.policy)
        self.speed = Speed(owner.lane, owner.engine, self.policy)
        self.doubts = Doubts()
        self._pace_at = 0.0
        self._exit: int | None = None
        self._jobs: queue.SimpleQueue[Claim | None] = queue.SimpleQueue()
        self._busy = 0
        self._alone = False
        """What is worked on may end this worker: nothing is taken up beside it."""
        self._busy_lock = threading.Lock()
        self._freed = threading.Event()

    def loading(self) -> None:
        """Say that the model is on its way."""
        self._beat("loading")

    # ---- claiming -----------------------------------------------------------------------------------------

    def serve(self, place: Place) -> int:
        """Claim and work until told to stop; answers the exit code."""
        slots = place.slots
        threads = [threading.Thread(target=self._slot, args=(place, n), name=f"slot-{n}") for n in range(1, slots + 1)]
        for thread in threads:
            thread.start()
        with read_engine(self.paths).connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            bell = Doorbell(driver)
            fitness = self._fitness(place)
            next_look = 0.0
            while not self.draining.is_set() and self._exit is None:
                held = fitness.canary.overdue()
                look = held or time.monotonic() >= next_look
                if self._busy == 0 and look and not fitness.seen(Look(driver, self.clock.now_us())):
                    self._exit = fitness.exit
                    break
                self._beat("idle")
                room = 0 if held and self._busy else self._room(slots)
                if room and (bell.rang() or time.monotonic() >= next_look):
                    next_look = time.monotonic() + _RECHECK_S
                    while (room := self._room(slots)) and self._claim(driver, room, place.pool):
                        fitness.canary.worked()
                else:
                    self._pause(free=room > 0)
        for _ in threads:
            self._jobs.put(None)
        # The slots end what they have begun, however long that takes; each is watched by its own signs of life.
        for thread in threads:
            while thread.is_alive():
                self._beat("stopping")
                thread.join(_RECHECK_S)
        self._beat("stopping")
        self.keeper.close()
        self.writer.close()
        return self._exit or 0

    def _pause(self, *, free: bool) -> None:
        """Until it is worth looking again."""
        if free:
            time.sleep(_IDLE_S)
        else:
            self._freed.wait(_FULL_S)
            self._freed.clear()

    def _fitness(self, place: Place) -> Fitness:
        self.doubts.resumes = place.resumes
        canary = Canary(
            self.owner,
            self.writer,
            self.policy,
            self.side,
            device=self.device,
            cores=self.cores if place.cores else None,
            fixed_threads=place.threads,
            beat=self._beat,
            doubts=self.doubts,
        )
        return Fitness(place.loaded, canary, self.endings, self.draining)

    def _room(self, slots: int) -> int:
        """How many more may be taken up now."""
        return 0 if self._alone else slots - self._busy

    def _claim(self, driver: sqlite3.Connection, free: int, pool: Pool | None) -> bool:
        """Take up to `free` requests in one transaction; False when there was none."""
        key = (self.owner.lane, self.owner.model, self.clock.now_us())
        if driver.execute(_WAITING, key).fetchone() is None:
            return False

        entered: list[str] = []

        def room(state: RequestState) -> bool:
            taken = pool is None or enter(pool, state)
            if pool is not None and taken:
                entered.append(state.id)
            return taken

        busy = self._busy
        try:
            taken = patient(self.writer.submit(lambda tx: self._several(tx, free, busy, room)), self._idle)
        except NoSpace as error:
            log.warning("cannot claim: %s", error)
            taken = []
        if pool is not None:
            for request_id in set(entered) - {one.fence.request_id for one in taken}:
                pool.leave(request_id)
        with self._busy_lock:
            self._busy += len(taken)
            self._alone = _suspect(taken)
        for one in taken:
            self._jobs.put(one)
        return bool(taken)

    def _several(self, tx: Tx, free: int, busy: int, room: Callable[[RequestState], bool]) -> list[Claim]:
        several: list[Claim] = []
        while len(several) < free and not _suspect(several):
            company = busy + len(several)
            one = claims.claim(tx, self.owner, self.lease_us, self.policy, company, room)
            if one is None:
                break
            several.append(one)
        return several

    def _idle(self) -> None:
        self._beat("idle")

    # ---- working ------------------------------------------------------------------------------------------

    def _beat(self, phase: Phase, place: int = 0) -> None:
        self.pulse.beat(self.clock.mono_us(), phase, place)

    def _slot(self, place: Place, slot: int) -> None:
        with read_engine(self.paths).connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            bell = Doorbell(driver)
            while (taken := self._jobs.get()) is not None:
                try:
                    self._work(taken, place, bell, slot)
                except NoSpace as error:
                    # What follows could not be written; the lease runs out, and the request goes on by rule.
                    log.warning("cannot write what became of %s: %s", taken.fence.request_id, error)
                except Exception:
                    # A slot that is gone would be missed by nobody: the whole worker ends, and what it held goes on.
                    log.exception("slot %d failed on %s", slot, taken.fence.request_id)
                    self._exit = stops.ENGINE_FAILED
                finally:
                    if place.pool is not None:
                        place.pool.leave(taken.fence.request_id)
                    self._beat("idle", slot)
                    with self._busy_lock:
                        self._busy -= 1
                        self._alone = self._alone and self._busy > 0
                        self._freed.set()
                        idle = self._busy == 0
                    if idle:
                        self.cores.release()

    def _work(self, taken: Claim, place: Place, bell: Doorbell, slot: int) -> None:
        host = EngineHost(
            fence=taken.fence,
            chunk_cap=taken.state.chunk_cap,
            lease_us=self.lease_us,
            writer=self.writer,
            bell=bell,
            cores=self.cores if place.cores else None,
            pulse=self.pulse,
            place=slot,
            device=self.device,
            draining=self.draining,
            fixed_threads=place.threads,
        )
        self._beat("busy", slot)
        size = place.token_bytes * (taken.state.prompt_tokens + taken.state.max_units)
        holding = Holding(self.device, size, lambda: host.pulse(0))
        work, boundary = self._prepared(taken, place, bell, host, holding)
        try:
            boundary.enter()
            holding.take()
            work.run(place.loaded, host)
        except AllocationFailed as refused:
            self.endings.no_memory(taken, refused)
        except StopWork as stop:
            holding.give_back()
            self.endings.stopped(taken, work, stop)
        except Fenced:
            self.endings.refused(taken, work)
        except DeviceFault as fault:
            self._exit = self.endings.device_lost(str(fault))
        except RestoreFailed as error:
            self._exit = self.endings.restore_failed(taken, error)
        except CannotContinue as error:
            self.endings.cannot_continue(taken, error)
        except Unworkable as error:
            self.endings.unworkable(taken, error)
        except MemoryError as error:
            lane = self.owner.lane
            self._exit = self.endings.over_budget(taken) if lane == "cpu" else self.endings.engine_failed(taken, error)
        except Exception as error:  # noqa: BLE001 -- an engine may raise anything, and all of it is its fault
            self._exit = self.endings.engine_failed(taken, error)
        finally:
            self.speed.ended(taken.fence.request_id)
            holding.give_back()
        self._tell_pace(boundary.pace)

    def _prepared(
        self, taken: Claim, place: Place, bell: Doorbell, host: EngineHost, holding: Holding
    ) -> tuple[Work, Boundary]:
        """The work, with the saved state it begins with, if there is one that can be used."""

        def look() -> Look:
            return Look(bell.connection, self.clock.now_us())

        self.speed.began(taken.fence.request_id, rates.usual_of(look(), self.owner.lane, self.owner.model))
        snapshot, note = self.keeper.newest(look(), taken, place.loaded.kv_format)
        boundary = Boundary(
            taken,
            loaded=place.loaded,
            keeper=self.keeper,
            pool=place.pool,
            policy=self.policy,
            look=look,
            stopping=self.draining.is_set,
            pulse=lambda: host.pulse(0),
            restored=snapshot.tokens if snapshot is not None else 0,
            speed=self.speed,
        )
        work = Work(
            taken,
            writer=self.writer,
            policy=self.policy,
            piece=self.side.piece,
            pulse=lambda: host.pulse(0),
            ending=holding.give_back,
            boundary=boundary,
            snapshot=snapshot,
            note=note,
            doubts=self.doubts if self.owner.lane == "gpu" else None,
        )
        return work, boundary

    def _tell_pace(self, pace: Pace) -> None:
        """How fast the lane is, from time to time: who asks wants an idea, not a protocol. Never while it is slow."""
        now = time.monotonic()
        if pace.decode is None or now < self._pace_at or self.speed.doubtful():
            return
        self._pace_at = now + _PACE_EVERY_S
        seen, measured, owner, engine = pace.seen(), pace.measured, self.owner, self.speed.engine
        self.writer.submit(lambda tx: rates.see(tx, owner.lane, owner.model, seen, engine=engine, measured=measured))


def _suspect(taken: list[Claim]) -> bool:
    return any(claim.state.suspect for claim in taken)


def main() -> None:
    """`python -m runners.runner`, started by the supervisor only."""
    parser = argparse.ArgumentParser()
    for name in ("data", "id", "lane", "model", "device"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--parent", type=int, required=True)
    args = parser.parse_args()
    die_with_parent(args.parent)
    be_ended_first()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {args.id}: %(message)s")
    paths = Paths(Path(args.data))
    entry = Catalog(paths.models).get(args.model)
    device: Device | None = None
    if args.device.startswith("sim-"):
        device = SimulatedDevice(paths.sim / f"{args.device}.json")
    elif is_real(args.device):
        device = RealDevice(args.device, written(paths, args.device))
    build = build_of(in_force(paths), entry, args.lane)
    owner = Owner(args.id, args.lane, args.model, args.device, build, entry.contract)
    runner = Runner(paths, owner, entry, device)
    runner.loading()
    signal.signal(signal.SIGTERM, lambda *_: runner.draining.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        place = Loading(paths, runner.settings, owner, entry, device, runner.writer, runner.loading).run()
    except AllocationFailed as refused:
        log.error("%s", refused)  # noqa: TRY400 -- the message says it all
        sys.exit(stops.NO_MEMORY)
    except DeviceFault as fault:
        log.error("%s", fault)  # noqa: TRY400 -- the same
        sys.exit(stops.DEVICE_LOST)
    except NotOnDevice as fault:
        log.error("%s", fault)  # noqa: TRY400 -- the same
        sys.exit(stops.NOT_ON_DEVICE)
    except EngineFault as fault:
        log.error("cannot load %s: %s", args.model, fault)  # noqa: TRY400 -- the same
        sys.exit(stops.LOAD_FAILED)
    code = runner.serve(place)
    if args.device.startswith(UPSTREAM) or runner.settings.llama_server:
        place.loaded.close()  # a command of ours gets to end in order
    # Native threads and interpreter teardown have nothing left to do and could only hang.
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
