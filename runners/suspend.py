"""Has the machine slept? Told apart by clocks: one goes on while it sleeps, another stands still.

1. The clock since boot counts sleep and the monotonic one does not: what the first is ahead is how long it slept.
2. A virtual machine that was stopped from outside sees neither go on, and its wall clock jumps when somebody sets it
   right. A jump ahead counts as sleep from `JUMP_US` on; it may be no more than a clock that was set, and then a device
   was tried once for nothing.
3. A clock that is set back says nothing, and nothing here is ever negative.
"""

import logging
from typing import Final

from store.clock import Clock

log = logging.getLogger("failsoft")

NOTICED_US: Final = 1_000_000
JUMP_US: Final = 10_000_000


class Sleep:
    """What the clocks said at the last look."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen = self._now()
        self._woke_us: int | None = None

    def _now(self) -> tuple[int, int, int]:
        return self._clock.mono_us(), self._clock.boot_us(), self._clock.now_us()

    def look(self) -> int:
        """Microseconds that the machine slept since the last look; 0 when it did not."""
        before, self._seen = self._seen, self._now()
        mono, boot, wall = (now - then for now, then in zip(self._seen, before, strict=True))
        slept = boot - mono if boot - mono >= NOTICED_US else wall - mono if wall - mono >= JUMP_US else 0
        if slept:
            self._woke_us = self._seen[0]
            log.warning("the machine slept for %.0f s: its devices are tried before they take work again", slept / 1e6)
        return slept

    def awake_s(self) -> float:
        """Seconds since it woke; infinite when it has not slept."""
        return float("inf") if self._woke_us is None else max(0, self._clock.mono_us() - self._woke_us) / 1e6
