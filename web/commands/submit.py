"""`failsoft submit`: hand in a prompt, and wait for the answer, stream it, or leave it to the service.

Every submission carries an idempotency key, so that a connection that breaks half-way can be tried again without
making a second request.
"""

import argparse
import sys
import uuid
from typing import Any, Final, get_args

from core.machine import SMALLER
from core.words import Failover, Priority
from web.commands.client import Client
from web.commands.failed import OK, REJECTED, UNWELL, USAGE, CommandFailed
from web.commands.options import Commands, client_of, command, with_service
from web.commands.show import reduced
from web.commands.terminal import document, for_stdout, note
from web.commands.watch import follow

_SAMPLING: Final = ("max_tokens", "temperature", "top_p", "top_k", "seed")


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the command."""
    parser = command(commands, "submit", run, "hand in a prompt")
    parser.add_argument("text", help="what to say; `-` reads it from standard input")
    parser.add_argument("--system", metavar="TEXT", help="a system message before it")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--model", help="id of the model (default: the first that is served)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: the service's)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 always takes the likeliest (default)")
    parser.add_argument("--top-p", type=float, metavar="P")
    parser.add_argument("--top-k", type=int, metavar="K")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the draws (default: drawn by the service)")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    parser.add_argument("--failover", choices=get_args(Failover), help="what may happen when the GPU fails (auto)")
    parser.add_argument("--allow-fallback-model", action="store_true", help="a smaller model may answer if need be")
    parser.add_argument("--priority", choices=get_args(Priority), help="batch lets others go first (interactive)")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="cancel it when it takes longer")
    parser.add_argument("--idempotency-key", metavar="KEY", help="the same key never makes a second request")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--wait", dest="how", action="store_const", const="wait", help="print the answer whole (default)")
    how.add_argument("--watch", dest="how", action="store_const", const="watch", help="print it as it becomes durable")
    how.add_argument("--no-wait", dest="how", action="store_const", const="leave", help="print the id and return")
    parser.set_defaults(how="wait")
    with_service(parser)


def run(args: argparse.Namespace) -> int:
    """Hand it in, then wait, watch or leave."""
    client = client_of(args)
    view = client.submit(_body(args, client), args.idempotency_key or f"cli-{uuid.uuid4()}")
    if args.how == "leave":
        if args.json:
            document(view)
        else:
            print(view["id"])
        return OK
    if not args.json:
        note(f"[{view['id']}, {_lane(view)}]")
        for told in reduced(view):
            note(f"[{told}]")
    code = follow(client, view["id"], as_json=args.json, text=args.how == "watch")
    if args.how == "wait":
        _tell_whole(client.get(f"/api/requests/{view['id']}"), as_json=args.json)
    return code


def _tell_whole(view: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        document(view)
    elif text := view["output"]["text"]:
        print(for_stdout(text))


def _lane(view: dict[str, Any]) -> str:
    because = view["degraded"]["reason"] if view["degraded"] and view["degraded"]["rule"] != SMALLER else None
    lane = f"{view['lane'].upper()} lane" if view["lane"] else "no lane yet"
    return f"{lane}, because {because}" if because else lane


def _body(args: argparse.Namespace, client: Client) -> dict[str, Any]:
    text = _text(args.text)
    body: dict[str, Any] = {"model": args.model or _first_model(client)}
    if args.raw and args.system is not None:
        raise CommandFailed(USAGE, "--raw sends the text as it is; leave --system out, or --raw")
    if args.raw:
        body["prompt"] = text
    else:
        system = [] if args.system is None else [{"role": "system", "content": args.system}]
        body["messages"] = [*system, {"role": "user", "content": text}]
    body |= {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}
    chosen = {
        "stop": args.stop,
        "failover": args.failover,
        "priority": args.priority,
        "allow_fallback_model": args.allow_fallback_model or None,
        "deadline_s": args.deadline,
    }
    return body | {name: value for name, value in chosen.items() if value is not None}


def _text(given: str) -> str:
    try:
        text = sys.stdin.buffer.read().decode() if given == "-" else given
        text.encode()
    except UnicodeError as error:
        raise CommandFailed(USAGE, f"the text is not UTF-8 ({error}); convert it first") from error
    if not text.strip():
        raise CommandFailed(USAGE, "there is no text; give some, or `-` to read standard input")
    return text


def _first_model(client: Client) -> str:
    items = client.get("/api/models")["items"]
    served = [item["id"] for item in items if item["served"] and not item["problem"]]
    if served:
        return str(served[0])
    broken = [f"{item['id']}: {item['problem']}" for item in items if item["problem"]]
    why = "; ".join(broken) or "see `models` in failsoft.toml"
    raise CommandFailed(UNWELL if broken else REJECTED, f"no model is served there ({why})")
