"""The supervisor: starts the house, watches it, and starts again what dies. No native engine code in it.

1. The main thread only looks and acts; it never waits for a write. What is to be written is handed to the writer, in
   order, and happens when the gate allows. So even a stuck gate cannot stop it from ending who is stuck.
2. It acts first (kill, restart) and writes after.
3. Death is told by the kernel (pidfd), in milliseconds; hanging is told by pulses; a stuck gate by its holder's record.
4. Children die with it, and are fenced anyway.
"""

import argparse
import contextlib
import logging
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final

from core import events as ev
from core.errors import FailsoftError, NoSpace
from runners import accelerator, startup, stops
from runners.accelerator import Accelerator
from runners.children import Child, Exit, RunnerSpec
from runners.clocks import Clocks
from runners.deaths import after_death
from runners.drain import Drain
from runners.ground import address_of, bind, listen, lock_directory, require_loopback, usable
from runners.hangs import Hangs
from runners.hostbudget import HostBudget
from runners.memwatch import MemoryWatch
from runners.moves import Moves
from runners.outages import Outages
from runners.process import adopt_orphans, end_adopted, end_instance, oom_kills, resident_bytes
from runners.pulse import Pulse
from runners.readiness import Readiness
from runners.residents import Residents
from runners.suspend import Sleep
from runners.upkeep import Upkeep
from runners.xids import Xids
from store import breakers, promises, roster
from store.database import Paths, default_root, migrate, read_engine
from store.gate import Gate
from store.house import drain
from store.journal import Tx
from store.models.catalog import ModelEntry
from store.settings import Settings, load, write_in_force
from store.writer import Writer

log = logging.getLogger("failsoft")

TICK_S: Final = 0.05
_CLOCKS_EVERY: Final = 4
_BEATS_EVERY: Final = 20
_RELEASES_KEPT_US: Final = 120_000_000
_WEB_GRACE_S: Final = 2.0


