"""A drain that was asked for while the service runs: runners bring their work to a checkpoint and end, and stay away.

The service itself goes on answering questions. It works again after its next start.
"""

import logging
import sqlite3
import time

from core.policy import Policy
from runners.children import Child
from store.house import draining
from store.journal import Look

log = logging.getLogger("failsoft")


class Drain:
    """The supervisor's hand in it."""

    def __init__(self, children: list[Child], driver: sqlite3.Connection, policy: Policy) -> None:
        self._runners = [child for child in children if child.spec is not None]
        self._driver = driver
        self._policy = policy
        self._since: float | None = None

    def tick(self) -> bool:
        """Look; whether a drain is under way or done."""
        if self._since is None:
            if not draining(Look(self._driver, 0)):
                return False
            log.info("a drain was asked for: running work is brought to a checkpoint, and the runners end")
            self._since = time.monotonic()
            for child in self._runners:
                child.wanted = False
                child.terminate()
        elif time.monotonic() - self._since > self._policy.drain_s:
            for child in self._runners:
                child.kill("service-stopped")
        return True
