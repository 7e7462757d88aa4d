"""`failsoft replay`: why a request went the way it went, with every decision asked again over its recorded facts."""

import argparse
from collections.abc import Sequence
from typing import Any

from web.commands.failed import OK, UNWELL
from web.commands.options import Commands, client_of, command, with_service
from web.commands.terminal import document, facts, table
from web.folding import folded, summary


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the command."""
    parser = command(commands, "replay", run, "tell a request's history, and ask every decision in it again")
    parser.add_argument("id", help="the request's id")
    parser.add_argument("--at", type=int, metavar="N", help="as it was after its event N (default: now)")
    with_service(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when today's rules decide otherwise."""
    replay = client_of(args).get(f"/api/requests/{args.id}/replay", at=args.at)
    if args.json:
        document(replay)
    else:
        _print(replay)
    return OK if all(one["same"] for one in replay["decisions"]) else UNWELL


def _print(replay: dict[str, Any]) -> None:
    facts([("request", replay["view"]["id"]), ("after event", str(replay["version"])), ("state", replay["state"])])
    print()
    table(("event", "what happened"), [_line(run) for run in folded(_numbered(replay), lambda row: row[1])])
    print()
    table(
        ("event", "decision", "rule", "asked again", "because"),
        [
            (
                str(one["version"]),
                one["recorded"]["action"],
                one["rule"],
                "same" if one["same"] else f"DIFFERS: {one['recomputed']['action']} by {one['recomputed']['rule']}",
                one["recorded"]["because"],
            )
            for one in replay["decisions"]
        ],
    )


def _numbered(replay: dict[str, Any]) -> list[tuple[int, str, str]]:
    """Number, type and sentence of each event; of a service that does not tell the types nothing is folded."""
    chain = replay["chain"]
    types = replay.get("types") or [""] * len(chain)
    return [(n, type_, said) for n, (type_, said) in enumerate(zip(types, chain, strict=True), start=1)]


def _line(run: Sequence[tuple[int, str, str]]) -> tuple[str, str]:
    first, last = run[0][0], run[-1][0]
    return (str(first) if first == last else f"{first}-{last}"), summary([said for _n, _type, said in run])
