"""The monitor: a process of its own that looks at devices and the host, and writes what it saw, with the time.

It may hang or die without hurting anyone: readings then grow old, and say so. It decides nothing.

1. Each device is watched by a thread of its own; the main thread asks no driver.
2. With a simulated accelerator, real ones are not asked. Without, whatever NVML shows is watched.
3. It leaves the driver in order when asked to stop; being killed is hard on some drivers.
"""

import argparse
import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from core.errors import NoSpace
from runners.devices.base import Reading
from runners.devices.finder import AGAIN_S, DRIVER, Finder
from runners.devices.host import observe_host
from runners.devices.nvml import Card, Driver
from runners.devices.processes import marked, sees_host_pids
from runners.devices.simulated import SimulatedDevice
from runners.devices.watcher import Seen, Watcher
from runners.process import die_with_parent
from store.database import Paths
from store.house import put_reading
from store.journal import Tx
from store.settings import in_force
from store.writer import Writer

PERIOD_S: Final = 0.2
CARD_PERIOD_S: Final = 1.0
REFRESH_US: Final = 1_000_000
_GOODBYE_S: Final = 1.5

log = logging.getLogger("failsoft.monitor")


def write_readings(tx: Tx, seen: dict[str, Seen]) -> None:
    """Keep what was seen last of each device."""
    for device, reading in seen.items():
        put_reading(tx, device, reading.at_us, reading.document)


class Monitor:
    """One run: a writer, and a watcher for each device."""

    def __init__(self, paths: Paths, stop: threading.Event) -> None:
        self._paths = paths
        self._stop = stop
        self._writer = Writer(paths)
        self._rang = threading.Event()
        self._watchers: list[Watcher] = []
        self._driver: Driver | None = None

    def simulate(self, device: SimulatedDevice) -> None:
        """Watch a simulated accelerator."""
        self._watch(device.id, lambda: {device.id: device.observe()}, partial(time.sleep, PERIOD_S))

    def find(self) -> None:
        """Watch whatever the driver shows, now and later."""
        said: dict[str, bool] = {}
        with contextlib.suppress(FileNotFoundError):
            said = in_force(self._paths).unified_memory
        ours = marked(self._paths.root) if sees_host_pids() else None
        self._driver = Driver(said_unified=said, ours=ours)
        self._watch(DRIVER, Finder(self._driver, self._found).look, partial(time.sleep, AGAIN_S))

    def run(self) -> None:
        """Write what changed at once, and everything once a second, until told to stop."""
        written: dict[str, Seen] = {}
        written_us = 0
        clock = self._writer.clock
        while not self._stop.is_set():
            self._rang.wait(PERIOD_S)
            self._rang.clear()
            now = {name: seen for watcher in list(self._watchers) for name, seen in watcher.latest.items()}
            for watcher in list(self._watchers):
                watcher.complain()
            due = clock.mono_us() - written_us >= REFRESH_US
            changed = {
                name: seen
                for name, seen in now.items()
                if name not in written or seen.document != written[name].document or (due and seen != written[name])
            }
            if due:
                host = Seen(clock.now_us(), msgspec.json.encode(observe_host()).decode())
                changed["host"] = host
                written_us = clock.mono_us()
            if not changed:
                continue
            try:
                self._writer.run(partial(write_readings, seen=changed))
            except NoSpace as error:
                log.warning("readings are not kept: %s", error)
                continue
            written |= changed
        self._end()

    def _end(self) -> None:
        if self._driver is not None:
            self._driver.close(_GOODBYE_S)
        self._writer.close()

    def _found(self, card: Card) -> None:
        log.info("found %s (%s, %s)", card.name, card.uuid, card.pci)
        self._watch(card.uuid, card.look, partial(card.wait, CARD_PERIOD_S))

    def _watch(self, name: str, look: Callable[[], dict[str, Reading]], pause: Callable[[], object]) -> None:
        watcher = Watcher(name, look, pause, self._rang, self._writer.clock)
        self._watchers.append(watcher)
        watcher.start()


def main() -> None:
    """`python -m runners.monitor`, started by the supervisor only."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--simulated", default="")
    args = parser.parse_args()
    die_with_parent(args.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s monitor: %(message)s")
    paths = Paths(Path(args.data))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monitor = Monitor(paths, stop)
    simulated = [name for name in args.simulated.split(",") if name]
    for name in simulated:
        monitor.simulate(SimulatedDevice(paths.sim / f"{name}.json"))
    if not simulated:
        monitor.find()
    monitor.run()
    sys.exit(0)


if __name__ == "__main__":
    main()
