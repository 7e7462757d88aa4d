"""`python -m bench [--quick] [NAME ...]` prints a report in Markdown; without names it measures everything."""

import argparse
import importlib
import sys
import time

from bench.machine import describe
from bench.numbers import HEAD, row

ALL = (
    *("admissions", "lifecycle", "generation", "failover", "replay", "streams", "append", "whatif", "pool", "takeover"),
    "pages",
)


def main() -> int:
    """Measure, print, and say by the exit code only whether it could be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ALL, []], metavar="NAME", help=", ".join(ALL))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller stores: minutes instead of many")
    given = parser.parse_args()
    print(f"{describe()}\n\n{HEAD}", flush=True)
    for name in given.names or ALL:
        began = time.monotonic()
        for figure in importlib.import_module(f"bench.{name}").measure(quick=given.quick):
            print(row(figure), flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
