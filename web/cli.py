"""The `failsoft` command: one parser, one place where errors become exit codes.

1. With `--json` standard output carries JSON and nothing else, also when a command fails (member `error`).
2. Commands that call the service never read the store, and the other way round.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from core.errors import FailsoftError
from web.commands import act, become, doctor, models, replay, show, submit, verify, watch, webhooks, what_if
from web.commands.failed import INTERRUPTED, MEANINGS, OK, CommandFailed, of_error
from web.commands.terminal import document, note


def parser() -> argparse.ArgumentParser:
    """Everything that may be on the command line."""
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items())
    whole = argparse.ArgumentParser(
        prog="failsoft",
        description="Keeps a self-hosted AI box answering when its GPU cannot, and keeps the record of why.",
        epilog=f"exit codes:\n{codes}\n\nEach command explains itself: failsoft COMMAND --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"failsoft {version('failsoft')}")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for module in (become, submit, show, watch, act, replay, what_if, verify, models, webhooks, doctor):
        module.add(commands)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of one command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in become.PROGRAMS:
        become.become(given[0], given[1:])
    args = parser().parse_args(given)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except CommandFailed as failure:
        return _failed(args, failure)
    except FailsoftError as error:
        return _failed(args, of_error(error))
    except KeyboardInterrupt:
        note("")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; flushing at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return code


def _failed(args: argparse.Namespace, failure: CommandFailed) -> int:
    if getattr(args, "json", False):
        document({"error": failure.document}, one_line=True)
    note(f"failsoft: {failure}")
    return failure.code
