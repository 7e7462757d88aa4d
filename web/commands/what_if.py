"""`failsoft what-if`: what another policy would have decided about everything in the record, decision by decision."""

import argparse
from typing import Any

from web.commands.failed import OK
from web.commands.options import Commands, client_of, command, with_service
from web.commands.terminal import document, facts, table


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
    more = " (there are more)" if told["more"] else ""
    facts(
        [
            ("policy", ", ".join(f"{name} {value}" for name, value in told["policy"].items()) or "as it was"),
            ("decisions", f"{told['decisions']}{more}, {told['changed']} would have been others"),
            ("failovers", f"{told['failovers_avoided']} avoided, {told['failovers_added']} more"),
            ("refusals", f"{told['refusals_avoided']} avoided, {told['refusals_added']} more"),
            ("risks", f"{told['risks']} would have promised more than was free to promise, {_most(told)}"),
        ]
    )
    if told["moves"]:
        print()
        table(("change", "decisions"), [(move, str(number)) for move, number in sorted(told["moves"].items())])
    if told["examples"]:
        print()
        table(
            ("request", "event", "was", "by", "would have been", "by", "bytes over"),
            [
                (
                    one["request_id"],
                    str(one["version"]),
                    one["recorded"]["action"],
                    one["recorded"]["rule"],
                    one["other"]["action"],
                    one["other"]["rule"],
                    str(one["over_bytes"]),
                )
                for one in told["examples"]
            ],
        )
    print(f"\n{told['note']}")


def _most(told: dict[str, Any]) -> str:
    return f"by {told['most_over_bytes']} bytes at most" if told["risks"] else "none of them by a byte"
