"""`failsoft webhooks`: what receivers need to know."""

import argparse

from web.commands.failed import OK, USAGE, CommandFailed
from web.commands.options import Commands, command, with_store
from web.commands.terminal import document


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the command and what it consists of."""
    text = "the secret that notices to webhooks are signed with"
    group = commands.add_parser("webhooks", help=text, description="Webhooks.")
    inner = group.add_subparsers(metavar="WHAT", required=True)
    with_store(command(inner, "secret", secret, "print " + text + ", as receivers' libraries take it"))


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
