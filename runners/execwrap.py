"""Becomes another program, which then dies with the process that asked for it.

`python -m runners.execwrap --parent PID -- PROGRAM ARGUMENT…`. The kernel keeps the order to die across `exec`, but not
for what that program starts in turn: whoever started it ends those by their group and their mark.
"""

import argparse
import os
import signal
import sys

from runners.process import die_with_parent

NOT_FOUND = 127
"""Exit code when the program cannot be started, as shells have it."""


def main() -> None:
    """Never returns: this process is the other program afterwards, or has ended with `NOT_FOUND`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    die_with_parent(args.parent)
    # Runners ignore it, and what is ignored stays so across exec; the program is to decide for itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        os.execvp(args.command[0], args.command)  # noqa: S606 -- a list of words, no shell
    except OSError as error:
        print(f"cannot start {args.command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201 -- its last words
        sys.exit(NOT_FOUND)


if __name__ == "__main__":
    main()
