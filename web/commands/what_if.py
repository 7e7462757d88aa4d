"""`failsoft what-if`: what another policy would have decided about everything in the record, decision by decision."""

import argparse
from typing import Any

from core.telling import action_words, question
from web.commands.failed import OK
from web.commands.options import Commands, client_of, command, with_service
from web.commands.terminal import document, facts, size_text, table


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the command."""
    parser = command(commands, "what-if", run, "ask recorded decisions again under another policy, one by one")
    parser.add_argument("--headroom", metavar="SIZE", help="bytes of a device never promised, such as 2GiB")
    parser.add_argument("--cap", metavar="SIZE", help="most bytes of a device to take; 0 takes a cap away")
    parser.add_argument("--margin", metavar="SIZE", help="bytes kept back while a device cannot be seen")
    parser.add_argument("--max-age", type=float, metavar="SECONDS", help="age from which a reading is not trusted")
    parser.add_argument("--gpu-queue", type=int, metavar="N", help="new requests that may wait for the GPU lane")
    parser.add_argument("--cpu-queue", type=int, metavar="N", help="new requests that may wait for the CPU lane")
    parser.add_argument("--shrink-floor", type=float, metavar="SHARE", help="least share of an answer to shorten to")
    parser.add_argument("--host-floor", type=float, metavar="SHARE", help="share of the host's memory never touched")
    parser.add_argument("--ignore-pressure", action="store_true", help="as if memory pressure had never been high")
    parser.add_argument("--since", metavar="TIME", help="from then on: 7d, 12h, or a time (default: everything)")
    parser.add_argument("--until", metavar="TIME", help="up to then (default: now)")
    with_service(parser)


def policy_of(args: argparse.Namespace) -> dict[str, Any]:
    """The values to try, by their names in the policy."""
    given = {
        "headroom_bytes": args.headroom,
        "device_cap_bytes": args.cap,
        "unseen_margin_bytes": args.margin,
        "reading_max_age_s": args.max_age,
        "gpu_queue_limit": args.gpu_queue,
        "cpu_queue_limit": args.cpu_queue,
        "shrink_floor": args.shrink_floor,
        "host_floor": args.host_floor,
        "ignore_pressure": args.ignore_pressure or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def run(args: argparse.Namespace) -> int:
    """The tally."""
    body = {"policy": policy_of(args), "since": args.since, "until": args.until}
    told = client_of(args).post("/api/what-if", body)
    if args.json:
        document(told)
    else:
        _print(told)
    return OK


def _print(told: dict[str, Any]) -> None:
    print(question(told["policy"]))
    print(f"Decision by decision, no knock-on effects. {told['note']}\n")
    more = ", the first of more" if told["more"] else ""
    same = told["decisions"] - told["changed"]
    facts(
        [
            ("decisions asked again", f"{told['decisions']}{more}, on where a request may run"),
            ("the same", str(same)),
            ("other", str(told["changed"])),
            ("moves to the CPU lane", f"{told['failovers_avoided']} avoided, {told['failovers_added']} added"),
            ("refusals", f"{told['refusals_avoided']} avoided, {told['refusals_added']} added"),
            ("beyond what was free", _risks(told)),
        ]
    )
    if told["moves"]:
        print()
        rows = [(_move(move), str(number), move) for move, number in sorted(told["moves"].items())]
        table(("instead of, it would", "decisions", "as codes"), rows)
    if told["examples"]:
        print()
        table(
            ("request", "event", "it was to", "because", "it would", "because", "beyond free"),
            [
                (
                    one["request_id"],
                    str(one["version"]),
                    action_words(one["recorded"]["action"]),
                    one["recorded"]["because"],
                    action_words(one["other"]["action"]),
                    one["other"]["because"],
                    size_text(one["over_bytes"]) if one["over_bytes"] else "-",
                )
                for one in told["examples"]
            ],
        )


def _move(move: str) -> str:
    before, _, after = move.partition(" -> ")
    return f"{action_words(before)}: {action_words(after)}"


def _risks(told: dict[str, Any]) -> str:
    if not told["risks"]:
        return "none: nothing would have been promised that was not free"
    return (
        f"{told['risks']} would have been promised more than was free, by {size_text(told['most_over_bytes'])} at most"
    )
