"""How fast one runner computes, over all of its requests: whether it is slow, and what it usually does.

1. What is judged is what the engine took; waiting for threads or for the disk is nobody's slowness.
2. While somebody's prompt is computed, the others wait for it: such chunks say nothing.
3. As many count as computed at once as were at any time of the chunk: who ended just before it did has had its share.
4. Only a GPU lane is judged. The CPU lane shares its cores with whatever else the machine does.
"""

import threading
import time

from core import slowness
from core.policy import Policy
from core.slowness import Measured, Spell, Usual
from core.words import Lane


class Speed:
    """One runner's; its slots share it."""

    def __init__(self, lane: Lane, engine: str, policy: Policy) -> None:
        self.engine = engine
        self._judged = lane == "gpu" and policy.slow_factor > 0
        self._policy = policy
        self._usual: Usual | None = None
        self._spell = Spell()
        self._told = False
        self._lock = threading.Lock()
        self._preparing: set[str] = set()
        self._computed: dict[str, int] = {}
        """By request: the most that were computed at once since its last chunk."""
        self._quiet_since = 0.0

    def began(self, request_id: str, usual: Usual | None) -> None:
        """A request is taken up; its prompt comes first. `usual` is what the lane is known to do."""
        with self._lock:
            self._usual = usual if usual is not None and usual.engine == self.engine else None
            self._preparing.add(request_id)

    def ready(self, request_id: str) -> None:
        """Its prompt is computed."""
        with self._lock:
            self._prepared(request_id)
            self._computed[request_id] = 0
            now = len(self._computed)
            self._computed = {one: max(most, now) for one, most in self._computed.items()}

    def ended(self, request_id: str) -> None:
        """Nothing is computed for it any more."""
        with self._lock:
            self._prepared(request_id)
            self._computed.pop(request_id, None)

    def _prepared(self, request_id: str) -> None:
        if request_id in self._preparing:
            self._preparing.discard(request_id)
            self._quiet_since = time.monotonic()

    def chunk(
        self,
        request_id: str,
        units: int,
        took_s: float,
        *,
        began: float,
        context: int,
        threads: int,
        held: bool = False,
    ) -> Measured | None:
        """A chunk was computed since `began`; what it says of the usual rate, or None when it says nothing.

        `held`: its answer is held to a grammar.
        """
        with self._lock:
            at_once = max(1, self._computed.get(request_id, 0))
            if request_id in self._computed:
                self._computed[request_id] = len(self._computed)
            if units == 0 or took_s <= 0 or self._preparing or began < self._quiet_since:
                return None
            seen = Measured(units, took_s, context, threads, at_once, held)
            if not self._judged:
                return seen
            self._spell = slowness.after(self._spell, seen, self._usual, self._policy.slow_factor)
            self._told = self._told and self._spell.chunks > 0
            return seen if self._spell.chunks == 0 else None

    def slow(self) -> Spell | None:
        """The spell, once the lane is slow."""
        with self._lock:
            return self._spell if slowness.slow(self._spell, self._policy.slow_after_s) else None

    def doubtful(self) -> bool:
        """Whether the newest chunk was slow: what was measured since says nothing about good days."""
        with self._lock:
            return self._spell.chunks > 0

    def first(self) -> bool:
        """Whether this is the first time that somebody wants to tell of this spell."""
        with self._lock:
            first, self._told = not self._told, True
            return first
