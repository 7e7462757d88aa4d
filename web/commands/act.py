"""What a caller may do: `cancel` and `resume` a request, `reset-breaker` of a device, `drain` the service."""

import argparse
from typing import Any
from urllib.parse import quote

from web.commands.failed import OK
from web.commands.options import Commands, client_of, command, with_service
from web.commands.terminal import document
from web.commands.watch import follow


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the commands."""
    parser = command(commands, "cancel", cancel, "ask a request to stop; repeating it changes nothing")
    parser.add_argument("id", help="the request's id")
    with_service(parser)
    parser = command(commands, "resume", resume, "take up a request that stopped as a resumable error")
    parser.add_argument("id", help="the request's id")
    parser.add_argument(
        "--from",
        dest="origin",
        choices=("checkpoint", "start"),
        default="checkpoint",
        help="go on after the last durable word, or begin a new output (default: %(default)s)",
    )
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="cancel it when it takes longer")
    parser.add_argument("--watch", action="store_true", help="then follow it until it settles")
    with_service(parser)
    parser = command(commands, "drain", drain, "accept nothing new, and wait until everything is safe")
    parser.add_argument("--reason", default="it was asked for", help="why, for the record (default: %(default)s)")
    with_service(parser)
    parser = command(commands, "reset-breaker", reset_breaker, "try a device again now, whatever holds its breaker")
    parser.add_argument("device", help="the device's id, as GET /api/devices tells it")
    parser.add_argument("--reason", required=True, help="why, for the record")
    with_service(parser)


def reset_breaker(args: argparse.Namespace) -> int:
    """The device takes work once it has answered its canaries."""
    client = client_of(args)
    told = client.post(f"/api/devices/{quote(args.device, safe='')}/reset-breaker", {"reason": args.reason})
    if args.json:
        document(told)
    elif told["breaker"]["state"] == "closed":
        print(f"{told['id']}: its breaker is closed; there is nothing to reset")
    else:
        right = client.get("/api/policy")["breaker_canaries"]
        print(f"{told['id']}: is being tried; it takes work after {right} right answer{'' if right == 1 else 's'}")
    return OK


def drain(args: argparse.Namespace) -> int:
    """Bring everything to safety; the service works again after its next start."""
    told = client_of(args).post("/api/drain", {"reason": args.reason})
    if args.json:
        document(told)
    else:
        print(f"drained: nothing runs any more, {told['waiting']} requests wait for the next start")
    return OK


def cancel(args: argparse.Namespace) -> int:
    """Ask for a stop; what runs stops at its next step."""
    view = client_of(args).post(f"/api/requests/{args.id}/cancel", {})
    stopped = "stopped" if view["state"] == "cancelled" else "asked to stop; it does at its next step"
    return _tell(args, view, stopped)


def resume(args: argparse.Namespace) -> int:
    """Take it up again."""
    client = client_of(args)
    body = {"from": args.origin} | ({} if args.deadline is None else {"deadline_s": args.deadline})
    view = client.post(f"/api/requests/{args.id}/resume", body)
    if args.watch:
        return follow(client, args.id, as_json=args.json)
    return _tell(args, view, f"taken up again on the {view['lane']} lane")


def _tell(args: argparse.Namespace, view: dict[str, Any], what: str) -> int:
    if args.json:
        document(view)
    else:
        print(f"{view['id']}: {what} ({view['state']})")
    return OK
