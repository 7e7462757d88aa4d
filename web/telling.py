"""One request's frames, read and formed once for all who follow it.

1. `catch_up` answers after a read that began after it was asked: many who are woken by one ring share one read, and
   none is answered by a read that may have begun too early for it.
2. Whoever follows keeps the telling alive; without followers it vanishes.
3. Frames hold text. Once the request has settled nobody new joins, since its content may be erased from then on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from core.events import Recorded
from core.machine import apply
from core.state import RequestState
from core.words import SETTLED

Read = Callable[[str, int], Awaitable[list[Recorded]]]
"""A request's records after a version."""
Form = Callable[[Sequence[Recorded], int], Awaitable[list[bytes]]]
"""The frames of a history's versions beyond one, in order."""


class Telling:
    """What is known of one request; `frames[n]` tells version n + 1."""

    def __init__(self, request_id: str, read: Read, form: Form) -> None:
        self.request_id: Final = request_id
        self.frames: list[bytes] = []
        self.state: RequestState | None = None
        self._read = read
        self._form = form
        self._history: list[Recorded] = []
        self._reading: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more is to be told for now: it has settled, or there is no such request."""
        return self.state is None or self.state.state in SETTLED

    async def catch_up(self) -> None:
        """Know all that was durable when this was called. Raises what reading raises."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_task(self._next(self._reading))
        await asyncio.shield(self._waiting)

    async def _next(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        self._reading, self._waiting = self._waiting, None
        fresh = await self._read(self.request_id, len(self._history))
        if not fresh:
            return
        history = [*self._history, *fresh]
        frames = await self._form(history, len(self._history))
        state = self.state
        for record in fresh:
            state = apply(state, record.event, stream=record.stream, at_us=record.at_us, attempt=record.attempt)
        self._history, self.state = history, state
        self.frames += frames


class Tellings:
    """Those that somebody follows, by request."""

    def __init__(self) -> None:
        self._kept: WeakValueDictionary[str, Telling] = WeakValueDictionary()

    def join(self, request_id: str, read: Read, form: Form) -> Telling:
        """The telling that others follow already, or a new one."""
        found = self._kept.get(request_id)
        if found is None or (found.state is not None and found.over):
            found = self._kept[request_id] = Telling(request_id, read, form)
        return found
