"""Outcomes on their way from the writer's thread back to event loops: one wake-up for a whole batch.

Each outcome by itself would wake the loop, which then takes the interpreter from the writer in the middle of its
answers; sixteen callers of one commit would be sixteen such interruptions.
"""

import asyncio
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
_Pair = tuple["asyncio.Future[Any]", "Future[Any]"]


class Returns:
    """`expect` is called on a loop, before the unit is queued; `wake` on the writer's thread, after each batch."""

    def __init__(self) -> None:
        self._kept: deque[_Pair] = deque()

    def expect(self, outcome: "Future[T]") -> "asyncio.Future[T]":
        """The running loop's view of an outcome to come. Cancelling it undoes nothing; only the answer is lost."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(partial(self._keep, answer))
        return answer

    def _keep(self, answer: "asyncio.Future[Any]", outcome: "Future[Any]") -> None:
        self._kept.append((answer, outcome))

    def wake(self) -> None:
        """Bring back what is there."""
        batches: dict[asyncio.AbstractEventLoop, list[_Pair]] = {}
        while self._kept:
            pair = self._kept.popleft()
            batches.setdefault(pair[0].get_loop(), []).append(pair)
        for loop, batch in batches.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, batch)


def _deliver(batch: list[_Pair]) -> None:
    for answer, outcome in batch:
        if answer.done():
            continue
        error = outcome.exception()
        if error is None:
            answer.set_result(outcome.result())
        else:
            answer.set_exception(error)
