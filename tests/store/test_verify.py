"""Every way of changing the record afterwards is found, and the place is named."""

import sqlite3
from pathlib import Path

import pytest
from desk import Desk

from core import events as ev
from store.database import Paths, write_engine
from store.verify import anchors_file, verify


@pytest.fixture
def written(desk: Desk, paths: Paths) -> Paths:
    """Eleven events of four streams, in order: device, three requests, one of them moved."""
    first = desk.admit()
    claim = desk.take()
    desk.checkpoint(claim, 3)
    desk.complete(claim, 5, first=3)
    second = desk.admit()
    desk.take()
    desk.fault(second)
    desk.admit()
    desk.run(lambda tx: tx.append("device-sim-0", ev.DeviceLost("gone", 2), actor="test"))
    assert [desk.state(request).state for request in (first, second)] == ["completed", "rerouted-cpu"]
    desk.close()
    verdict = verify(paths)
    assert verdict.ok
    assert (verdict.events, verdict.requests) == (11, 3)
    return paths


def tamper(paths: Paths, *statements: str | tuple[str, tuple[object, ...]]) -> None:
    engine = write_engine(paths)
    with engine.begin() as connection:
        for trigger in ("events_no_update", "events_no_delete"):
            connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
        for statement in statements:
            sql, params = statement if isinstance(statement, tuple) else (statement, ())
            connection.exec_driver_sql(sql, params)
    engine.dispose()


