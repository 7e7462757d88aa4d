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
        return await self.view_at(state, await self.reader.position(state))

    async def view_at(self, state: RequestState, position: int | None) -> View:
        """The same, where its place in the queue is known already; nothing else is read before its first word."""
        text, eta = "", None
        if state.visible_upto and not state.erased:
            text = await self.reader.text(state.id, state.output_epoch, state.visible_upto)
        if state.degraded is not None and state.running:
            eta = eta_of(state, await self.reader.history(state.id))
        return request_view(state, text=text, position=position, now_us=self.now_us(), eta=eta)

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
