"""Contents that are not what the record says."""

import sqlite3
from contextlib import closing

import pytest
from desk import Desk, checkpoint, complete

from store import commands
from store.database import Paths
from store.verify import verify


@pytest.fixture
def answered(desk: Desk, paths: Paths) -> Paths:
    """A store with one completed request: `Completed` is its version 4, after two checkpoints."""
    desk.admit()
    claim = desk.claim("gpu")
    desk.writer.run(lambda tx: checkpoint(tx, claim, 5, 0))
    desk.writer.run(lambda tx: checkpoint(tx, claim, 9, 5))
    desk.writer.run(lambda tx: complete(tx, claim, 12, 9))
    return paths


def tamper(paths: Paths, statement: str) -> None:
    with closing(sqlite3.connect(paths.database)) as connection:
        assert connection.execute(statement).rowcount == 1
        connection.commit()


def seq_of(paths: Paths, type_: str, nth: int = 0) -> int:
    with closing(sqlite3.connect(paths.database)) as connection:
        rows = connection.execute("SELECT seq FROM events WHERE type=? ORDER BY seq", (type_,)).fetchall()
    return int(rows[nth][0])


def test_untouched_contents_fit(answered: Paths) -> None:
    assert verify(answered).ok


@pytest.mark.parametrize(
    ("where", "type_", "nth"),
    [
        ("kind='spec'", "Admitted", 0),
        ("kind='chunk' AND n=0", "Checkpointed", 0),
        ("kind='chunk' AND n=5", "Checkpointed", 1),
        ("kind='chunk' AND n=9", "Completed", 0),
    ],
)
@pytest.mark.parametrize("how", ["UPDATE contents SET body = body || x'00' WHERE ", "DELETE FROM contents WHERE "])
def test_what_was_changed_or_deleted_is_named(answered: Paths, how: str, where: str, type_: str, nth: int) -> None:
    tamper(answered, how + where)
    verdict = verify(answered)
    assert verdict.bad_seq == seq_of(answered, type_, nth)
    assert "changed" in str(verdict.problem) or "missing" in str(verdict.problem)


def test_erased_contents_are_not_missed(answered: Paths, desk: Desk) -> None:
    with closing(sqlite3.connect(answered.database)) as connection:
        (request,) = connection.execute("SELECT id FROM requests").fetchone()
    desk.writer.run(lambda tx: commands.erase(tx, request, actor="test"))
    assert verify(answered).ok
