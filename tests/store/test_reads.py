"""Reads of the web process, and the thread that wakes them."""

import asyncio
import threading
import time

import pytest
from desk import Desk, HandClock

from core.errors import Malformed, NotFound
from store import tailer as tailing
from store.reads import Page, Reader, async_read_engine
from store.tailer import Tailer

PATIENCE_S = 60


def read(desk: Desk, look: object) -> object:
    async def work() -> object:
        engine = async_read_engine(desk.paths)
        try:
            return await look(Reader(engine))  # type: ignore[operator]
        finally:
            await engine.dispose()

    return asyncio.run(work())


def test_pages_are_whole_and_without_repeats(timed: Desk, clock: HandClock) -> None:
    made = []
    for n in range(7):
        made.append(timed.admit())
        clock.go(n % 2)

    async def all_pages(reader: Reader) -> list[str]:
        found, cursor = [], None
        while True:
            page: Page = await reader.requests({}, cursor, 3)
            found += [state.id for state in page.items]
            cursor = page.next
            if cursor is None:
                return found

    found = read(timed, all_pages)
    assert isinstance(found, list)
    assert sorted(found) == sorted(made)
    assert len(found) == 7


@pytest.mark.parametrize("cursor", ["", "x", "~", "²~a", "-1~a", "9" * 30 + "~a", "1.5~a"])
def test_a_strange_cursor_is_the_callers_mistake(desk: Desk, cursor: str) -> None:
    with pytest.raises(Malformed):
        read(desk, lambda reader: reader.requests({}, cursor, 3))


def test_a_request_its_text_and_its_turn(timed: Desk, clock: HandClock) -> None:
    first = timed.admit()
    clock.go(1)
    second = timed.admit()
    claim = timed.take()
    timed.checkpoint(claim, 3)

    async def look(reader: Reader) -> tuple[object, ...]:
        running, waiting = await reader.state(first), await reader.state(second)
        found = await reader.outlooks([running, waiting], timed.writer.clock.now_us())
        return (
            running.id in found,
            found[waiting.id].position,
            await reader.text(first, 0),
            await reader.text(first, 0, 2),
        )

    assert read(timed, look) == (False, 0, "abc", "ab")
    with pytest.raises(NotFound):
        read(timed, lambda reader: reader.state("nobody"))


def test_nobody_can_write_through_a_reader(desk: Desk) -> None:
    with pytest.raises(Exception, match="readonly"):
        read(desk, lambda reader: reader._text("DELETE FROM leases"))


class Bell:
    def __init__(self) -> None:
        self.rung: list[int] = []
        self.changed = threading.Event()

    def ring(self, seq: int) -> None:
        self.rung.append(seq)
        self.changed.set()

    def wait_for(self, seq: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.rung or self.rung[-1] < seq:
            assert time.monotonic() < deadline, f"never rang for {seq}: {self.rung}"
            self.changed.wait(0.1)
            self.changed.clear()


def test_the_bell_rings_for_commits_in_order(desk: Desk) -> None:
    bell = Bell()
    tailer = Tailer(desk.paths, bell.ring, lambda: True)
    tailer.start()
    for seq in (2, 3, 4):
        desk.admit()
        bell.wait_for(seq)
    tailer.close()
    assert bell.rung == sorted(set(bell.rung))


def test_the_bell_survives_a_store_that_cannot_be_read_for_a_while(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    bell, failures = Bell(), []
    honest = tailing.read_engine

    def broken(paths: object) -> object:
        if len(failures) < 2:
            failures.append(1)
            raise sqlite3.OperationalError("disk I/O error")
        return honest(paths)  # type: ignore[arg-type]

    monkeypatch.setattr(tailing, "read_engine", broken)
    monkeypatch.setattr(tailing, "_RETRY_S", 0.01)
    tailer = Tailer(desk.paths, bell.ring, lambda: True)
    tailer.start()
    desk.admit()
    bell.wait_for(2)
    tailer.close()
    assert len(failures) == 2
