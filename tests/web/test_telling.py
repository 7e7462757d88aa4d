"""Many who follow one request share what is read and formed for them, and none is told less for it."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from desk import Desk

from core.events import Recorded
from store.database import Paths, migrate
from web.telling import Telling, Tellings


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    paths = Paths(tmp_path).make()
    migrate(paths)
    made = Desk(paths)
    made.open_lanes()
    yield made
    made.close()


class Source:
    """A reader that counts, and that can be kept from answering."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.reads = 0
        self.go = asyncio.Event()
        self.go.set()
        self.began = asyncio.Event()

    async def read(self, request_id: str, after: int) -> list[Recorded]:
        self.reads += 1
        found = [record for record in self.desk.events(request_id) if record.version > after]
        self.began.set()
        await self.go.wait()
        return found


async def form(history: Sequence[Recorded], beyond: int) -> list[bytes]:
    return [record.type.encode() for record in history if record.version > beyond]


def scenario(run: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(run(), 60)

    asyncio.run(bounded())


def test_those_woken_together_share_one_read(desk: Desk) -> None:
    request_id = desk.admit()

    async def run() -> None:
        source = Source(desk)
        telling = Telling(request_id, source.read, form)
        await asyncio.gather(*(telling.catch_up() for _ in range(50)))
        assert telling.frames == [b"Admitted"]
        assert source.reads == 1
        await asyncio.gather(*(telling.catch_up() for _ in range(50)))
        assert (telling.frames, source.reads) == ([b"Admitted"], 2)

    scenario(run)


def test_a_read_that_began_too_early_answers_nobody_who_came_later(desk: Desk) -> None:
    request_id = desk.admit()

    async def run() -> None:
        source = Source(desk)
        telling = Telling(request_id, source.read, form)
        source.go.clear()
        early = asyncio.create_task(telling.catch_up())
        await source.began.wait()
        desk.take()
        late = asyncio.create_task(telling.catch_up())
        await asyncio.sleep(0)
        source.go.set()
        await early
        await late
        assert telling.frames == [b"Admitted", b"Started"]
        assert source.reads == 2

    scenario(run)


def test_one_who_goes_away_takes_nothing_from_the_others(desk: Desk) -> None:
    request_id = desk.admit()

    async def run() -> None:
        source = Source(desk)
        telling = Telling(request_id, source.read, form)
        source.go.clear()
        first, second = (asyncio.create_task(telling.catch_up()) for _ in range(2))
        await source.began.wait()
        first.cancel()
        source.go.set()
        await second
        assert first.cancelled()
        assert telling.frames == [b"Admitted"]

    scenario(run)


def test_a_failed_read_is_told_and_the_next_one_succeeds(desk: Desk) -> None:
    request_id = desk.admit()

    async def run() -> None:
        source = Source(desk)

        async def failing(name: str, after: int) -> list[Recorded]:
            if source.reads == 0:
                source.reads += 1
                raise OSError("the disk is gone")
            return await source.read(name, after)

        telling = Telling(request_id, failing, form)
        told = await asyncio.gather(telling.catch_up(), telling.catch_up(), return_exceptions=True)
        assert [type(one) for one in told] == [OSError, OSError]
        await telling.catch_up()
        assert telling.frames == [b"Admitted"]

    scenario(run)


def test_followers_join_while_it_goes_on_and_nobody_joins_what_has_settled(desk: Desk) -> None:
    request_id = desk.admit()

    async def run() -> None:
        source, tellings = Source(desk), Tellings()
        one = tellings.join(request_id, source.read, form)
        assert tellings.join(request_id, source.read, form) is one
        await one.catch_up()
        assert not one.over
        assert tellings.join(request_id, source.read, form) is one
        claim = desk.take()
        desk.complete(claim, 3)
        await one.catch_up()
        assert one.over
        other = tellings.join(request_id, source.read, form)
        assert other is not one, "its content may be erased from now on, and frames hold text"
        await other.catch_up()
        assert other.frames == one.frames == [b"Admitted", b"Started", b"Completed"]

    scenario(run)


def test_nobody_follows_and_nothing_is_kept(desk: Desk) -> None:
    request_id = desk.admit()

    async def run() -> None:
        source, tellings = Source(desk), Tellings()
        await tellings.join(request_id, source.read, form).catch_up()
        gc.collect()
        again = tellings.join(request_id, source.read, form)
        assert again.frames == []

    scenario(run)
