"""`failsoft sim`: strike the simulated accelerator of a service, or ask how it is."""

import argparse
import sys
from pathlib import Path
from typing import Final

import msgspec

from core.errors import FailsoftError
from runners.devices.simulated import SimulatedDevice
from runners.startup import SIMULATED_ID
from store.database import Paths, default_root
from store.settings import size

_OK, _OUT, _USAGE = 0, 1, 2
_DEFAULT_REASON: Final = "it fell off the bus, as ordered"


def find(root: Path) -> SimulatedDevice | None:
    """The simulated accelerator of a data directory, or None."""
    file = Paths(root).sim / f"{SIMULATED_ID}.json"
    return SimulatedDevice(file) if file.is_file() else None


def parser() -> argparse.ArgumentParser:
    """What may be on the command line."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--data", type=Path, default=default_root(), metavar="DIR", help="data directory (%(default)s)")
    shared.add_argument("--json", action="store_true", help="print JSON for programs")
    whole = argparse.ArgumentParser(
        prog="failsoft sim",
        description="Strike the simulated accelerator. Exit codes: 0 done, 1 it is out (status), 2 there is none.",
    )
    acts = whole.add_subparsers(dest="act", metavar="ACT", required=True)
    acts.add_parser("status", parents=[shared], help="capacity, who holds what, whether it is in")
    lose = acts.add_parser("lose", parents=[shared], help="let it fall off the bus")
    lose.add_argument("--reason", default=_DEFAULT_REASON, help="what the record says (%(default)s)")
    acts.add_parser("restore", parents=[shared], help="bring it back")
    fail = acts.add_parser("fail-alloc", parents=[shared], help="let the next allocations fail, whatever is free")
    fail.add_argument("count", type=int, metavar="N")
    foreign = acts.add_parser("foreign", parents=[shared], help="let a neighbour hold memory")
    foreign.add_argument("size", metavar="SIZE", help="such as 512MiB; 0 gives it back")
    return whole


def main(argv: list[str] | None = None) -> int:
    """One act, then how the device is."""
    args = parser().parse_args(argv)
    root = args.data.expanduser().absolute()
    device = find(root)
    try:
        if device is None:
            print(
                f"failsoft: there is no simulated accelerator in {root}; start a service with one: "
                f"failsoft serve --data {root} --simulate-gpu 1GiB",
                file=sys.stderr,
            )
            return _USAGE
        _act(device, args)
    except FailsoftError as error:
        print(f"failsoft: {error}", file=sys.stderr)
        return _USAGE
    return _tell(device, args)


def _act(device: SimulatedDevice, args: argparse.Namespace) -> None:
    if args.act == "lose":
        device.lose(args.reason)
    elif args.act == "restore":
        device.restore()
    elif args.act == "fail-alloc":
        device.fail_allocations(max(0, args.count))
    elif args.act == "foreign":
        device.set_foreign(size(args.size))


def _tell(device: SimulatedDevice, args: argparse.Namespace) -> int:
    reading = device.observe()
    if args.json:
        print(msgspec.json.encode({"id": device.id, "name": device.name, **msgspec.structs.asdict(reading)}).decode())
    elif reading.state == "lost":
        print(f"{device.id} (simulated) is lost: {reading.reason}")
    else:
        used, total, foreign = (
            f"{(value or 0) / 2**20:.0f}" for value in (reading.used, reading.total, reading.foreign)
        )
        print(f"{device.id} (simulated) is in: {used} of {total} MiB used, {foreign} of them by others")
    return _OUT if args.act == "status" and reading.state != "ok" else _OK


if __name__ == "__main__":
    sys.exit(main())
