"""Group commit: one thread per process writes; many units share one transaction, one fsync, one hold of the gate.

1. A unit is a function of `Tx`; it runs inside a SAVEPOINT, and an error of its own undoes it alone.
2. SQLite undoes the *whole* transaction by itself on a full disk or an I/O error, even inside a savepoint. So after any
   error `in_transaction` is checked; when it is false the batch is void: every unit is answered *not committed*, and
   the connection is replaced.
3. Before COMMIT the head is moved from where this batch found it to where its units took it; when it does not stand
   where it was found, the batch is void too.
4. A unit is answered only after COMMIT. What is not answered may or may not be there; `event_id` tells. After COMMIT
   nothing turns an answer into *not committed* any more.
5. A unit whose future was cancelled before its turn is not run; once it runs, it can no longer be cancelled.
6. The thread outlives everything: a store that cannot be written now is tried again with the next batch.
"""

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from core.errors import FailsoftError, NoSpace, ServiceError
from store import faultpoints
from store.clock import Clock
from store.database import Paths, write_engine
from store.gate import Gate
from store.journal import Head, Tx
from store.returns import Returns

T = TypeVar("T")
Unit = Callable[[Tx], T]
_Job = tuple[Unit[Any], "Future[Any]"]

MAX_BATCH = 64
_GATHER_S: Final = 0.0003
"""A third of a cheap disk's sync: a commit saved is worth more than that, and one caller by itself never waits."""
_UNWRITABLE: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM}
)
_WAITED_FOR: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

log = logging.getLogger("failsoft.writer")


def new_id() -> str:
    """An event id: 12 hex digits of milliseconds, 20 of chance. Ids of one time stay together in their index."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


class Writer:
    """The one way to write. Thread-safe; `close` answers everything that was submitted."""

    def __init__(self, paths: Paths, clock: Clock | None = None) -> None:
        self._paths = paths
        self.clock = clock or Clock()
        self._gate = Gate(paths.gate)
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._returns = Returns()
        self._engine: Engine = write_engine(paths)
        self._connection: sqlite3.Connection | None = _connect(self._engine)
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._closed = False
        self._closing = threading.Lock()
        self._thread.start()

    def submit(self, unit: Unit[T]) -> "Future[T]":
        """Queue a unit; the future is answered after its commit, or with its error."""
        future: Future[T] = Future()
        self._put(unit, future)
        return future

    def commit(self, unit: Unit[T]) -> "asyncio.Future[T]":
        """The same for the running event loop. Cancelling what it answers does not undo the unit."""
        future: Future[T] = Future()
        answer = self._returns.expect(future)
        self._put(unit, future)
        return answer

    def run(self, unit: Unit[T]) -> T:
        """Queue a unit and wait for its commit."""
        return self.submit(unit).result()

    def _put(self, unit: Unit[T], future: "Future[T]") -> None:
        with self._closing:
            if self._closed:
                raise NoSpace("the store is closed")
            self._queue.put((unit, future))

    def close(self) -> None:
        """Finish what is queued, then stop."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        self._engine.dispose()
        self._gate.close()

    def _work(self) -> None:
        running, batch = True, list[_Job]()
        while running:
            job = self._queue.get()
            if len(batch) > 1:  # those who share commits are about to be back: one commit for all of them again
                time.sleep(_GATHER_S)
            batch = []
            while job is not None:
                if job[1].set_running_or_notify_cancel():
                    batch.append(job)
                if len(batch) >= MAX_BATCH or self._queue.empty():
                    break
                job = self._queue.get()
            running = job is not None
            if batch:
                self._commit(batch)
                self._returns.wake()

    def _commit(self, batch: list[_Job]) -> None:
        answers = _Answers()
        try:
            with self._gate.hold():
                try:
                    self._transact(batch, answers)
                except BaseException:
                    if not answers.committed:
                        self._drop_connection()
                    raise
        except BaseException as error:  # noqa: BLE001 -- whatever it is, every caller gets an answer
            reason = _readable(error)
            if answers.committed:
                reason = ServiceError(f"what became of this is unknown ({error}); look before asking again")
            for _unit, future in batch:
                future.set_exception(reason)
            return
        for future, result in answers.done:
            future.set_result(result)
        for future, why in answers.failed:
            future.set_exception(why)

    def _transact(self, batch: list[_Job], answers: "_Answers") -> None:
        if self._connection is None:
            self._engine = write_engine(self._paths)
            self._connection = _connect(self._engine)
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        start = head = Head(*connection.execute("SELECT seq, hash FROM head WHERE id = 1").fetchone())
        for unit, future in batch:
            connection.execute("SAVEPOINT unit")
            try:
                tx = Tx(connection, head, self.clock.now_us(), self.clock.mono_us(), new_id)
                result = unit(tx)
            except BaseException as error:
                if not connection.in_transaction:
                    raise NoSpace(
                        f"not committed: the transaction was undone by SQLite ({error}); {_REMEDY}"
                    ) from error
                connection.execute("ROLLBACK TO unit")
                connection.execute("RELEASE unit")
                answers.failed.append((future, _readable(error)))
                continue
            connection.execute("RELEASE unit")
            head = tx.head
            answers.done.append((future, result))
        faultpoints.hit("writer.before-commit")
        if not connection.in_transaction or not _move_head(connection, start, head):
            (at,) = connection.execute("SELECT seq FROM head WHERE id = 1").fetchone()
            raise NoSpace(f"not committed: the journal's head is at {at}, expected {start.seq}; run `failsoft verify`")
        connection.execute("COMMIT")
        answers.committed = True
        faultpoints.hit("writer.after-commit")

    def _drop_connection(self) -> None:
        """Undo what is open, while the gate is still held, and begin with a new connection next time."""
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._engine.dispose()
        except (sqlite3.Error, DBAPIError) as error:
            log.warning("the connection of a void batch could not be closed: %s", error)
        self._connection = None


class _Answers:
    """What the units of a batch are to be told, once it is committed."""

    def __init__(self) -> None:
        self.done: list[tuple[Future[Any], Any]] = []
        self.failed: list[tuple[Future[Any], BaseException]] = []
        self.committed = False


def _move_head(connection: sqlite3.Connection, start: Head, end: Head) -> bool:
    """Write the head back, once for all units of a batch; False when somebody has moved it."""
    key = (end.seq, end.hash, start.seq, start.hash)
    return connection.execute("UPDATE head SET seq=?, hash=? WHERE id=1 AND seq=? AND hash=?", key).rowcount == 1


def _connect(engine: Engine) -> sqlite3.Connection:
    connection = engine.raw_connection().driver_connection
    assert isinstance(connection, sqlite3.Connection)
    return connection


_REMEDY: Final = "free space in the data directory, or make it writable"


def _readable(error: BaseException) -> BaseException:
    """Storage errors in our own words, with the remedy; everything else unchanged."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(origin, FailsoftError) or not isinstance(origin, sqlite3.Error | OSError):
        return error
    code = getattr(origin, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if isinstance(origin, OSError) or primary in _UNWRITABLE:
        return NoSpace(f"not committed: {origin}; {_REMEDY}")
    if primary in _WAITED_FOR:
        return ServiceError(f"not committed: {origin}; another program holds the database, end it or try again")
    if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return NoSpace(f"not committed: {origin}; the database file is damaged, restore a copy")
    return error
