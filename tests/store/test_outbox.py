"""A notice is there with its event or not at all, is sent in order, and is done once."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from desk import Desk, HandClock, ask, python

from core import events as ev
from core.errors import Conflict, Malformed, NotFound
from core.words import Lane
from store import commands, laneviews, outbox
from store.database import Paths, migrate, write_engine
from store.outbox import Notice, Outbox, Turn
from store.reads import async_read_engine
from store.settings import load

URL = "https://hook.example:8443/in?token=geheim"
PATIENCE_S = 60


def heads(paths: Paths, targets: tuple[str, ...] = (), requests: tuple[str, ...] = ()) -> list[Notice]:
    async def read() -> list[Notice]:
        engine = async_read_engine(paths)
        try:
            return await Outbox(engine).heads(targets, requests)
        finally:
            await engine.dispose()

    return asyncio.run(read())


def finished(desk: Desk, lane: Lane = "gpu", **changes: Any) -> str:
    request = desk.admit(**({"webhook": URL} | changes))
    desk.complete(desk.take(lane), 3)
    return request


def test_who_does_not_ask_is_not_told(desk: Desk) -> None:
    finished(desk, webhook=None)
    assert desk.ask("SELECT count(*) FROM outbox") == [(0,)]


def test_the_end_is_told_without_a_word_of_the_text(desk: Desk) -> None:
    request = finished(desk, body={"prompt": "hello"}, tokens=tuple(b"hello"))
    assert desk.types(request) == ["Admitted", "Started", "Completed"]
    (notice,) = heads(desk.paths)
    assert (notice.key, notice.request_id, notice.type) == (f"{request}-0-3", request, "request.completed")
    assert (notice.url, notice.target, notice.tries) == (URL, "https://hook.example:8443", 0)
    told = msgspec.json.decode(notice.payload)
    assert (told["type"], told["data"]["state"], told["data"]["units"]) == ("request.completed", "completed", 3)
    assert "abc" not in notice.payload  # the answer
    assert "hello" not in notice.payload
    assert "geheim" not in notice.payload
    assert "geheim" not in str(desk.ask("SELECT data FROM events"))


def test_event_and_notice_are_one(desk: Desk) -> None:
    request = desk.admit(webhook=URL)

    def broken(tx: Any) -> None:
        tx.append(request, ev.Cancelled(), actor="test")
        assert tx.execute("SELECT count(*) FROM outbox").fetchone() == (1,)
        raise ValueError("after all")

    with pytest.raises(ValueError, match="after all"):
        desk.run(broken)
    assert desk.types(request) == ["Admitted"]
    assert desk.ask("SELECT count(*) FROM outbox") == [(0,)]


def test_a_move_and_a_way_back_are_told_in_order(desk: Desk) -> None:
    request = desk.admit(webhook=URL)
    claim = desk.take()
    desk.checkpoint(claim, 2)
    desk.fault(request)
    desk.run(lambda tx: tx.append(request, ev.Returned("asked", 2), actor="test"))
    desk.run(lambda tx: commands.cancel(tx, request, actor="test"))
    rows = desk.ask("SELECT type FROM outbox ORDER BY id")
    assert rows == [("request.rerouted",), ("request.returned",), ("request.cancelled",)]
    sent = []
    while found := heads(desk.paths):
        assert len(found) == 1, "of one request only the next one"
        sent.append(found[0].type)
        assert desk.run(lambda tx, notice=found[0]: outbox.delivered(tx, notice))
    assert sent == ["request.rerouted", "request.returned", "request.cancelled"]
    assert desk.types(request).count("EffectDelivered") == 3
    assert desk.verify().ok


def test_sent_to_the_cpu_lane_at_once_is_told(desk: Desk) -> None:
    desk.run(lambda tx: laneviews.set_serving(tx, "gpu", "null", "device-lost", actor="test"))
    desk.admit(webhook=URL)
    assert [notice.type for notice in heads(desk.paths)] == ["request.rerouted"]


def test_a_resumable_error_and_its_second_end_have_keys_of_their_own(desk: Desk) -> None:
    request = desk.admit(webhook=URL, failover="boundary")
    desk.checkpoint(desk.take(), 2)
    desk.fault(request)
    assert desk.state(request).state == "resumable-error"
    desk.run(lambda tx: commands.resume(tx, request, "start", None, actor="test"))
    desk.complete(desk.take(), 3)
    version = desk.state(request).version
    rows = desk.ask("SELECT type, key FROM outbox ORDER BY id")
    assert rows == [("request.failed", f"{request}-0-5"), ("request.completed", f"{request}-1-{version}")]


def test_delivered_is_recorded_once(desk: Desk) -> None:
    request = finished(desk)
    (notice,) = heads(desk.paths)
    assert desk.run(lambda tx: outbox.delivered(tx, notice)) is True
    assert desk.run(lambda tx: outbox.delivered(tx, notice)) is False
    last = desk.events(request)[-1].event
    assert last == ev.EffectDelivered(f"{request}-0-3", "webhook request.completed")
    assert desk.types(request).count("EffectDelivered") == 1
    assert desk.state(request).state == "completed"
    assert heads(desk.paths) == []
    assert desk.verify().ok


def test_a_failed_attempt_counts_once_and_waits(desk: Desk) -> None:
    finished(desk)
    (notice,) = heads(desk.paths)
    for _ in range(2):  # the second is what a writer does that does not know whether the first was committed
        desk.run(lambda tx: outbox.failed(tx, notice, "HTTP 500", 60.0))
    (again,) = heads(desk.paths)
    assert (again.tries, again.key, again.payload) == (1, notice.key, notice.payload)
    assert again.next_us >= notice.next_us + 60_000_000


def test_what_is_given_up_holds_up_nothing(desk: Desk) -> None:
    request = desk.admit(webhook=URL)
    desk.take()
    desk.fault(request)
    desk.run(lambda tx: commands.cancel(tx, request, actor="test"))
    (first,) = heads(desk.paths)
    desk.run(lambda tx: outbox.failed(tx, first, "HTTP 410", None))
    (second,) = heads(desk.paths)
    assert (first.type, second.type) == ("request.rerouted", "request.cancelled")
    dead = desk.ask("SELECT type, error, ended_us IS NOT NULL FROM outbox WHERE state='dead'")
    assert dead == [("request.rerouted", "HTTP 410", 1)]
    assert "EffectDelivered" not in desk.types(request)


def test_full_targets_and_requests_under_way_are_left_out(desk: Desk) -> None:
    slow = finished(desk, webhook="http://slow.example/a")
    other = finished(desk, webhook="http://other.example/a")
    third = finished(desk, webhook="http://other.example/b")
    assert [n.request_id for n in heads(desk.paths)] == [slow, other, third]
    assert [n.request_id for n in heads(desk.paths, ("http://slow.example",))] == [other, third]
    assert [n.request_id for n in heads(desk.paths, ("http://slow.example",), (other,))] == [third]


def test_erasing_takes_url_and_notices_along(desk: Desk) -> None:
    request = finished(desk)
    (notice,) = heads(desk.paths)
    kept = finished(desk)
    desk.run(lambda tx: commands.erase(tx, request, actor="test"))
    assert [n.request_id for n in heads(desk.paths)] == [kept]
    assert desk.ask("SELECT count(*) FROM contents WHERE request_id=?", request) == [(0,)]
    assert desk.ask("SELECT count(*) FROM outbox WHERE request_id=?", request) == [(0,)]
    assert desk.run(lambda tx: outbox.delivered(tx, notice)) is False, "it was on its way meanwhile"
    assert desk.types(request)[-1] == "ContentErased"
    assert desk.verify().ok


def test_a_store_of_before_gets_its_outbox(empty: Paths) -> None:
    """Set up as the version before did, used, and brought up to date: nothing of it changes."""
    root = Path(outbox.__file__).parent.parent
    config = Config()
    config.set_main_option("script_location", str(root / "migrations"))
    engine = write_engine(empty)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        connection.exec_driver_sql("INSERT INTO service (key, value) VALUES ('kept', 'yes')")
    engine.dispose()
    assert ask(empty, "SELECT name FROM sqlite_master WHERE name LIKE '%outbox%'") == []
    migrate(empty)
    assert ask(empty, "SELECT value FROM service WHERE key='kept'") == [("yes",)]
    desk = Desk(empty)
    desk.open_lanes()
    finished(desk)
    desk.close()
    assert [notice.type for notice in heads(empty)] == ["request.completed"]


@pytest.mark.parametrize("entry", ["10.0.0.1/8", "http://hook.lan", "127.1"])
def test_a_setting_that_lists_nothing_is_refused_by_name(tmp_path: Path, entry: str) -> None:
    file = tmp_path / "failsoft.toml"
    file.write_text(f'webhook_hosts = ["hook.lan", "{entry}"]\n')
    with pytest.raises(Malformed, match=f"webhook_hosts: '{entry}' is neither a name nor a network"):
        load(file, {})
    file.write_text('webhook_hosts = ["hook.lan", "10.0.0.0/8"]\n')
    assert load(file, {}).webhook_hosts == ("hook.lan", "10.0.0.0/8")


def test_the_next_ones_are_found_by_their_index(desk: Desk) -> None:
    plan = desk.ask("EXPLAIN QUERY PLAN SELECT key FROM outbox WHERE state='waiting' ORDER BY next_us, id LIMIT 64")
    assert "ix_outbox_waiting" in str(plan)
    assert "TEMP B-TREE" not in str(plan)


def test_one_has_the_turn_until_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "outbox.lock"
    program = "import sys; from pathlib import Path; from store.outbox import Turn\n"
    program += "turn = Turn(Path(sys.argv[1])); print(turn.take(), flush=True); sys.stdin.read()"
    other = python(program, str(file), stdin=-1, stdout=-1)
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == "True\n"
    turn = Turn(file)
    assert turn.take() is False
    other.send_signal(signal.SIGKILL)
    other.wait(PATIENCE_S)
    assert turn.take() is True
    assert turn.take() is True
    turn.close()
    other.stdout.close()
    other.stdin.close()


def ended(desk: Desk, before_us: int) -> list[int]:
    async def read() -> list[int]:
        engine = async_read_engine(desk.paths)
        try:
            return await Outbox(engine).ended(before_us)
        finally:
            await engine.dispose()

    return asyncio.run(read())


def test_what_was_given_up_can_be_sent_again_under_its_key(desk: Desk) -> None:
    finished(desk)
    (notice,) = heads(desk.paths)
    desk.run(lambda tx: outbox.failed(tx, notice, "HTTP 500", None))
    assert heads(desk.paths) == []
    for _ in range(2):
        row = desk.run(lambda tx: outbox.resend(tx, notice.key))
        assert (row["state"], row["tries"], row["ended_us"]) == ("waiting", 0, None)
    (again,) = heads(desk.paths)
    assert (again.key, again.payload, again.url, again.tries) == (notice.key, notice.payload, notice.url, 0)
    assert desk.run(lambda tx: outbox.delivered(tx, again))
    with pytest.raises(Conflict, match="was taken"):
        desk.run(lambda tx: outbox.resend(tx, notice.key))
    with pytest.raises(NotFound, match="GET /api/webhooks"):
        desk.run(lambda tx: outbox.resend(tx, "nobody"))
    assert desk.verify().ok


def test_one_that_waits_is_sent_at_once_and_its_attempts_count_on(desk: Desk) -> None:
    finished(desk)
    (notice,) = heads(desk.paths)
    desk.run(lambda tx: outbox.failed(tx, notice, "HTTP 500", 3600.0))
    before = heads(desk.paths)[0]
    desk.run(lambda tx: outbox.resend(tx, notice.key))
    (after,) = heads(desk.paths)
    assert after.next_us <= before.next_us - 3000_000_000
    assert after.tries == 1


def test_one_that_was_erased_is_not_sent_again(desk: Desk) -> None:
    request = finished(desk)
    (notice,) = heads(desk.paths)
    desk.run(lambda tx: outbox.failed(tx, notice, "HTTP 410", None))
    desk.run(lambda tx: commands.erase(tx, request, actor="test"))
    with pytest.raises(NotFound):
        desk.run(lambda tx: outbox.resend(tx, notice.key))


def test_old_ones_are_forgotten_unless_they_are_to_be_sent(timed: Desk, clock: HandClock) -> None:
    for _ in range(4):
        finished(timed)
    taken, dead, again, waits = heads(timed.paths)
    timed.run(lambda tx: outbox.delivered(tx, taken))
    timed.run(lambda tx: outbox.failed(tx, dead, "HTTP 410", None))
    timed.run(lambda tx: outbox.failed(tx, again, "HTTP 410", None))
    clock.go(10)
    assert ended(timed, clock.now_us() - 11_000_000) == []
    found = ended(timed, clock.now_us() - 10_000_000)
    assert len(found) == 3
    timed.run(lambda tx: outbox.resend(tx, again.key))
    timed.run(lambda tx: outbox.forget(tx, found))
    left = {row[0] for row in timed.ask("SELECT key FROM outbox")}
    assert left == {again.key, waits.key}
    assert timed.types(taken.request_id).count("EffectDelivered") == 1, "the record of it stays"
    assert timed.verify().ok
