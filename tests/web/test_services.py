"""What handlers lean on: a commit outlives its caller, the doorbell wakes and lets go."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from store.database import Paths, migrate
from store.settings import Settings
from store.writer import Writer
from web.doorbell import Doorbell
from web.services import Services


def test_a_caller_that_goes_away_does_not_undo_its_commit(tmp_path: Path) -> None:
    paths = Paths(tmp_path).make()
    migrate(paths)
    writer = Writer(paths)
    services = Services(paths, Settings(), writer, None, None, Doorbell())  # type: ignore[arg-type]
    entered, go = threading.Event(), threading.Event()

    def slow(_tx: Any) -> None:
        entered.set()
        assert go.wait(30)

    def unit(tx: Any) -> None:
        tx.execute("INSERT INTO service (key, value) VALUES ('kept', 'yes')")

    async def scenario() -> None:
        first = asyncio.create_task(services.write(slow))
        await asyncio.to_thread(entered.wait, 30)
        caller = asyncio.create_task(services.write(unit))  # waits for its turn behind the slow one
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go.set()
        await first

    asyncio.run(scenario())
    found = writer.run(lambda tx: tx.execute("SELECT value FROM service WHERE key='kept'").fetchall())
    writer.close()
    assert found == [("yes",)]


def test_a_ring_before_the_wait_is_not_missed() -> None:
    async def scenario() -> None:
        bell = Doorbell()
        bell.open()
        with bell.listen() as listener:
            await asyncio.to_thread(bell.ring, 5)
            assert bell.seq == 5
            loop = asyncio.get_running_loop()
            pending = loop.create_task(listener.wait())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert pending.done()

    asyncio.run(scenario())


def test_closing_wakes_everybody_for_good() -> None:
    async def scenario() -> None:
        bell = Doorbell()
        bell.open()
        with bell.listen() as one, bell.listen() as other:
            waits = [asyncio.create_task(one.wait()), asyncio.create_task(other.wait())]
            await asyncio.sleep(0)
            bell.close()
            await asyncio.gather(*waits)
            assert bell.closing
            for _ in range(1000):  # at once: a thousand seconds if they waited
                await one.wait()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_listener_that_was_dropped_is_not_counted() -> None:
    bell = Doorbell()
    listener = bell.listen().__enter__()
    assert bell.listening
    del listener
    assert not bell.listening
