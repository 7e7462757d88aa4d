"""Sending what is in the outbox: one loop in the web process, many deliveries at once, each request's in order.

1. One process delivers at a time (`store.outbox.Turn`); the others ask again from time to time.
2. At most `AT_ONCE` deliveries are under way, at most `PER_TARGET` of them to one target: a slow one holds up itself.
3. What was delivered is marked however long the store cannot be written: until then it is not sent again, and nothing
   else of that request is.
4. The loop looks when the journal has grown, when a delivery ended, and when a pause is over; not more often.
5. Ending breaks deliveries off. They are made again by the next process, under the same key.
6. A receiver that says when it wants to be asked again is not asked before, up to the longest pause.
7. What was done or given up long ago is forgotten, from time to time, by whoever delivers.
"""

import asyncio
import logging
import random
from collections import Counter
from typing import Any, Final

from sqlalchemy.exc import DBAPIError

from core import webhooks
from core.errors import FailsoftError, ServiceError
from core.policy import Policy
from store import faultpoints, outbox
from store.database import Paths
from store.outbox import Notice, Outbox, Turn
from store.signing import secret
from store.writer import Unit, Writer
from web.posting import Outcome, Poster

AT_ONCE: Final = 16
PER_TARGET: Final = 2
_RECHECK_S: Final = 5.0
_TURN_S: Final = 1.0
_GAP_S: Final = 0.05
_AGAIN_S: Final = 2.0
_FORGET_S: Final = 600.0

log = logging.getLogger("failsoft.outbox")


class Deliveries:
    """The loop. `start` it on the event loop; `ring` it from any thread; `close` it in the end."""

    def __init__(
        self,
        paths: Paths,
        policy: Policy,
        hosts: tuple[str, ...],
        writer: Writer,
        box: Outbox,
        poster: Poster | None = None,
    ) -> None:
        self._paths = paths
        self._policy = policy
        self._permitted = webhooks.allowed(hosts)
        self._writer = writer
        self._box = box
        self._poster = poster
        self._under_way: dict[str, asyncio.Task[None]] = {}
        """By request."""
        self._targets: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._forget_at = 0.0
        """On the event loop's clock."""
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    def ring(self) -> None:
        """The journal has grown. Any thread may ring."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def close(self) -> None:
        """Break off what is under way, and end."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._poster is not None:
            await self._poster.close()

    async def _run(self) -> None:
        turn: Turn | None = None
        try:
            while not self._closing:
                pause_s = _RECHECK_S
                try:
                    turn = turn or Turn(self._paths.run / "outbox.lock")
                    pause_s = await self._round() if turn.take() else _TURN_S
                except (FailsoftError, DBAPIError, OSError) as error:
                    log.warning("nothing can be delivered now: %s", error)
                except Exception as error:  # a loop that ended would be missed by nobody
                    log.exception("unplanned %s while looking for what is to be delivered", type(error).__name__)
                await self._wait(pause_s)
                await asyncio.sleep(_GAP_S)
        finally:
            if turn is not None:
                turn.close()

    async def _round(self) -> float:
        """All there is to do now; seconds until there may be more."""
        pause_s = await self._send_due()
        now_s = asyncio.get_running_loop().time()
        if now_s < self._forget_at or self._closing:
            return pause_s
        old = await self._box.ended(self._writer.clock.now_us() - int(self._policy.webhook_keep_s * 1e6))
        if old:
            await self._writer.commit(lambda tx: outbox.forget(tx, old))
        if len(old) == outbox.FORGET:
            return 0.0
        self._forget_at = now_s + _FORGET_S
        return pause_s

    async def _wait(self, seconds: float) -> None:
        """Until somebody rings, or for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            if not self._closing:
                self._wake.clear()

    async def _send_due(self) -> float:
        """Begin every delivery that is due and has room; seconds until there may be more."""
        while len(self._under_way) < AT_ONCE and not self._closing:
            full = [target for target, count in self._targets.items() if count >= PER_TARGET]
            begun = False
            for notice in await self._box.heads(full, list(self._under_way)):
                ahead_s = (notice.next_us - self._writer.clock.now_us()) / 1e6
                if ahead_s > 0:
                    return min(_RECHECK_S, ahead_s)
                if len(self._under_way) < AT_ONCE and self._targets[notice.target] < PER_TARGET:
                    self._begin(notice, await self._ready())
                    begun = True
            if not begun:
                break
        return _RECHECK_S

    async def _ready(self) -> Poster:
        """Made when it is first needed: most services never send anything. Raises `Malformed` about the secret."""
        if self._poster is None:
            key = await asyncio.to_thread(secret, self._paths)
            self._poster = Poster(key, self._permitted, self._policy.webhook_timeout_s)
        return self._poster

    def _begin(self, notice: Notice, poster: Poster) -> None:
        self._targets[notice.target] += 1
        task = asyncio.get_running_loop().create_task(self._deliver(notice, poster))
        self._under_way[notice.request_id] = task
        task.add_done_callback(lambda done: self._ended(notice, done))

    def _ended(self, notice: Notice, task: "asyncio.Task[None]") -> None:
        del self._under_way[notice.request_id]
        self._targets[notice.target] -= 1
        if not self._targets[notice.target]:
            del self._targets[notice.target]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a delivery ended with %s", type(error).__name__)
        self._wake.set()

    async def _deliver(self, notice: Notice, poster: Poster) -> None:
        try:
            outcome = await poster.post(notice)
        except Exception as cause:  # whatever it is: it counts as a failed attempt, or it would be made again at once
            log.exception("unplanned %s in a delivery", type(cause).__name__)
            outcome = Outcome(f"failed here: {type(cause).__name__}")
        if outcome.error is None:
            faultpoints.hit("outbox.delivered")
            await self._write(lambda tx: outbox.delivered(tx, notice))
            return
        error, tries = outcome.error, notice.tries + 1
        given_up = outcome.hopeless or tries >= self._policy.webhook_tries
        first_s, longest_s = self._policy.webhook_backoff_s, self._policy.webhook_backoff_max_s
        draw = random.random()  # noqa: S311 -- spreads attempts, guards nothing
        asked_s = min(outcome.again_s or 0.0, longest_s)
        pause_s = None if given_up else max(asked_s, webhooks.pause_s(tries, first_s, longest_s, draw))
        if given_up:
            log.warning("notice %s is given up after %d attempts: %s", notice.key, tries, error)
        await self._write(lambda tx: outbox.failed(tx, notice, error, pause_s))

    async def _write(self, unit: Unit[Any]) -> None:
        """Write it down, however long that takes. A unit that was written already does nothing the second time."""
        while True:
            try:
                await self._writer.commit(unit)
            except ServiceError as error:
                log.warning("what became of a delivery cannot be written now: %s", error)
                await asyncio.sleep(_AGAIN_S)
            else:
                return
