"""`failsoft sim`: strike the simulated accelerator of a service, or ask how it is."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from core.errors import FailsoftError, Malformed
from runners.accelerator import SIMULATED_ID
from runners.devices.simulated import SimulatedDevice, SimulatedState
from store.database import Paths, default_root
from store.settings import size

_OK, _OUT, _USAGE = 0, 1, 2
_DEFAULT_REASON: Final = "it fell off the bus, as ordered"
_RESET_REASON: Final = "it must be reset, as ordered"


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
    acts.add_parser("status", parents=[shared], help="capacity, who holds what, what is ordered, whether it is in")
    lose = acts.add_parser("lose", parents=[shared], help="let it fall off the bus")
    lose.add_argument("--reason", default=_DEFAULT_REASON, help="what the record says (%(default)s)")
    reset = acts.add_parser("require-reset", parents=[shared], help="let it refuse all work until it is reset")
    reset.add_argument("--reason", default=_RESET_REASON, help="what the record says (%(default)s)")
    acts.add_parser("restore", parents=[shared], help="bring it back, from either")
    fail = acts.add_parser("fail-alloc", parents=[shared], help="let the next allocations fail, whatever is free")
    fail.add_argument("count", type=int, metavar="N")
    above = acts.add_parser("fail-above", parents=[shared], help="let allocations of more than that fail")
    above.add_argument("size", metavar="SIZE", help="such as 512MiB; 0 takes the order back")
    fragment = acts.add_parser("fragment", parents=[shared], help="break what is free into blocks of at most that")
    fragment.add_argument("size", metavar="SIZE", help="such as 64MiB; 0 makes it one block again")
    foreign = acts.add_parser("foreign", parents=[shared], help="let a neighbour hold memory, now or over time")
    foreign.add_argument(
        "steps", nargs="+", metavar="SIZE|SECONDS:SIZE", help="such as 512MiB, or 0:1GiB 30:0 for half a minute"
    )
    peak = acts.add_parser("peak", parents=[shared], help="let each allocation take more at first")
    peak.add_argument("size", metavar="SIZE", help="how much more; 0 takes the order back")
    peak.add_argument(
        "seconds", type=float, metavar="SECONDS", nargs="?", default=5.0, help="for how long (%(default)s)"
    )
    lag = acts.add_parser("lag", parents=[shared], help="let released memory come back late")
    lag.add_argument("seconds", type=float, metavar="SECONDS")
    leak = acts.add_parser("leak", parents=[shared], help="let each release leave some behind until its process ends")
    leak.add_argument("size", metavar="SIZE")
    slow = acts.add_parser("slow", parents=[shared], help="let its work take longer")
    slow.add_argument("factor", type=float, metavar="FACTOR", help="such as 10; 1 is full speed")
    garble = acts.add_parser("garble", parents=[shared], help="let it compute garbage, with everything else green")
    garble.add_argument("how", choices=("on", "off"), nargs="?", default="on", help="%(default)s unless told otherwise")
    reserve = acts.add_parser("reserve", parents=[shared], help="let the driver keep memory for itself")
    reserve.add_argument("size", metavar="SIZE")
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
    acts: dict[str, Callable[[], None]] = {
        "status": lambda: None,
        "lose": lambda: device.lose(args.reason),
        "require-reset": lambda: device.require_reset(args.reason),
        "restore": device.restore,
        "fail-alloc": lambda: device.fail_allocations(max(0, args.count)),
        "fail-above": lambda: device.fail_above(size(args.size) or None),
        "fragment": lambda: device.fragment(size(args.size) or None),
        "foreign": lambda: device.script_foreign([_step(text) for text in args.steps]),
        "peak": lambda: device.set_peak(size(args.size), _seconds(args.seconds)),
        "lag": lambda: device.set_lag(_seconds(args.seconds)),
        "leak": lambda: device.set_leak(size(args.size)),
        "slow": lambda: device.set_slow(_seconds(args.factor)),
        "garble": lambda: device.set_garbage(args.how == "on"),
        "reserve": lambda: device.reserve(size(args.size)),
    }
    acts[args.act]()


def _step(text: str) -> tuple[float, int]:
    after, colon, held = text.rpartition(":")
    if not colon:
        return 0.0, size(text)
    try:
        return _seconds(float(after)), size(held)
    except ValueError:
        raise Malformed(f"{text!r} is no step; write SECONDS:SIZE, such as 30:512MiB") from None


def _seconds(number: float) -> float:
    if not 0 <= number < float("inf"):
        raise Malformed(f"{number} is out of range; give a number that is not negative")
    return number


def _tell(device: SimulatedDevice, args: argparse.Namespace) -> int:
    reading = device.observe()
    state = device.state()
    if args.json:
        told = {"id": device.id, "name": device.name, **msgspec.structs.asdict(reading)}
        print(msgspec.json.encode(told | {"orders": _orders(state)}).decode())
    elif reading.state != "ok":
        what = "is lost" if reading.state == "lost" else "must be reset"
        print(f"{device.id} (simulated) {what}: {reading.reason}")
    else:
        used, total, foreign = (
            f"{(value or 0) / 2**20:.0f}" for value in (reading.used, reading.total, reading.foreign)
        )
        print(f"{device.id} (simulated) is in: {used} of {total} MiB used, {foreign} of them by others")
        if orders := _orders(state):
            print("ordered: " + ", ".join(f"{name} {value}" for name, value in orders.items()))
    return _OUT if args.act == "status" and reading.state != "ok" else _OK


def _orders(state: SimulatedState) -> dict[str, float]:
    """What stands, under the names of the acts; bytes, seconds, a count, a factor."""
    found: dict[str, float | None] = {
        "fail-alloc": state.fail_allocations,
        "fail-above": state.fail_above,
        "fragment": state.largest_block,
        "peak": state.peak,
        "lag": state.lag_s,
        "leak": state.leak,
        "slow": state.slow if state.slow > 1 else None,
        "garble": float(state.garbage),
        "reserve": state.reserved,
    }
    return {name: value for name, value in found.items() if value}


if __name__ == "__main__":
    sys.exit(main())
