"""`failsoft webhooks`: what receivers need to know, and sending again what they did not take."""

import argparse
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from web.commands.failed import OK, USAGE, CommandFailed
from web.commands.options import Commands, client_of, command, with_service, with_store
from web.commands.terminal import document

_PAGE: Final = 500
"""As many as the service lists at once."""


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the command and what it consists of."""
    text = "the secret that notices to webhooks are signed with"
    group = commands.add_parser("webhooks", help=text + "; send notices again", description="Webhooks.")
    inner = group.add_subparsers(metavar="WHAT", required=True)
    with_store(command(inner, "secret", secret, "print " + text + ", as receivers' libraries take it"))
    parser = command(inner, "resend", resend, "send notices again that were given up, under their keys")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("keys", nargs="*", default=[], metavar="KEY", help="as GET /api/webhooks?state=dead tells it")
    which.add_argument("--all", action="store_true", help="all that were given up and are still kept")
    with_service(parser)


def secret(args: argparse.Namespace) -> int:
    """The secret of a data directory, made if there is none yet."""
    from store.database import Paths, default_root
    from store.signing import secret_file, secret_text

    paths = Paths((args.data or default_root()).expanduser().absolute())
    if not paths.database.is_file():
        raise CommandFailed(USAGE, f"there is no store in {paths.root}; name a data directory with --data")
    try:
        text = secret_text(paths)
    except OSError as error:
        raise CommandFailed(USAGE, f"{secret_file(paths)} cannot be read or made: {error.strerror}") from error
    if args.json:
        document({"secret": text, "file": str(secret_file(paths))})
    else:
        print(text)
    return OK


def resend(args: argparse.Namespace) -> int:
    """Each is sent again, as if for the first time."""
    client = client_of(args)
    told: dict[str, Any] = {}

    def again(keys: Iterable[str]) -> None:
        for key in keys:
            told[key] = client.post(f"/api/webhooks/{quote(key, safe='')}/resend", {})

    again(args.keys)
    while args.all:
        dead = [notice["key"] for notice in client.get("/api/webhooks", state="dead", limit=_PAGE)["items"]]
        if not set(dead) - set(told):
            break
        again(key for key in dead if key not in told)
    if args.json:
        document({"items": list(told.values())})
    else:
        for key, notice in told.items():
            print(f"{key}: to be sent to {notice['target']} again")
    return OK
