"""What is done to the data directory from time to time: the WAL copied back, the chain anchored, leftovers swept.

In a thread of its own: it waits for the writer gate, and the main thread never does. What could not be done now is done
the next time.
"""

import contextlib
import logging
import sqlite3
import threading
import time
from typing import Final

from sqlalchemy.exc import DBAPIError

from core.errors import FailsoftError
from runners.children import Child
from runners.keeper import FRESH_S, sweep
from store import snapshots
from store.database import Paths, checkpoint, read_engine, write_engine
from store.gate import Gate
from store.journal import Look
from store.verify import anchor

log = logging.getLogger("failsoft")

_EVERY_S: Final = 20.0


class Upkeep:
    """For one data directory. `children` are those whose unfinished files are left alone."""

    def __init__(self, paths: Paths, children: list[Child]) -> None:
        self._paths = paths
        self._children = children
        self._last = time.monotonic()

    def tick(self) -> bool:
        """Begin when it is time; whether it has begun."""
        if time.monotonic() - self._last < _EVERY_S:
            return False
        self._last = time.monotonic()
        threading.Thread(target=self.run, name="upkeep", daemon=True).start()
        return True

    def run(self, *, last: bool = False) -> None:
        """All of it, now; the last time nobody is left whose files might still get a name."""
        try:
            with contextlib.ExitStack() as stack:
                engine = write_engine(self._paths)
                stack.callback(engine.dispose)
                gate = Gate(self._paths.gate)
                stack.callback(gate.close)
                checkpoint(gate, engine)
                anchor(self._paths)
                self._sweep(last=last)
        except (sqlite3.Error, DBAPIError, OSError, FailsoftError) as error:
            log.warning("no checkpoint now: %s", error)

    def _sweep(self, *, last: bool) -> None:
        runners = {child.id for child in self._children if child.process is not None}
        with read_engine(self._paths).connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            named = snapshots.names(Look(driver, 0))
            sweep(self._paths.snapshots, named, runners, older_than_s=0.0 if last else FRESH_S)
