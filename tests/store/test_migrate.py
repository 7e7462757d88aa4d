"""Setting up: whoever comes first, however often, and whenever it dies, the schema is whole or not there."""

import sqlite3
import subprocess
import time
from contextlib import closing

import pytest
from desk import Desk, ask, python

from core.errors import NoSpace
from store import database, tables
from store.database import Paths, migrate

PATIENCE_S = 120
MIGRATE = """
import sys
from pathlib import Path
from store.database import Paths, migrate
import alembic.command
print("ready", flush=True)
sys.stdin.readline()
migrate(Paths(Path(sys.argv[1])))
print("done", flush=True)
"""


def start(paths: Paths, faults: str = "") -> "subprocess.Popen[str]":
    process = python(MIGRATE, str(paths.root), faults=faults, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def let_go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def whole(paths: Paths) -> None:
    names = {row[0] for row in ask(paths, "SELECT name FROM sqlite_master WHERE type='table'")}
    assert names == set(tables.metadata.tables) | {"alembic_version"}
    assert ask(paths, "SELECT id, seq, hash FROM head") == [(1, 0, "")]
    assert len(ask(paths, "SELECT version_num FROM alembic_version")) == 1
    assert ask(paths, "PRAGMA integrity_check") == [("ok",)]


def test_four_at_once_on_an_empty_directory(empty: Paths) -> None:
    processes = [start(empty) for _ in range(4)]
    for process in processes:
        let_go(process)
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    assert outputs == ["done\n"] * 4
    assert [process.returncode for process in processes] == [0] * 4
    whole(empty)


def test_again_changes_nothing(paths: Paths) -> None:
    desk = Desk(paths)
    desk.open_lanes()
    request = desk.admit()
    desk.close()
    migrate(paths)
    desk = Desk(paths)
    assert desk.state(request).state == "admitted"
    desk.close()


def test_killed_while_it_holds_the_gate(empty: Paths) -> None:
    process = start(empty, faults="gate.held=kill")
    let_go(process)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -9
    migrate(empty)
    whole(empty)


@pytest.mark.parametrize("step", range(6))
def test_killed_at_any_moment(empty: Paths, step: int) -> None:
    process = start(empty)
    let_go(process)
    time.sleep(0.012 * step)
    process.kill()
    process.communicate()
    if empty.database.exists():
        # By a connection that may write: in a store's first milliseconds a kill can leave a journal to be rolled back,
        # and a read-only connection may not do that.
        with closing(sqlite3.connect(empty.database)) as connection:
            found = connection.execute("SELECT count(*) FROM sqlite_master WHERE type='table'").fetchone()
        assert found in {(0,), (len(tables.metadata.tables) + 1,)}, "half a schema"
    migrate(empty)
    whole(empty)


@pytest.mark.parametrize("statement", [1, 9, 18])
def test_killed_inside_the_transaction(empty: Paths, statement: int) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from alembic import op
from store.database import Paths, migrate
import alembic.ddl.impl as impl
count, plain = 0, impl.DefaultImpl.execute
def execute(self, *args, **kwargs):
    global count
    count += 1
    if count == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, *args, **kwargs)
impl.DefaultImpl.execute = execute
migrate(Paths(Path(sys.argv[1])))
"""
    process = python(program, str(empty.root), str(statement))
    assert process.wait(PATIENCE_S) == -9
    migrate(empty)
    whole(empty)


def test_a_network_filesystem_is_refused(empty: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "filesystem_of", lambda _path: "nfs4")
    with pytest.raises(NoSpace, match="local disk"):
        migrate(empty)


def test_a_filesystem_is_found_in_the_mount_table(empty: Paths) -> None:
    from pathlib import Path

    assert database.filesystem_of(Path("/proc/self")) == "proc"
    assert database.filesystem_of(empty.root) not in {"unknown", "proc"}
