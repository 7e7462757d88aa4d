"""`failsoft watch`: a request's text as it becomes durable, and every move of it, told as it happens.

1. Text goes to standard output and nothing else does; moves, faults and the end are told on standard error.
2. Each frame says which characters it adds. They must follow on what was printed; a gap or a repeat ends the command.
"""

import argparse
import sys
from typing import Any, Final

from web.commands.client import Client
from web.commands.failed import OK, UNWELL, CommandFailed
from web.commands.following import SETTLING, frames
from web.commands.options import Commands, client_of, command, with_service
from web.commands.terminal import document, for_stdout, note

Frame = dict[str, Any]

_QUIET: Final = frozenset({"Admitted", "Checkpointed", "SnapshotSaved", "Completed", "EffectDelivered"})


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the command."""
    parser = command(commands, "watch", run, "follow a request until it settles: its text, and every move of it")
    parser.add_argument("id", help="the request's id")
    with_service(parser)


def run(args: argparse.Namespace) -> int:
    """Follow one request."""
    client = client_of(args)
    client.get(f"/api/requests/{args.id}")
    return follow(client, args.id, as_json=args.json)


def follow(client: Client, request_id: str, *, as_json: bool, text: bool = True) -> int:
    """Print until it settles; 0 when it completed. Without `text` only what is beside the text."""
    end: Frame | None = None
    transcript = _Transcript(client, request_id, text=text and not as_json)
    for frame in frames(client, request_id):
        if as_json and text:
            document(frame, one_line=True)
        transcript.take(frame)
        if frame["type"] in SETTLING:
            end = frame
    assert end is not None
    transcript.close()
    if end["type"] == "Completed":
        return OK
    note(remedy(end["type"], request_id))
    return UNWELL


def remedy(end: str, request_id: str) -> str:
    """What can be done about a request that did not complete."""
    if end == "Failed":
        return f"Go on with: failsoft resume {request_id}"
    return f"Look at why with: failsoft show {request_id}"


class _Transcript:
    """What was printed so far of the output epoch that counts."""

    def __init__(self, client: Client, request_id: str, *, text: bool) -> None:
        self._client = client
        self._id = request_id
        self._text = text
        self._shown = 0
        self._mid_line = False
        self._erased = False

    def take(self, frame: Frame) -> None:
        """Print what a frame adds. Raises `CommandFailed` when text is missing or comes twice."""
        if frame["type"] == "Resumed" and frame["data"]["origin"] == "start":
            self._break_line()
            self._shown, self._erased = 0, False
        if frame["type"] not in _QUIET or frame.get("degraded"):
            self._tell(_sentence(frame))
        self._erased = self._erased or bool(frame.get("erased"))
        if (delta := frame.get("delta")) is not None:
            self._print(delta)
        if frame["type"] == "Completed" and not self._erased:
            self._check_whole(frame["data"]["visible_upto"])

    def close(self) -> None:
        """End the last line, and say when there is nothing to show any more."""
        self._break_line()
        if self._erased and self._text:
            note("The text was erased.")

    def _print(self, delta: dict[str, Any]) -> None:
        if delta["from"] != self._shown:
            raise self._torn(f"a frame goes on at character {delta['from']}, and {self._shown} were printed")
        self._shown = delta["to"]
        if self._text and delta["text"]:
            sys.stdout.write(for_stdout(delta["text"]))
            sys.stdout.flush()
            self._mid_line = not delta["text"].endswith("\n")

    def _check_whole(self, wanted: int) -> None:
        if self._shown != wanted:
            raise self._torn(f"it has {wanted} characters, and {self._shown} were printed")

    def _torn(self, why: str) -> CommandFailed:
        return CommandFailed(UNWELL, f"the stream of {self._id} is torn: {why}. Read it with: failsoft show {self._id}")

    def _tell(self, sentence: str) -> None:
        if self._mid_line and sys.stdout.isatty() and sys.stderr.isatty():
            sys.stderr.write("\n")
            self._mid_line = False
        note(f"[{sentence}]")

    def _break_line(self) -> None:
        if self._mid_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._mid_line = False


def _sentence(frame: Frame) -> str:
    """What happened; and of what was accepted at less than it asked for, in what way."""
    said, degraded = str(frame["because"]), frame.get("degraded")
    if not degraded:
        return said
    told = [said, f"Degraded: {degraded['reason']}."] if frame["type"] in _QUIET else [said]
    if shorter := degraded.get("limits", {}).get("max_tokens"):
        told.append(f"Shortened: at most {shorter['given']} of the {shorter['asked']} tokens that were asked for.")
    return " ".join(told)