COLUMNS = {
    "event_id": "'other'",
    "stream": "stream || 'x'",
    "type": "'FaultSeen'",
    "schema": "0",
    "at_us": "at_us + 1",
    "actor": "'other'",
    "attempt": "coalesce(attempt, 0) + 1",
    "lease_token": "coalesce(lease_token, '') || 'x'",
    "device_epoch": "coalesce(device_epoch, 0) + 1",
    "cause_seq": "coalesce(cause_seq, 0) + 1",
    "data": "replace(data, '\"', ' \"')",
    "hash": "replace(hash, substr(hash, 1, 1), 'x')",
    "version": "version + 100",
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("seq", [1, 4, 11])
def test_a_changed_field(written: Paths, seq: int, column: str) -> None:
    tamper(written, f"UPDATE events SET {column} = {COLUMNS[column]} WHERE seq = {seq}")
    verdict = verify(written)
    assert verdict.bad_seq == seq
    assert verdict.events == seq - 1


@pytest.mark.parametrize("seq", [2, 11])
def test_a_bit_of_the_text(written: Paths, seq: int) -> None:
    engine = write_engine(written)
    with engine.connect() as connection:
        data = connection.exec_driver_sql("SELECT data FROM events WHERE seq = ?", (seq,)).scalar_one().encode()
    engine.dispose()
    for flipped in (0x01, 0x80):
        broken = data[:20] + bytes([data[20] ^ flipped]) + data[21:]
        tamper_again(written, seq, broken)
        verdict = verify(written)
        assert verdict.bad_seq == seq, f"a byte with {flipped:#x} flipped"


def tamper_again(paths: Paths, seq: int, data: bytes) -> None:
    engine = write_engine(paths)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER IF EXISTS events_no_update")
        connection.exec_driver_sql("UPDATE events SET data = CAST(? AS TEXT) WHERE seq = ?", (data, seq))
    engine.dispose()


@pytest.mark.parametrize("seq", [1, 6, 10])
def test_a_deleted_event(written: Paths, seq: int) -> None:
    tamper(written, f"DELETE FROM events WHERE seq = {seq}")
    assert verify(written).bad_seq == seq


def test_a_deleted_event_with_the_rest_moved_up(written: Paths) -> None:
    tamper(
        written,
        "DELETE FROM events WHERE seq = 6",
        *(f"UPDATE events SET seq = {n - 1} WHERE seq = {n}" for n in range(7, 12)),
    )
    assert verify(written).bad_seq == 6


def test_two_events_that_changed_places(written: Paths) -> None:
    tamper(
        written,
        "UPDATE events SET seq = 99 WHERE seq = 4",
        "UPDATE events SET seq = 4 WHERE seq = 5",
        "UPDATE events SET seq = 5 WHERE seq = 99",
    )
    assert verify(written).bad_seq == 4


def test_a_cut_tail_that_the_head_still_knows(written: Paths) -> None:
    tamper(written, "DELETE FROM events WHERE seq > 9")
    verdict = verify(written)
    assert verdict.bad_seq == 10
    assert "tail was cut" in str(verdict.problem)


def cut_cleverly(paths: Paths, last: int) -> None:
    """The tail, the head and the projections, as if the rest had never been."""
    tamper(
        paths,
        f"DELETE FROM events WHERE seq > {last}",
        f"UPDATE head SET seq = {last}, hash = (SELECT hash FROM events WHERE seq = {last})",
        "UPDATE devices SET state='ok', reason=NULL, epoch=1, since_us=(SELECT at_us FROM events WHERE seq=1)",
    )


def test_a_cut_tail_is_found_by_the_anchor(written: Paths) -> None:
    head = verify(written)
    anchors_file(written).write_text(f"{head.events} {head.head}\n")
    assert verify(written).ok
    cut_cleverly(written, 10)
    verdict = verify(written)
    assert verdict.bad_seq == 11
    assert "anchor" in str(verdict.problem)


def test_without_the_anchor_it_would_not_be_found(written: Paths) -> None:
    """Why anchors are written at all."""
    cut_cleverly(written, 10)
    assert verify(written).ok


def test_a_rewritten_history_does_not_match_its_anchor(written: Paths) -> None:
    anchors_file(written).write_text(f"5 {'0' * 64}\n")
    assert verify(written).bad_seq == 5


def test_a_torn_or_strange_line_is_no_anchor(written: Paths) -> None:
    head = verify(written)
    anchors_file(written).write_bytes(
        f"{head.events} {head.head}\n12 {head.head[:30]}\nrubbish\n\n".encode() + b"\xff\xfe 1"
    )
    assert verify(written).ok


ROWS: dict[str, str] = {
    "state": "UPDATE requests SET state = 'completed' WHERE state = 'admitted'",
    "lane": "UPDATE requests SET lane = 'cpu' WHERE state = 'admitted'",
    "running": "UPDATE requests SET running = 1 WHERE state = 'admitted'",
    "owner": "UPDATE requests SET owner = 'thief' WHERE state = 'admitted'",
    "created": "UPDATE requests SET created_us = created_us + 1 WHERE state = 'admitted'",
    "turn": "UPDATE requests SET turn_us = 0 WHERE state = 'admitted'",
    "doc": "UPDATE requests SET doc = replace(doc, '\"max_units\":64', '\"max_units\":65') WHERE state = 'admitted'",
    "deleted": "DELETE FROM requests WHERE state = 'admitted'",
    "added": "INSERT INTO requests SELECT id || 'x', owner, workload, model, state, lane, running, cancel_asked, "
    "version, turn_us, not_before_us, deadline_us, created_us, updated_us, doc FROM requests WHERE state = 'admitted'",
    "device": "UPDATE devices SET state = 'ok'",
    "device epoch": "UPDATE devices SET epoch = 1",
    "device added": "INSERT INTO devices (id, name, simulated, state, epoch, since_us) "
    "SELECT 'other', name, simulated, state, epoch, since_us FROM devices",
    "device deleted": "DELETE FROM devices",
}


@pytest.mark.parametrize("what", ROWS)
def test_a_changed_projection(written: Paths, what: str) -> None:
    tamper(written, ROWS[what])
    verdict = verify(written)
    assert not verdict.ok
    assert "row" in str(verdict.problem)
    assert verdict.bad_seq == 11


@pytest.mark.parametrize(
    "statement",
    ["UPDATE events SET actor = 'x' WHERE seq = 1", "DELETE FROM events WHERE seq = 11", "DELETE FROM events"],
)
def test_the_journal_is_append_only(written: Paths, statement: str) -> None:
    engine = write_engine(written)
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            driver.execute(statement)
    engine.dispose()
    assert verify(written).ok


def test_an_illegal_history_with_a_right_chain(desk: Desk, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by a program that did not ask the machine."""
    from store import projections

    request = desk.admit()
    monkeypatch.setattr(projections, "advance", lambda *_: None)
    desk.run(lambda tx: tx.append(request, ev.Completed(1, 1, "stop", "d"), actor="rogue"))
    monkeypatch.undo()
    desk.close()
    verdict = verify(paths)
    assert verdict.bad_seq == 3
    assert "Completed is not allowed in state admitted" in str(verdict.problem)


def test_an_empty_store(paths: Paths, tmp_path: Path) -> None:
    verdict = verify(paths)
    assert (verdict.ok, verdict.events, verdict.requests, verdict.head) == (True, 0, 0, "")
