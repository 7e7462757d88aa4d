"""Group commit: one thread per process writes; many units share one transaction, one fsync, one hold of the gate.

1. A unit is a function of `Tx`; it runs inside a SAVEPOINT, and an error of its own undoes it alone.
2. SQLite undoes the *whole* transaction by itself on a full disk or an I/O error, even inside a savepoint. So after any
   error `in_transaction` is checked; when it is false the batch is void: every unit is answered *not committed*, and
   the connection is replaced.
3. Before COMMIT the head must stand where this batch put it; otherwise the batch is void too.
4. A unit is answered only after COMMIT. What is not answered may or may not be there; `event_id` tells.
"""

import queue
import sqlite3
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from sqlalchemy import Engine

from core.errors import NoSpace
from store import faultpoints
from store.clock import Clock
from store.database import Paths, write_engine
from store.gate import Gate
from store.journal import Tx

T = TypeVar("T")
Unit = Callable[[Tx], T]
_Job = tuple[Unit[Any], "Future[Any]"]

MAX_BATCH = 64


def new_id() -> str:
    """A random event id."""
    return uuid.uuid4().hex


class Writer:
    """The one way to write. Thread-safe; `close` answers everything that was submitted."""

    def __init__(self, paths: Paths, clock: Clock | None = None) -> None:
        self._paths = paths
        self.clock = clock or Clock()
        self._gate = Gate(paths.gate)
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._engine: Engine = write_engine(paths)
        self._connection = self._connect()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._closed = False
        self._thread.start()

    def submit(self, unit: Unit[T]) -> "Future[T]":
        """Queue a unit; the future is answered after its commit, or with its error."""
        if self._closed:
            raise NoSpace("the store is closed")
        future: Future[T] = Future()
        self._queue.put((unit, future))
        return future

    def run(self, unit: Unit[T]) -> T:
        """Queue a unit and wait for its commit."""
        return self.submit(unit).result()

    def close(self) -> None:
        """Finish what is queued, then stop."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            self._engine.dispose()
            self._gate.close()

    def _connect(self) -> sqlite3.Connection:
        connection = self._engine.raw_connection().driver_connection
        assert isinstance(connection, sqlite3.Connection)
        return connection

    def _work(self) -> None:
        running = True
        while running:
            job = self._queue.get()
            batch: list[_Job] = []
            while job is not None:
                batch.append(job)
                if len(batch) >= MAX_BATCH or self._queue.empty():
                    break
                job = self._queue.get()
            running = job is not None
            if batch:
                self._commit(batch)

    def _commit(self, batch: list[_Job]) -> None:
        done: list[tuple[Future[Any], Any]] = []
        failed: list[tuple[Future[Any], BaseException]] = []
        try:
            with self._gate.hold():
                self._transact(batch, done, failed)
        except (sqlite3.Error, OSError) as error:
            self._void(batch, error)
            return
        for future, result in done:
            future.set_result(result)
        for future, reason in failed:
            future.set_exception(reason)

    def _transact(
        self,
        batch: list[_Job],
        done: list[tuple["Future[Any]", Any]],
        failed: list[tuple["Future[Any]", BaseException]],
    ) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        (expected,) = connection.execute("SELECT seq FROM head WHERE id = 1").fetchone()
        for unit, future in batch:
            connection.execute("SAVEPOINT unit")
            try:
                tx = Tx(connection, self.clock.now_us(), self.clock.mono_us(), new_id)
                result = unit(tx)
                tx.finish()
            except BaseException as error:
                if not connection.in_transaction:
                    raise sqlite3.OperationalError(f"the transaction was undone by SQLite: {error}") from error
                connection.execute("ROLLBACK TO unit")
                connection.execute("RELEASE unit")
                failed.append((future, _readable(error)))
                continue
            connection.execute("RELEASE unit")
            expected += tx.appended
            done.append((future, result))
        faultpoints.hit("writer.before-commit")
        (at,) = connection.execute("SELECT seq FROM head WHERE id = 1").fetchone()
        if not connection.in_transaction or at != expected:
            raise sqlite3.OperationalError(f"head is at {at}, expected {expected}; nothing of this batch was committed")
        connection.execute("COMMIT")
        faultpoints.hit("writer.after-commit")

    def _void(self, batch: list[_Job], error: BaseException) -> None:
        """Nothing of the batch was committed: say so to every unit, and start with a new connection."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass
        self._engine.dispose()
        self._engine = write_engine(self._paths)
        try:
            self._connection = self._connect()
        except (sqlite3.Error, NoSpace):
            self._engine = write_engine(self._paths)
            self._connection = self._connect()
        for _unit, future in batch:
            if not future.done():
                future.set_exception(_readable(error))


def _readable(error: BaseException) -> BaseException:
    """Storage errors in our own words; everything else unchanged."""
    if isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError | OSError) and not isinstance(
        error, sqlite3.IntegrityError | sqlite3.ProgrammingError
    ):
        return NoSpace(f"not committed: {error}; free space in the data directory, or make it writable")
    return error
