"""`failsoft models equivalence`: how alike do two paths answer, and what may a request do between them?

The measuring is a program of its own (`runners.equivalence`): what computes is never imported here.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from store.database import default_root
from web.commands.failed import UNWELL, USAGE, CommandFailed
from web.commands.options import Commands, command, with_store
from web.commands.terminal import document, facts, table

_PATHS: Final = """a path is one of
  ENGINE               llamacpp, ctransformers, null: an engine here, computing the model of --model
  ENGINE=URL           that engine's server, which runs already, such as llamacpp=http://127.0.0.1:8080
  MODEL                a model's id in the catalog, with the engine it is entered for
  upstream:NAME        a server that the settings name
  ENGINE:KEY=VALUE,... options behind an engine or a model: slots=4 (requests at once), layers=99 and device=KIND (on
                       an accelerator, by the kind that `failsoft doctor` shows), server=URL (the last one)

exit codes:
    0  measured and recorded, whatever the class is
    1  a path failed, or too little could be compared; nothing was recorded
    2  the command line is wrong: a path that cannot be read, a number out of range
    3  the store takes nothing now (no space, or held by another program)
    4  the two paths do not compute the same model (their contracts differ), or a model is unknown; nothing was computed
"""


def add(inner: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the command below `models`."""
    parser = command(inner, "equivalence", run, "measure how alike two paths answer, and record it as a proof")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _PATHS
    parser.add_argument("source", metavar="A", help="the path that a request begins on")
    parser.add_argument("target", metavar="B", help="the path that it would go on at")
    parser.add_argument("--model", metavar="ID", help="the model that engines compute (default: the packaged one)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a failsoft.toml (default: that of the service)")
    parser.add_argument("--prompts", type=int, metavar="N", help="how many of the 12 prompts to ask (default: all)")
    parser.add_argument("--tokens", type=int, metavar="N", help="longest answer in tokens (default 48)")
    with_store(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when it was measured and recorded."""
    if any(path.startswith("-") for path in (args.source, args.target)):
        raise CommandFailed(USAGE, "a path does not begin with a dash; see: failsoft models equivalence --help")
    program = [sys.executable, "-P", "-m", "runners.equivalence", args.source, args.target]
    root = (args.data or default_root()).expanduser().absolute()
    options = {"model": args.model, "config": args.config, "prompts": args.prompts, "tokens": args.tokens, "data": root}
    for name, value in options.items():
        program += [] if value is None else [f"--{name}={value}"]
    done = subprocess.run(program, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    try:
        told: dict[str, Any] = msgspec.json.decode(done.stdout)
    except msgspec.DecodeError as error:
        how = f"exit code {done.returncode}" if done.returncode >= 0 else f"signal {-done.returncode}"
        raise CommandFailed(UNWELL, f"the measuring program ended with {how} and said nothing. Try again") from error
    if "error" in told:
        raise CommandFailed(done.returncode, told["error"]["detail"], told["error"])
    if args.json:
        document(told)
    else:
        _print(told)
    return done.returncode


def _print(told: dict[str, Any]) -> None:
    rows = [
        (
            one["name"],
            "equal" if one["first_difference"] is None else f"differs at {one['first_difference']}",
            f"{one['agreed']} of {one['tokens']}",
            _nats(one["divergence"]),
        )
        for one in told["prompts"]
    ]
    table(("prompt", "answers", "next token agreed", "divergence"), rows)
    print()
    sums = told["totals"]
    moves = ", ".join(name for name, moves in told["failover"].items() if moves) or "none"
    facts(
        [
            ("from", _side(told["source"])),
            ("to", _side(told["target"])),
            ("answers", f"{sums['free_same']} of {sums['prompts']} equal"),
            ("next token", f"{sums['agreed']} of {sums['tokens']} agreed ({sums['agreement']:.2%})"),
            ("divergence", _nats(sums["divergence"]) + (" on average" if sums["divergence"] is not None else "")),
            ("class", told["pair"] if told["recorded"] else "not decided"),
            *(("because" if at == 0 else "", reason) for at, reason in enumerate(told["reasons"])),
            ("recorded", "yes" if told["recorded"] else "no: it proves nothing; ask more (--prompts, --tokens)"),
            ("in force", f"{told['now']}: {told['change']}"),
            ("moves with", f"failover {moves}, once text was shown"),
        ]
    )


def _side(side: dict[str, Any]) -> str:
    slots = f", {side['slots']} at once" if side["slots"] > 1 else ""
    return f"{side['path']}: {side['model']} by {side['engine']} on {side['kind']}{slots}"


def _nats(value: float | None) -> str:
    return "not told" if value is None else f"{value:.4f} nats"
