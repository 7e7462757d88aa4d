"""Server-sent events: the form of a frame, the life of a stream.

1. A stream reads shortly, gives the connection back, and only then sends; no read is open while it waits or sends.
2. A comment every `PING_S` keeps proxies awake and finds clients that are gone.
3. Streams end by themselves when the service stops.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.response import Stream

from web.services import Services

EVENT_STREAM: Final = "text/event-stream"
PING_S: Final = 15.0
RING_GAP_S: Final = 0.1
"""A page's doorbell rings at most ten times a second."""


def frame(value: Any, *, id_: int | None = None, event: str | None = None) -> bytes:
    """One event. JSON has no line ends of its own, so it is one `data` line."""
    head = (b"" if id_ is None else b"id: %d\n" % id_) + (b"" if event is None else b"event: %s\n" % event.encode())
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


def stream(frames: AsyncIterator[bytes], headers: Mapping[str, str] | None = None) -> Stream:
    """An answer that goes on."""
    sent = {"cache-control": "no-cache", "x-accel-buffering": "no"} | dict(headers or {})
    return Stream(frames, media_type=EVENT_STREAM, headers=sent)


class Pings:
    """When the next comment is due."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last = now()

    def sent(self) -> None:
        """Something was sent."""
        self._last = self._now()

    def due(self) -> bool:
        """Whether a comment is due; true once for each."""
        if self._now() - self._last < PING_S:
            return False
        self.sent()
        return True


async def rings(services: Services) -> AsyncGenerator[bytes, None]:
    """`{"seq": N}` whenever the journal has grown to N, at once with where it is now."""
    pings = Pings(asyncio.get_running_loop().time)
    told = -1
    with services.doorbell.listen() as listener:
        while not services.doorbell.closing:
            seq, _hash = await services.reader.head()
            if seq != told:
                told = seq
                pings.sent()
                yield frame({"seq": seq}, id_=seq)
                await asyncio.sleep(RING_GAP_S)
            elif pings.due():
                yield b": ping\n\n"
            await listener.wait()


@get("/api/stream")
async def doorbell(services: NamedDependency[Services]) -> Stream:
    """The doorbell of pages: only says that something changed."""
    return stream(rings(services))


HANDLERS: Final = [doorbell]
