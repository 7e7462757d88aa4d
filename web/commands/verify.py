"""`failsoft verify`: is the record whole? Reads the store itself, also while a service runs on it."""

import argparse
import sqlite3

from web.commands.failed import OK, UNWELL, USAGE, CommandFailed
from web.commands.options import Commands, command, with_store
from web.commands.terminal import document


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the command."""
    text = "check the record: every hash, every transition, every projection rebuilt and compared"
    with_store(command(commands, "verify", run, text))


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when it is not whole, with the seq of the first event that is not as it was written."""
    import msgspec
    from sqlalchemy.exc import SQLAlchemyError

    from store.database import Paths, default_root
    from store.verify import verify

    root = (args.data or default_root()).expanduser().absolute()
    if not (root / "failsoft.db").is_file():
        raise CommandFailed(USAGE, f"there is no store in {root}; name a data directory with --data")
    try:
        verdict = verify(Paths(root))
    except (sqlite3.Error, SQLAlchemyError) as error:
        why = getattr(error, "orig", None) or error
        raise CommandFailed(
            UNWELL,
            f"the store in {root} cannot be read: {why}. Stop the service, keep a copy of the directory, and restore "
            "a backup",
        ) from error
    if args.json:
        document(msgspec.to_builtins(verdict) | {"ok": verdict.ok})
    elif verdict.ok:
        print(f"The record is whole: {verdict.events} events, {verdict.requests} requests. Head: {verdict.head}")
    else:
        print(f"The record is not whole from seq {verdict.bad_seq} on: {verdict.problem}.")
        print("Stop the service and keep a copy of the directory before anything else; then restore a backup.")
    return OK if verdict.ok else UNWELL
