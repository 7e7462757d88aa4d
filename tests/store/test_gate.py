"""The writer gate between processes: nothing is locked, nothing is lost, and a stopped holder can be found."""

import os
import signal
import subprocess
import threading
import time
from itertools import groupby
from pathlib import Path

import pytest
from desk import Desk, ask, python

from core import events as ev
from store import database
from store.database import Paths, checkpoint, read_engine, write_engine
from store.gate import Gate
from store.verify import verify
from store.writer import Writer

PATIENCE_S = 120.0
EVENTS = 300
WRITER = """
import sys
from pathlib import Path
from core import events as ev
from store.database import Paths
from store.writer import Writer
writer = Writer(Paths(Path(sys.argv[1])))
print("ready", flush=True)
sys.stdin.readline()
def note(n):
    stream = "shared" if n % 3 == 0 else f"own-{sys.argv[2]}"
    name = f"{sys.argv[2]}-{n}"
    return lambda tx: tx.append(stream, ev.ServiceStopped(name), actor="test", event_id=name).seq
print(*[writer.run(note(n)) for n in range(int(sys.argv[3]))])
writer.close()
"""


def start(paths: Paths, name: str, count: int = EVENTS, faults: str = "") -> "subprocess.Popen[str]":
    process = python(
        WRITER, str(paths.root), name, str(count), faults=faults, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def let_go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def eventually(look: object, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.005)


def test_six_writers_a_reader_and_checkpoints(paths: Paths) -> None:
    writers = [start(paths, f"w{n}") for n in range(6)]
    stop = threading.Event()
    trouble: list[BaseException] = []
    seen: list[int] = []
    truncated: list[bool] = []

    def poll() -> None:
        with read_engine(paths).connect() as connection:
            while not stop.is_set():
                count, last = connection.exec_driver_sql("SELECT count(*), max(seq) FROM events").one()
                connection.rollback()
                assert count == (last or 0), "a reader saw a gap"
                seen.append(count)

    def copy() -> None:
        gate, engine = Gate(paths.gate), write_engine(paths)
        while not stop.is_set():
            checkpoint(gate, engine)
            truncated.append(True)
            stop.wait(0.02)
        engine.dispose()
        gate.close()

    def guarded(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 -- told by the test
            trouble.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (poll, copy)]
    for thread in threads:
        thread.start()
    for process in writers:
        let_go(process)
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in writers]
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [process.returncode for process in writers] == [0] * 6
    assert trouble == []
    assert truncated
    answered = sorted(int(seq) for out in outputs for seq in out.split())
    assert answered == list(range(1, 6 * EVENTS + 1))
    rows = ask(paths, "SELECT stream, version FROM events ORDER BY stream, version")
    for _stream, versions in groupby(rows, key=lambda row: row[0]):
        numbers = [row[1] for row in versions]
        assert numbers == list(range(1, len(numbers) + 1))
    assert verify(paths).ok


def test_a_long_reader_does_not_keep_writers_waiting_for_a_checkpoint(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint does what it can and lets go, however patient others are; the reader sees what it saw."""
    monkeypatch.setattr(database, "BUSY_MS", 1_000_000)
    desk = Desk(paths)
    desk.run(lambda tx: tx.append("service", ev.ServiceStopped("a"), actor="test"))
    gate, engine = Gate(paths.gate), write_engine(paths)
    with read_engine(paths).connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute("BEGIN")
        assert driver.execute("SELECT count(*) FROM events").fetchone() == (1,)
        desk.run(lambda tx: tx.append("service", ev.ServiceStopped("b"), actor="test"))
        with engine.connect() as patient:
            waits = patient.exec_driver_sql("PRAGMA busy_timeout").scalar()
        done = threading.Event()

        def copy() -> None:
            checkpoint(gate, engine)
            done.set()

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert done.is_set()
        assert driver.execute("SELECT count(*) FROM events").fetchone() == (1,)
        driver.execute("COMMIT")
        assert driver.execute("SELECT count(*) FROM events").fetchone() == (2,)
    with engine.connect() as patient:
        assert patient.exec_driver_sql("PRAGMA busy_timeout").scalar() == waits
    checkpoint(gate, engine)
    assert Path(f"{paths.database}-wal").stat().st_size == 0
    engine.dispose()
    gate.close()
    desk.close()
    assert verify(paths).ok


def test_a_stopped_holder_is_named_and_its_end_frees_the_others(paths: Paths) -> None:
    stopped = start(paths, "stopped", 5, faults="gate.held=stop@3")
    other = start(paths, "other", 5)
    watch = Gate(paths.gate)
    try:
        let_go(stopped)
        eventually(lambda: (h := watch.holder()) is not None and h.pid == stopped.pid and h.count == 3, "the holder")
        eventually(lambda: _state(stopped.pid) == "T", "the process to stop")
        let_go(other)
        assert not watch.free()
        assert other.poll() is None
        assert ask(paths, "SELECT count(*) FROM events") == [(2,)]
    finally:
        os.kill(stopped.pid, signal.SIGKILL)
    out, _ = other.communicate(timeout=PATIENCE_S)
    assert other.returncode == 0
    assert [int(seq) for seq in out.split()] == [3, 4, 5, 6, 7]
    stopped.communicate()
    assert watch.holder() is None
    assert watch.free()
    watch.close()
    kept = [row[0] for row in ask(paths, "SELECT event_id FROM events ORDER BY seq")]
    assert kept == ["stopped-0", "stopped-1", *(f"other-{n}" for n in range(5))]
    assert verify(paths).ok


def test_a_holder_stopped_inside_its_transaction_leaves_nothing_half_written(paths: Paths) -> None:
    stopped = start(paths, "stopped", 5, faults="writer.before-commit=stop@2")
    let_go(stopped)
    eventually(lambda: _state(stopped.pid) == "T", "the process to stop")
    os.kill(stopped.pid, signal.SIGKILL)
    stopped.communicate()
    writer = Writer(paths)
    assert writer.run(lambda tx: tx.append("service", ev.ServiceStopped("after"), actor="test").seq) == 2
    writer.close()
    assert verify(paths).ok


def test_each_user_excludes_the_others_in_one_process(tmp_path: Path) -> None:
    first, second = Gate(tmp_path / "lock"), Gate(tmp_path / "lock")
    with first.hold():
        assert not second.free()
        holder = second.holder()
        assert holder is not None
        assert (holder.pid, holder.count) == (os.getpid(), 1)
    assert second.free()
    assert second.holder() is None
    with second.hold():
        pass
    with first.hold():
        again = second.holder()
        assert again is not None
        assert again.count == 2, "each hold has a number of its own"
    first.close()
    second.close()


def test_an_error_inside_lets_go(tmp_path: Path) -> None:
    first, second = Gate(tmp_path / "lock"), Gate(tmp_path / "lock")
    with pytest.raises(KeyError), first.hold():
        raise KeyError
    assert second.free()
    first.close()
    second.close()


def test_a_gate_file_that_cannot_be_written_still_locks_and_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    first, second = Gate(tmp_path / "lock"), Gate(tmp_path / "lock")
    monkeypatch.setattr(os, "pwrite", full)
    with first.hold():
        assert not second.free()
    assert second.free()
    first.close()
    second.close()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
