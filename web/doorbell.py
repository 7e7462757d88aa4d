"""Waking those who wait in this process: the tailer rings, listeners look.

1. A ring says only "look again"; what there is, a listener reads itself. A missed ring costs at most a second, since
   every wait ends after that by itself.
2. Listeners are held weakly: one whose generator was dropped without being closed vanishes with it.
3. After `close` every wait returns at once and `closing` is true: streams end by themselves when the service stops.
"""

import asyncio
from types import TracebackType
from typing import Final, Self
from weakref import WeakSet

RECHECK_S: Final = 1.0


class Listener:
    """One who waits. A context manager: it is counted while it is entered."""

    def __init__(self, doorbell: "Doorbell") -> None:
        self._doorbell = doorbell
        self._rung = asyncio.Event()

    def __enter__(self) -> Self:
        self._doorbell.listeners.add(self)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._doorbell.listeners.discard(self)

    def wake(self) -> None:
        """End its wait; called on the loop only."""
        self._rung.set()

    async def wait(self, seconds: float = RECHECK_S) -> None:
        """Return at the next ring since the last wait, after `seconds` or a second, or at once when closing."""
        if self._doorbell.closing:
            return
        try:
            async with asyncio.timeout(min(seconds, RECHECK_S)):
                await self._rung.wait()
        except TimeoutError:
            return
        finally:
            self._rung.clear()


class Doorbell:
    """Made anywhere; `open` it on the loop whose tasks listen."""

    def __init__(self) -> None:
        self.listeners: WeakSet[Listener] = WeakSet()
        self.closing = False
        self.seq = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Begin, on the running loop."""
        self._loop = asyncio.get_running_loop()

    def listen(self) -> Listener:
        """A new listener, to be entered."""
        return Listener(self)

    @property
    def listening(self) -> bool:
        """Whether anybody waits. Any thread may ask."""
        return len(self.listeners) > 0

    def ring(self, seq: int) -> None:
        """The journal has grown to `seq`. Any thread may ring."""
        self._call(seq, closing=False)

    def close(self) -> None:
        """Send everybody home. Any thread, and a signal handler, may call it."""
        self._call(self.seq, closing=True)

    def _call(self, seq: int, *, closing: bool) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, seq, closing)

    def _wake(self, seq: int, closing: bool) -> None:
        self.seq = max(seq, self.seq)
        self.closing = self.closing or closing
        for listener in list(self.listeners):
            listener.wake()
