"""The loop that sends: one at a time, nothing sent twice for a store that cannot be written, and an end at once."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from desk import Desk
from receiver import Receiver

import web.outbox
from core import events as ev
from core.errors import NoSpace
from core.policy import Policy
from store import outbox
from store.outbox import Outbox
from store.reads import async_read_engine
from store.signing import secret_file
from web.outbox import Deliveries

POLICY = Policy(webhook_timeout_s=600.0, webhook_backoff_s=0.01, webhook_backoff_max_s=0.01)
PATIENCE_S = 60.0
Scenario = Callable[[Callable[..., Deliveries]], Awaitable[None]]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path) as made:
        yield made


def run(desk: Desk, scenario: Scenario) -> None:
    """A scenario on an event loop; it gets a maker of loops that send, each in what could be a process of its own."""

    async def whole() -> None:
        engine = async_read_engine(desk.paths)

        def make(writer: Any = None, policy: Policy = POLICY) -> Deliveries:
            return Deliveries(desk.paths, policy, ("127.0.0.1",), writer or desk.writer, Outbox(engine))

        try:
            await scenario(make)
        finally:
            await engine.dispose()

    asyncio.run(whole())


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 -- what it waits for is in a file or in the store
            await asyncio.sleep(0.01)


def cancelled(desk: Desk, count: int, url: str) -> list[str]:
    """Requests that ended at once, each with a notice."""
    ids = [desk.admit(webhook=url) for _ in range(count)]
    for request in ids:
        desk.run(lambda tx, of=request: tx.append(of, ev.Cancelled(), actor="test"))
    return ids


def states(desk: Desk) -> dict[str, int]:
    return dict(desk.ask("SELECT state, count(*) FROM outbox GROUP BY state"))


def keys(receiver: Receiver) -> Counter[str]:
    return Counter(told["webhook-id"] for told in receiver.told())


def test_two_loops_send_nothing_twice_and_one_goes_on_for_the_other(desk: Desk, receiver: Receiver) -> None:
    cancelled(desk, 20, f"{receiver.url}/ok")

    async def scenario(make: Callable[..., Deliveries]) -> None:
        first, second = make(), make()
        first.start()
        second.start()
        await eventually(lambda: states(desk) == {"done": 20})
        await first.close()
        await asyncio.to_thread(cancelled, desk, 5, f"{receiver.url}/ok")
        await eventually(lambda: states(desk) == {"done": 25})
        await second.close()

    run(desk, scenario)
    assert len(keys(receiver)) == 25
    assert set(keys(receiver).values()) == {1}
    assert desk.verify().ok


class Full:
    """A writer whose disk is full for some time."""

    def __init__(self, desk: Desk, times: int) -> None:
        self.clock = desk.writer.clock
        self.left = times
        self._commit = desk.writer.commit

    async def commit(self, unit: Any) -> Any:
        if self.left:
            self.left -= 1
            raise NoSpace("not committed: the disk is full")
        return await self._commit(unit)


def test_a_full_disk_makes_nobody_be_told_again(
    desk: Desk, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web.outbox, "_AGAIN_S", 0.01)
    cancelled(desk, 1, f"{receiver.url}/ok")
    writer = Full(desk, 20)

    async def scenario(make: Callable[..., Deliveries]) -> None:
        loop = make(writer)
        loop.start()
        await eventually(lambda: states(desk) == {"done": 1})
        await loop.close()

    run(desk, scenario)
    assert writer.left == 0
    assert list(keys(receiver).values()) == [1]


def test_ending_breaks_off_and_the_next_one_begins_again(desk: Desk, receiver: Receiver) -> None:
    cancelled(desk, 3, f"{receiver.url}/hang")

    async def scenario(make: Callable[..., Deliveries]) -> None:
        for calls in (2, 4):  # two of the three at once: they go to one target
            loop = make()
            loop.start()
            await eventually(lambda wanted=calls: len(receiver.told()) == wanted)
            async with asyncio.timeout(PATIENCE_S):
                await loop.close()

    run(desk, scenario)
    assert desk.ask("SELECT state, tries FROM outbox") == [("waiting", 0)] * 3
    assert set(keys(receiver).values()) == {2}


def test_without_a_usable_secret_nothing_is_sent_until_there_is_one(
    desk: Desk, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(web.outbox, "_RECHECK_S", 0.01)
    file = secret_file(desk.paths)
    file.write_text("nothing")
    file.chmod(0o600)
    cancelled(desk, 1, f"{receiver.url}/ok")

    async def scenario(make: Callable[..., Deliveries]) -> None:
        loop = make()
        loop.start()
        await eventually(lambda: "delete the file" in caplog.text)
        assert states(desk) == {"waiting": 1}
        file.unlink()
        await eventually(lambda: states(desk) == {"done": 1})
        await loop.close()

    run(desk, scenario)
    assert list(keys(receiver).values()) == [1]


def test_a_receiver_is_not_asked_before_it_wants_to_be_nor_after_the_longest_pause(
    desk: Desk, receiver: Receiver
) -> None:
    """It wants an hour; once that is allowed, and once a tenth of a second is the longest pause."""
    (request,) = cancelled(desk, 1, f"{receiver.url}/later/3600")
    pauses = {"webhook_backoff_s": 0.01, "webhook_timeout_s": 600.0}

    async def scenario(make: Callable[..., Deliveries]) -> None:
        patient = make(policy=Policy(**pauses, webhook_backoff_max_s=86400.0))
        patient.start()
        await eventually(lambda: desk.ask("SELECT tries FROM outbox") == [(1,)])
        await patient.close()
        ((next_us,),) = desk.ask("SELECT next_us FROM outbox")
        assert 3500e6 < next_us - desk.writer.clock.now_us() <= 3600e6
        await asyncio.to_thread(cancelled, desk, 1, f"{receiver.url}/later/3600")
        hasty = make(policy=Policy(**pauses, webhook_backoff_max_s=0.1))
        hasty.start()
        await eventually(lambda: states(desk) == {"waiting": 1, "done": 1})
        await hasty.close()

    run(desk, scenario)
    assert desk.ask("SELECT state FROM outbox WHERE request_id=?", request) == [("waiting",)]
    assert sorted(keys(receiver).values()) == [1, 2]


def test_what_ended_long_ago_is_forgotten_in_bounded_steps(
    desk: Desk, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FORGET", 3)
    ids = cancelled(desk, 8, f"{receiver.url}/ok")

    async def scenario(make: Callable[..., Deliveries]) -> None:
        keeping = make()
        keeping.start()
        await eventually(lambda: states(desk) == {"done": 8})
        await keeping.close()
        forgetful = make(policy=Policy(webhook_keep_s=0.001))
        forgetful.start()
        await eventually(lambda: states(desk) == {})
        await forgetful.close()

    run(desk, scenario)
    assert all(desk.types(request).count("EffectDelivered") == 1 for request in ids)
    assert set(keys(receiver).values()) == {1}
