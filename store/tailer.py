"""Waking readers: one thread per process watches for commits and says how far the journal goes.

`PRAGMA data_version` costs a few microseconds, so it is asked every few milliseconds while anybody listens. The
doorbell only tells readers to look; what they see, they read themselves.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import DBAPIError

from store.database import Paths, read_engine

POLL_S = 0.002
IDLE_POLL_S = 0.05
_RETRY_S = 0.5

log = logging.getLogger("failsoft.tailer")


class Tailer:
    """Calls `ring(seq)` from its own thread whenever the journal has grown; `listening` says how eagerly to look."""

    def __init__(self, paths: Paths, ring: Callable[[int], None], listening: Callable[[], bool]) -> None:
        self._paths = paths
        self._ring = ring
        self._listening = listening
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tailer", daemon=True)

    def start(self) -> None:
        """Begin watching."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        self._seq = -1
        while not self._stop.is_set():
            try:
                self._watch()
            except (sqlite3.Error, DBAPIError) as error:  # out of space or memory: look again, with a new connection
                log.warning("cannot watch the journal now: %s", error)
                self._stop.wait(_RETRY_S)

    def _watch(self) -> None:
        with read_engine(self._paths).connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            version = -1
            while not self._stop.is_set():
                now = driver.execute("PRAGMA data_version").fetchone()[0]
                if now != version:
                    version = now
                    latest = driver.execute("SELECT seq FROM head WHERE id = 1").fetchone()[0]
                    if latest != self._seq:
                        self._seq = latest
                        self._ring(latest)
                time.sleep(POLL_S if self._listening() else IDLE_POLL_S)
