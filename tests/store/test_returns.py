"""Commits awaited on an event loop: all outcomes of a batch come with one wake-up, each to its own caller."""

import asyncio
import threading

import pytest
from desk import Desk

from core import events as ev
from core.errors import Conflict, NoSpace
from store.journal import Tx


def note(name: str) -> "object":
    return lambda tx: tx.append("service", ev.ServiceStopped(name), actor="test").seq


def refuse(_tx: Tx) -> None:
    raise Conflict("no")


def test_a_batch_comes_back_with_one_wake_up(bare: Desk) -> None:
    reached, go = threading.Event(), threading.Event()

    def pause(_tx: Tx) -> None:
        reached.set()
        assert go.wait(60)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        first = bare.writer.commit(pause)
        await asyncio.to_thread(reached.wait, 60)
        answers = [bare.writer.commit(note(f"n{n}")) for n in range(16)]
        failing, last = bare.writer.commit(refuse), bare.writer.commit(note("last"))
        wakes = 0
        wake = loop.call_soon_threadsafe

        def counted(*arguments: object, **options: object) -> object:
            nonlocal wakes
            wakes += threading.current_thread().name == "writer"
            return wake(*arguments, **options)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        go.set()
        await first
        assert await asyncio.gather(*answers) == list(range(1, 17))
        with pytest.raises(Conflict):
            await failing
        assert await last == 17
        assert wakes == 2, "one for the batch of the pause, one for the batch of all others"

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_caller_that_goes_away_loses_only_the_answer(bare: Desk) -> None:
    async def scenario() -> None:
        gone = bare.writer.commit(note("gone"))
        gone.cancel()
        assert await bare.writer.commit(note("after")) == 2

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert bare.ask("SELECT count(*) FROM events") == [(2,)]


def test_a_loop_that_ended_before_its_answer_hurts_nobody(bare: Desk) -> None:
    reached, go = threading.Event(), threading.Event()

    def slow(tx: Tx) -> int:
        reached.set()
        assert go.wait(60)
        return note("slow")(tx)  # type: ignore[operator,no-any-return]

    async def scenario() -> None:
        bare.writer.commit(slow)
        await asyncio.to_thread(reached.wait, 60)

    asyncio.run(scenario())
    go.set()
    assert bare.run(note("after")) == 2  # type: ignore[arg-type]


def test_a_closed_store_says_so_at_once(bare: Desk) -> None:
    bare.writer.close()

    async def scenario() -> None:
        with pytest.raises(NoSpace, match="closed"):
            bare.writer.commit(note("late"))

    asyncio.run(scenario())
