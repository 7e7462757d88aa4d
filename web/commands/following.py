"""A request's frames, each exactly once, whatever happens to the web process meanwhile.

1. The version of the last frame is where a new connection goes on; what comes twice is dropped.
2. The end is a frame that settles the request, not a stream that ends: a service that stops ends its streams too.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

import httpx

from web.commands.client import Client
from web.commands.failed import REFUSED, USAGE, CommandFailed

SETTLING: Final = frozenset({"Completed", "Failed", "Cancelled", "Expired", "Refused"})
_PAUSE_S: Final = 0.2


def frames(client: Client, request_id: str) -> Iterator[dict[str, Any]]:
    """All frames from the first to the one that settles. Raises `CommandFailed` when the service stays away."""
    last, settled = 0, False
    heard = time.monotonic()
    while True:
        try:
            for frame in client.events(request_id, last):
                heard = time.monotonic()
                if frame is None or frame["version"] <= last:
                    continue
                last = frame["version"]
                settled = frame["type"] in SETTLING or (settled and frame["type"] != "Resumed")
                yield frame
            if settled:
                return
        except httpx.TransportError as error:
            if time.monotonic() - heard > client.patience_s:
                raise _lost(client, request_id) from error
        except CommandFailed as refusal:
            if refusal.code != REFUSED or time.monotonic() - heard > client.patience_s:
                raise
        time.sleep(_PAUSE_S)


def _lost(client: Client, request_id: str) -> CommandFailed:
    return CommandFailed(
        USAGE,
        f"the service at {client.url} has not answered for {client.patience_s:g} s; the request is kept, and goes on "
        f"when the service runs again: failsoft watch {request_id}",
        {"code": "unreachable", "request_id": request_id},
    )