class Supervisor:
    """One run of the service on one data directory."""

    def __init__(self, paths: Paths, settings: Settings) -> None:
        self.paths = paths
        self.settings = settings
        self.policy = settings.policy
        self.stopping = threading.Event()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._oom_kills = oom_kills()
        self._gone = False
        """The data directory was deleted under us: nothing can be kept any more."""

    # ---- the run ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Everything from the lock to the last goodbye."""
        require_loopback(self.settings.host)
        with usable(self.paths.root):
            lock = lock_directory(self.paths)
        with bind(self.settings.host, self.settings.port) as listener:
            self._serve(lock, listener)

    def _serve(self, lock: int, listener: socket.socket) -> None:
        adopt_orphans()
        with usable(self.paths.root):
            migrate(self.paths)
        startup.end_orphans(self.paths)
        startup.clear_run_files(self.paths)
        models = startup.usable_models(self.paths, self.settings)
        device = accelerator.find(self.paths, self.settings, models)
        specs = startup.specs_for(models, device, self.settings)
        write_in_force(self.paths, self.settings)
        self.writer = Writer(self.paths)
        self.gate = Gate(self.paths.gate)
        self.writer.run(lambda tx: startup.recover(tx, self.settings, models, specs, device))
        listen(listener, self.settings.host, self.paths)
        self.budget = HostBudget(self.paths, self.policy)
        self.children = [Child("web", self.paths), *self._workers(specs, device)]
        self._pass = {id(self.children[0]): listener.fileno()}
        self._address = address_of(self.settings.host, listener)
        self.hangs = Hangs(self.children, self.gate, self.policy, self.writer.clock)
        self.upkeep = Upkeep(self.paths, self.children)
        startup.greet(specs, device, self._address, self.paths)
        try:
            with read_engine(self.paths).connect() as connection:
                driver = connection.connection.driver_connection
                assert isinstance(driver, sqlite3.Connection)
                self.drain = Drain(self.children, driver, self.policy)
                self.outages = Outages(self.children, driver, self._later, self.policy, self.writer.clock)
                self.sleep = Sleep(self.writer.clock)
                self.clocks = Clocks(driver, self._later, self.policy, self.writer.clock)
                self.moves = Moves(driver, self._later, self.policy, self.writer.clock)
                self.memory = MemoryWatch(self.budget, self.children, driver, self._later, self.policy)
                self.readiness = self._readiness(models, driver)
                self.residents = self._residents(device.id if device else "", driver)
                self.xids = Xids(device.id if device else "", self.children, driver, self.writer.clock)
                self._loop()
                self._wind_down()
            if self._gone:
                raise NoSpace(f"{self.paths.root} was deleted under the running service; start it again")
        finally:
            for child in self.children:
                child.kill("service-stopped")
            self.writer.close()
            end_instance(self.paths.root)
            self.budget.close()
            os.close(lock)

    def _workers(self, specs: list[RunnerSpec], device: Accelerator | None) -> list[Child]:
        simulated = device.id if device is not None and device.simulated else ""
        monitor = Child("monitor", self.paths, arguments=("--simulated", simulated))
        hold = self.budget.hold
        held = (Child("runner", self.paths, spec=one, hold=hold if one.in_budget else None) for one in specs)
        return [monitor, *held]

    def _readiness(self, models: list[ModelEntry], driver: sqlite3.Connection) -> Readiness:
        files = {model.id: Path(model.prepared) for model in models if model.prepared_bytes}
        kind = self.settings.cpu_readiness
        return Readiness(kind, self.children, files, driver, self._later, self.policy)

    def _residents(self, device: str, driver: sqlite3.Connection) -> Residents:
        on_device = [child for child in self.children if child.spec is not None and child.spec.device == device]
        pinned, clock = self.settings.pinned, self.writer.clock
        return Residents(device, on_device, driver, self._later, self.policy, clock, pinned)

    # ---- looking ------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        count = 0
        while not self.stopping.is_set():
            self._start_due()
            self._wait_for_deaths()
            self._reap()
            self.hangs.pulses()
            self.hangs.gate()
            self._guarded(self.memory.tick)
            if count % _CLOCKS_EVERY == 0:
                self._guarded(self._clocks)
            if count % _BEATS_EVERY == 0:
                self._watch_directory()
                self._guarded(self._beats)
                self.hangs.web(self._address)
                if self.upkeep.tick():
                    self._oom_kills = oom_kills()
                end_adopted({child.pid for child in self.children}, self.paths.root)
            count += 1

    def _watch_directory(self) -> None:
        if self.gate.deleted() and not self.stopping.is_set():
            log.error("%s was deleted under the running service; stopping", self.paths.root)
            self._gone = True
            self.stopping.set()

    def _guarded(self, look: Callable[[], None]) -> None:
        """A look that failed, because the disk did, is tried again at the next tick."""
        try:
            look()
        except sqlite3.Error as error:
            log.warning("cannot read the store: %s", error)

    def _wait_for_deaths(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        for child in self.children:
            if child.pidfd >= 0:
                poll.register(child.pidfd, select.POLLIN)
        for descriptor, _ in poll.poll(TICK_S * 1000):
            if descriptor == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 64)

    def _start_due(self) -> None:
        for child in self.children:
            due = child.process is None and child.wanted and time.monotonic() >= child.not_before
            if due and not self.outages.holds(child) and not self.memory.holds(child):
                try:
                    child.start(self._pass.get(id(child)))
                except OSError as error:
                    child.not_started(self.policy.restart_backoff_s, self.policy.restart_backoff_max_s)
                    log.error("cannot start %s: %s; trying again", child.id, error)  # noqa: TRY400 -- it says it all
                    continue
                if child.spec is not None:
                    self._later(self._registration(child, child.spec))

    def _registration(self, child: Child, spec: RunnerSpec) -> Callable[[Tx], None]:
        name, pid, ticks = child.id, child.pid, child.ticks

        def unit(tx: Tx) -> None:
            started = ev.RunnerStarted(spec.lane, spec.device, pid, spec.engine, spec.model)
            tx.append(f"runner-{name}", started, actor="supervisor")
            roster.enlist(tx, roster.Enlisted(name, spec.lane, spec.model, spec.device, spec.engine, pid, ticks))

        return unit

    # ---- deaths -------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for child in self.children:
            killed_for, pid = child.killed_for, child.pid
            left = child.reap(self.policy.restart_backoff_s, self.policy.restart_backoff_max_s)
            if left is None:
                continue
            if child.spec is None:
                log.warning("%s ended (%s); starting it again", child.role, left)
                continue
            self._runner_died(child, child.spec, left, killed_for)
            if left.code == stops.DEVICE_LOST:
                self.outages.lost(child.spec.device)
            self.xids.died(child)
            if not child.wanted:
                self.residents.died(child, pid)
            elif left.code == stops.NO_MEMORY and child.spec.lane == "gpu":
                self.residents.refused(child)

    def _runner_died(self, child: Child, spec: RunnerSpec, left: Exit, killed_for: str | None) -> None:
        log.warning("runner %s ended (%s%s)", child.id, left, f", {killed_for}" if killed_for else "")
        if left.signal == signal.SIGKILL and killed_for is None and (kills := oom_kills()) > self._oom_kills:
            self._oom_kills, killed_for = kills, "out-of-memory"
        killed_for = killed_for or self.memory.killed_for(child)
        self._later(after_death(child, spec, left, killed_for, self.policy))

    # ---- time ---------------------------------------------------------------------------------------------

    def _clocks(self) -> None:
        if slept_us := self.sleep.look():
            self._later(partial(breakers.host_resumed, slept_us=slept_us, actor="supervisor"))
        self.clocks.tick()
        self.outages.cool()
        if self.drain.tick():
            return
        self.moves.tick()
        self.residents.tick()
        self.readiness.tick()
        self.xids.tick()
        for runner in self.clocks.disobeyed():
            for child in self.children:
                if child.id == runner:
                    child.kill("cancel-ignored")
        self.outages.tick()

    def _beats(self) -> None:
        silent_s = self.clocks.silent_s()
        self.hangs.monitor(None if silent_s is None else min(silent_s, self.sleep.awake_s()))
        now = self.writer.clock.now_us()
        signs = [
            roster.Sign(child.id, _state_of(child.pulse), resident_bytes(child.pid), now)
            for child in self.children
            if child.pulse is not None and child.process is not None
        ]

        def unit(tx: Tx) -> None:
            roster.sign(tx, signs)
            promises.forget_releases(tx, now - _RELEASES_KEPT_US)

        self._later(unit)

    # ---- the end ------------------------------------------------------------------------------------------

    def stop(self, *_: object) -> None:
        """Signal handler: begin to stop."""
        self.stopping.set()
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _wind_down(self) -> None:
        """Refuse new work, let running work reach a checkpoint, then end everyone."""
        log.info("stopping: running work is brought to a checkpoint")
        self._later(drain)
        runners = [child for child in self.children if child.spec is not None]
        for child in runners:
            child.terminate()
        self._await_exits(runners, self.policy.drain_s)
        for child in runners:
            child.kill("service-stopped")
        self._await_exits(runners, 1.0)
        others = [child for child in self.children if child.spec is None]
        for child in others:
            child.terminate()
        self._await_exits(others, _WEB_GRACE_S)
        for child in others:
            child.kill("service-stopped")
        self._later(lambda tx: startup.hand_back(tx, self.settings))
        self._later(lambda tx: tx.append("service", ev.ServiceStopped("asked"), actor="supervisor"))
        self.writer.close()
        self.upkeep.run(last=True)
        log.info("stopped")

    def _await_exits(self, children: list[Child], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(child.process is not None for child in children):
            self.hangs.gate()
            for child in children:
                if child.process is not None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.process.wait(0.01)
                    child.reap()

    def _later(self, unit: Callable[[Tx], Any]) -> "Future[Any]":
        """Hand a unit to the writer, for now or for good; that it was not written is told in the log."""
        future = self.writer.submit(unit)
        future.add_done_callback(_complain)
        return future


def _state_of(pulse: Pulse) -> str:
    phase = pulse.phase()
    return "starting" if phase == "unused" else phase


def _complain(future: "Future[Any]") -> None:
    error = future.exception()
    if error is not None:
        log.error("a write of the supervisor failed: %s", error, exc_info=error)


def main(argv: list[str] | None = None) -> int:
    """`python -m runners.supervisor`, which is what `failsoft serve` becomes."""
    parser = argparse.ArgumentParser(prog="failsoft serve", description="Run the service.")
    parser.add_argument("--data", type=Path, default=default_root(), help="data directory (default: %(default)s)")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8765; 0 takes a free one)")
    parser.add_argument("--config", type=Path, help="a failsoft.toml")
    parser.add_argument("--model", action="append", dest="models", help="serve this model; may be repeated")
    parser.add_argument("--gpu", metavar="CARD", help="the real card of the GPU lane: auto (default), none, or a UUID")
    parser.add_argument("--simulate-gpu", metavar="SIZE", help="size of a simulated accelerator, such as 1GiB")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        settings = load(
            args.config,
            os.environ,
            host=args.host,
            port=args.port,
            models=args.models,
            gpu=args.gpu,
            simulate_gpu=args.simulate_gpu,
        )
        root = args.data.expanduser().resolve()
        with usable(root):
            paths = Paths(root).make()
        supervisor = Supervisor(paths, settings)
        signal.signal(signal.SIGTERM, supervisor.stop)
        signal.signal(signal.SIGINT, supervisor.stop)
        supervisor.run()
    except FailsoftError as error:
        print(f"failsoft: {error}", file=sys.stderr)  # noqa: T201 -- the last word of a command
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
