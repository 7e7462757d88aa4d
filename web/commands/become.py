"""`failsoft serve` and `failsoft sim`: commands that become another program.

What computes is never imported here; this process turns into it, with the same pid and the same terminal.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from web.commands.options import Commands

PROGRAMS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("runners.supervisor", "run the service (all options: failsoft serve --help)"),
    "sim": ("runners.sim", "strike the simulated accelerator: status, lose, restore, fail-alloc, foreign"),
}


def add(commands: "Commands") -> None:  # type: ignore[type-arg]  # only its method is used
    """Enter them for the list of commands; their options are their programs' own."""
    for name, (_module, text) in PROGRAMS.items():
        commands.add_parser(name, help=text, add_help=False)


def become(name: str, arguments: Sequence[str]) -> NoReturn:
    """Turn into the program behind a command. `-P`: a directory that happens to be here does not lend it modules."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", PROGRAMS[name][0], *arguments])  # noqa: S606 -- no shell
