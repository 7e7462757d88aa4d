"""Answers that look like nonsense, over all slots of one runner: which of them stop for a canary.

1. Each request stops once for a sign of its own. If the canary is answered rightly it goes on from its checkpoint,
   whatever it says then.
2. None stops just after such a canary: a model that says strange things by itself is not asked all the time.
3. A canary is asked beside nobody, so the others of the worker make way for it, each at the end of its chunk; nothing
   is taken up before it was asked.
4. An engine that cannot go on with an answer stops none: it would be lost. The lane is kept free for a canary a while.
"""

import threading
import time
from typing import Final

from core.errors import StopWork

DOUBT: Final = "doubt"
BESIDE: Final = "beside"
"""The sign of one that shows none, and makes way."""
_QUIET_S: Final = 5.0
_PATIENCE_S: Final = 2.0
"""Others may end by themselves meanwhile."""
_HOLD_S: Final = 10.0
_KEPT: Final = 1000


class InDoubt(StopWork):
    """The work stops before what it said last is shown, and goes on when a canary was answered rightly."""

    def __init__(self, sign: str) -> None:
        super().__init__("its answer looks like nonsense", code=DOUBT)
        self.sign = sign


class Doubts:
    """One runner's. `resumes`: its engine goes on with an answer exactly where it stopped."""

    def __init__(self, *, resumes: bool = True) -> None:
        self.resumes = resumes
        self._lock = threading.Lock()
        self._stopped: dict[str, None] = {}
        self._asked_at = float("-inf")
        self._since: float | None = None

    @property
    def open(self) -> bool:
        """Whether a doubt arose that no canary has settled yet."""
        return self._since is not None

    @property
    def holds(self) -> bool:
        """Whether the lane takes nothing up because of it; for a while only where nobody can be made to stop."""
        since = self._since
        return since is not None and (self.resumes or time.monotonic() - since < _HOLD_S)

    def stops(self, request_id: str) -> bool:
        """Whether a request whose answer shows a sign is to stop for a canary; one is due then, if it stops or not."""
        with self._lock:
            now = time.monotonic()
            if request_id in self._stopped or now - self._asked_at < _QUIET_S:
                return False
            self._stopped[request_id] = None
            if len(self._stopped) > _KEPT:
                del self._stopped[next(iter(self._stopped))]
            self._since = now if self._since is None else self._since
            return self.resumes

    def makes_way(self) -> bool:
        """Whether whoever shows no sign is to stop all the same, so that the canary can be asked."""
        since = self._since
        return self.resumes and since is not None and time.monotonic() - since >= _PATIENCE_S

    def settled(self) -> None:
        """A canary was asked."""
        with self._lock:
            if self._since is not None:
                self._since, self._asked_at = None, time.monotonic()
