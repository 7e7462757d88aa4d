"""`failsoft show` and `failsoft list`: what a request is now and how it came to be; which requests there are."""

import argparse
from collections.abc import Sequence
from typing import Any, Final, get_args

from core.explain import sizes
from core.machine import SMALLER
from core.words import Lane, State
from web.commands.failed import OK, UNWELL
from web.commands.options import Commands, client_of, command, with_service
from web.commands.terminal import clock_text, day_text, document, facts, printable, table
from web.folding import folded, summary

View = dict[str, Any]

_UNWELL_STATES: Final = frozenset({"resumable-error", "cancelled", "refused"})


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the commands."""
    parser = command(commands, "show", show, "show a request: what it is now, its text, and its history in sentences")
    parser.add_argument("id", help="the request's id")
    with_service(parser)
    parser = command(commands, "list", list_recent, "list requests, newest first")
    parser.add_argument("--state", choices=get_args(State))
    parser.add_argument("--lane", choices=get_args(Lane))
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="how many at most (default: %(default)s)")
    with_service(parser)


def show(args: argparse.Namespace) -> int:
    """One request; exit code 1 when it is settled and did not complete."""
    client = client_of(args)
    view = client.get(f"/api/requests/{args.id}")
    events: list[View] = []
    after: str | None = None
    while True:
        page = client.get(f"/api/requests/{args.id}/events", after=after)
        events += page["items"]
        after = page["next"]
        if after is None:
            break
    if args.json:
        document({"request": view, "events": events})
    else:
        _print(view, events)
    return UNWELL if view["state"] in _UNWELL_STATES else OK


def _print(view: View, events: list[View]) -> None:
    facts(_rows(view))
    print()
    table(("at", "lane", "what happened"), [_event_row(run) for run in folded(events, lambda e: str(e["type"]))])
    text = view["output"]["text"]
    if text:
        print(f"\n{printable(text)}")


def _event_row(run: Sequence[View]) -> tuple[str, str, str]:
    last = run[-1]
    return clock_text(last["at"]), str(last["data"].get("lane") or ""), sizes(summary([e["because"] for e in run]))


def _rows(view: View) -> list[tuple[str, str]]:
    progress, usage = view["progress"], view["usage"]
    rows = [("request", view["id"]), ("state", view["state"])]
    if view["lane"]:
        rows.append(("lane", view["lane"] + (", running" if view["running"] else "")))
    rows += [
        ("model", model_text(view)),
        ("progress", f"{progress['done']} of at most {progress['of']} {progress['unit']}s"),
        ("prompt", f"{usage['prompt_tokens']} tokens"),
        ("created", f"{day_text(view['created_at'])} UTC"),
    ]
    if view["queue"] and not view["running"]:
        rows += _queue_rows(view["queue"])
    if view["finish_reason"]:
        rows.append(("finished", view["finish_reason"]))
    rows += [("moved" if move["from"] else "sent", move["because"]) for move in view["failovers"]]
    if view["degraded"]:
        rows.append(("degraded", f"since {clock_text(view['degraded']['since'])}: {view['degraded']['reason']}"))
        if limits := view["degraded"]["limits"].get("max_tokens"):
            rows.append(("shortened", f"asked {limits['asked']:,} tokens, given {limits['given']:,}"))
        if view["degraded"]["eta"]:
            rows.append(("ends", eta_text(view["degraded"]["eta"])))
    if view["error"]:
        rows.append(("error", sizes(view["error"]["detail"])))
    if view["output"].get("erased"):
        rows.append(("text", "erased"))
    return rows


def model_text(view: View) -> str:
    """The model that was asked for, and the one that answers where that is another."""
    serves = view["served_model"] or view["model"]
    return str(serves) if serves == view["model"] else f"{view['model']}, answered by {serves}"


def reduced(view: View) -> list[str]:
    """In which way the answer is another than the one that was asked for, one line each."""
    degraded = view["degraded"]
    found = []
    if view["served_model"] and view["served_model"] != view["model"]:
        why = f", because {degraded['reason']}" if degraded and degraded["rule"] == SMALLER else ""
        found.append(f"{model_text(view)}{why}")
    if degraded and (limits := degraded["limits"].get("max_tokens")):
        found.append(f"asked {limits['asked']:,} tokens, given {limits['given']:,}")
    return found


def _queue_rows(queue: View) -> list[tuple[str, str]]:
    """Whether it waits or is stuck, why, and when it may be taken up and end."""
    place = "" if queue["position"] is None else f"{queue['position']} before it, "
    rows = [
        (queue["status"], f"{place}for {queue['age_s']:.1f} s" + (f": {sizes(queue['why'])}" if queue["why"] else ""))
    ]
    eta = queue["eta"]
    if eta and queue["status"] == "waiting":
        start = {"low_s": eta["start_low_s"], "high_s": eta["start_high_s"], "basis": ""}
        rows += [("taken up", eta_text(start)), ("ends", eta_text(eta))]
    return rows


def eta_text(eta: View) -> str:
    """A range with its basis."""
    basis = f" ({eta['basis']})" if eta["basis"] else ""
    if eta["low_s"] is None:
        return eta["basis"] or "unknown"
    if eta["high_s"] is None:
        return f"in at least {eta['low_s']:.1f} s{basis}"
    return f"in {eta['low_s']:.1f} to {eta['high_s']:.1f} s{basis}"


def list_recent(args: argparse.Namespace) -> int:
    """Requests, newest first."""
    page = client_of(args).get(
        "/api/requests", state=args.state, lane=args.lane, model=args.model, limit=max(1, args.limit)
    )
    if args.json:
        document(page)
        return OK
    table(
        ("request", "created (UTC)", "state", "lane", "model", "tokens", "moves"),
        [
            (
                view["id"],
                day_text(view["created_at"]),
                view["state"],
                view["lane"] or "",
                model_text(view),
                f"{view['progress']['done']}/{view['progress']['of']}",
                str(sum(move["from"] is not None for move in view["failovers"])),
            )
            for view in page["items"]
        ],
    )
    return OK
