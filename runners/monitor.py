"""The monitor: a process of its own that looks at devices and the host, and writes what it saw, with the time.

It may hang or die without hurting anyone: readings then grow old, and say so. It decides nothing.
"""

import argparse
import logging
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from core.errors import NoSpace
from runners.devices.host import observe_host
from runners.devices.simulated import SimulatedDevice
from runners.process import die_with_parent
from store.database import Paths
from store.journal import Tx
from store.writer import Writer

PERIOD_S: Final = 0.2
REFRESH_US: Final = 1_000_000

log = logging.getLogger("failsoft.monitor")


def write_readings(tx: Tx, seen_us: int, documents: dict[str, str]) -> None:
    """Keep the latest reading of each device, under the time it was taken, not the time it was written."""
    for device, document in documents.items():
        tx.execute(
            "INSERT INTO readings (device, at_us, doc) VALUES (?,?,?) "
            "ON CONFLICT (device) DO UPDATE SET at_us=excluded.at_us, doc=excluded.doc",
            (device, seen_us, document),
        )


def watch(paths: Paths, devices: list[SimulatedDevice], stop: threading.Event) -> None:
    """Look every `PERIOD_S`; write what changed at once, and everything once a second."""
    writer = Writer(paths)
    last: dict[str, str] = {}
    written_us = 0
    while not stop.wait(PERIOD_S):
        seen_us = writer.clock.now_us()
        now: dict[str, str] = {device.id: msgspec.json.encode(device.observe()).decode() for device in devices}
        changed = {name: doc for name, doc in now.items() if last.get(name) != doc}
        if writer.clock.mono_us() - written_us >= REFRESH_US:
            changed = now | {"host": msgspec.json.encode(observe_host()).decode()}
            written_us = writer.clock.mono_us()
        if not changed:
            continue
        last = now
        try:
            writer.run(partial(write_readings, seen_us=seen_us, documents=changed))
        except NoSpace as error:
            log.warning("readings are not kept: %s", error)
    writer.close()


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
    devices = [SimulatedDevice(paths.sim / f"{name}.json") for name in args.simulated.split(",") if name]
    watch(paths, devices, stop)
    sys.exit(0)


if __name__ == "__main__":
    main()
