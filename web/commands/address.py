"""Where the service is: `--url`, else `--data`, else FAILSOFT_URL, else FAILSOFT_DATA, else the usual place."""

import ipaddress
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from web.commands.failed import USAGE, CommandFailed

DEFAULT: Final = "http://127.0.0.1:8765"


def address(url: str | None, data: Path | None) -> str:
    """The base URL. A data directory is asked for where its service listens. Raises `CommandFailed`."""
    if url is None and data is None:
        url = os.environ.get("FAILSOFT_URL") or None
        root = os.environ.get("FAILSOFT_DATA")
        data = Path(root) if url is None and root else None
    if url is None and data is not None:
        url = _written_in(data.expanduser())
    url = url or DEFAULT
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise CommandFailed(USAGE, f"{url!r} is no address; write it like {DEFAULT}")
    return url.rstrip("/")


def _written_in(data: Path) -> str:
    file = data / "run" / "address"
    try:
        return file.read_text().strip()
    except OSError as error:
        raise CommandFailed(
            USAGE, f"no service has run on {data} ({file.name}: {error.strerror}); start one with: {start_hint(data)}"
        ) from error


def start_hint(data: Path | None = None) -> str:
    """The command that starts a service."""
    return "failsoft serve" if data is None else f"failsoft serve --data {data}"


def is_loopback(url: str) -> bool:
    """Whether the address can only mean this machine; then no proxy stands between."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
