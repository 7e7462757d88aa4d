"""What handlers work with, made once by the composition root."""

import asyncio
from typing import Any, TypeVar

import msgspec

from core.state import RequestState
from core.words import SETTLED
from store.database import Paths
from store.models.catalog import Catalog
from store.reads import Reader
from store.settings import Settings
from store.writer import Unit, Writer
from web.doorbell import Doorbell
from web.telling import Tellings
from web.views import View, eta_of, request_view

T = TypeVar("T")

OWNER = "local"
"""Whose requests these are while no keys exist."""


class Services(msgspec.Struct, frozen=True):
    """The store's writer and reader, the models, the doorbell, who follows what, and the settings in force."""

    paths: Paths
    settings: Settings
    writer: Writer
    reader: Reader
    catalog: Catalog
    doorbell: Doorbell
    tellings: Tellings = msgspec.field(default_factory=Tellings)

    def now_us(self) -> int:
        """Now, in the record's time."""
        return self.writer.clock.now_us()

    async def write(self, unit: Unit[T]) -> T:
        """Commit a unit of work. A caller that goes away meanwhile does not undo it, and loses only the answer."""
        return await self.writer.commit(unit)

    async def view(self, state: RequestState) -> View:
        """A request as readers see it now."""
        now_us = self.now_us()
        outlook = (await self.reader.outlooks([state], now_us)).get(state.id)
        if outlook is not None and state.running:
            own = eta_of(state, await self.reader.history(state.id))
            outlook = outlook if own is None else msgspec.structs.replace(outlook, eta=own, takeover_s=None)
        return request_view(state, text=await self._text(state), now_us=now_us, outlook=outlook)

    async def view_at(self, state: RequestState, position: int | None) -> View:
        """The same, just accepted: where it is served as it asked nothing but its place in the queue is told."""
        if state.degraded is not None:
            return await self.view(state)
        return request_view(state, text=await self._text(state), now_us=self.now_us(), position=position)

    async def _text(self, state: RequestState) -> str:
        if not state.visible_upto or state.erased:
            return ""
        return await self.reader.text(state.id, state.output_epoch, state.visible_upto)

    async def wait(self, request_id: str, version: int, seconds: float, *, settled: bool = False) -> RequestState:
        """The request once its version is not `version` (or, with `settled`, once it has settled), or as it is then.

        Ends early when the service stops. Raises `NotFound`.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        with self.doorbell.listen() as listener:
            while True:
                state = await self.reader.state(request_id)
                done = state.state in SETTLED or (not settled and state.version != version)
                left = until - loop.time()
                if done or left <= 0 or self.doorbell.closing:
                    return state
                await listener.wait(left)


def of_app(state: Any) -> Services:
    """The services of a running application, from its state."""
    services: Services = state.services
    return services
