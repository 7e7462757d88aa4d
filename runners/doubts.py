"""Answers that look like nonsense, over all slots of one runner: which of them stop for a canary.

1. Each request stops once. If the canary is answered rightly it goes on from its checkpoint, whatever it says then.
2. None stops just after such a canary: a model that says strange things by itself is not asked all the time.
"""

import threading
import time
from typing import Final

from core.errors import StopWork

DOUBT: Final = "doubt"
_QUIET_S: Final = 5.0
_KEPT: Final = 1000


class InDoubt(StopWork):
    """The work stops before what it said last is shown, and goes on when a canary was answered rightly."""

    def __init__(self, sign: str) -> None:
        super().__init__("its answer looks like nonsense", code=DOUBT)
        self.sign = sign


class Doubts:
    """One runner's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped: dict[str, None] = {}
        self._asked_at = float("-inf")
        self._since: float | None = None

    @property
    def since(self) -> float | None:
        """When the first doubt arose that no canary has settled yet, by the monotonic clock."""
        return self._since

    def stops(self, request_id: str) -> bool:
        """Whether a request whose answer shows a sign is to stop for a canary; then one is due."""
        with self._lock:
            now = time.monotonic()
            if request_id in self._stopped or now - self._asked_at < _QUIET_S:
                return False
            self._stopped[request_id] = None
            if len(self._stopped) > _KEPT:
                del self._stopped[next(iter(self._stopped))]
            self._since = now if self._since is None else self._since
            return True

    def settled(self) -> None:
        """A canary was asked."""
        with self._lock:
            if self._since is not None:
                self._since, self._asked_at = None, time.monotonic()
