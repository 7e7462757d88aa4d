"""Options that several commands share."""

import argparse
from collections.abc import Callable
from pathlib import Path

from web.commands.address import DEFAULT, address
from web.commands.client import DEFAULT_PATIENCE_S, Client

Commands = argparse._SubParsersAction  # noqa: SLF001 -- argparse has no public name for what add_subparsers returns
Run = Callable[[argparse.Namespace], int]


def command(commands: "Commands[argparse.ArgumentParser]", name: str, run: Run, text: str) -> argparse.ArgumentParser:
    """A new command; `run` gives its exit code."""
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(run=run)
    return parser


def with_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON for programs, errors included")


def with_service(parser: argparse.ArgumentParser) -> None:
    """Options of commands that call the service."""
    place = f"where the service is (default: FAILSOFT_URL, or {DEFAULT})"
    parser.add_argument("--url", help=place)
    parser.add_argument("--data", type=Path, metavar="DIR", help="a data directory: the service that runs on it")
    parser.add_argument(
        "--patience",
        type=float,
        default=DEFAULT_PATIENCE_S,
        metavar="SECONDS",
        help="how long to try again when the service goes away meanwhile (default: %(default)g)",
    )
    with_json(parser)


def with_store(parser: argparse.ArgumentParser) -> None:
    """Options of commands that read a data directory."""
    usual = "default: FAILSOFT_DATA, or ~/.local/share/failsoft"
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"the data directory ({usual})")
    with_json(parser)


def client_of(args: argparse.Namespace) -> Client:
    """The service that the options name. Raises `CommandFailed`."""
    return Client(address(args.url, args.data), args.patience)
