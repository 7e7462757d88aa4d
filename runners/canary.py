"""The canary: a short prompt whose answer was recorded in good days, asked of a lane between its requests.

1. It is asked once a model is loaded, while its device's breaker is half-open, and from time to time while the lane
   works; never beside a request. A lane that is never idle takes nothing up until it is, once that is overdue; if that
   takes too long it works on. An answer that looks like nonsense stops for one at once (`runners.doubts`).
2. Counting on is what every model can do and no broken one does: a wrong answer means that nothing this worker
   computes is to be trusted, so it ends. A canary that never comes back ends it too, as any work that hangs does.
3. It leaves nothing behind but what the record says of it.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from core.canary import Verdict
from core.chunks import chunk_size
from core.errors import EngineFault
from core.policy import Policy
from runners.corebook import CoreBook
from runners.devices.base import Device
from runners.doubts import Doubts
from runners.engines.base import GenerateWork, Loaded, Ready, Said, Sampling
from runners.pulse import Phase
from store import breakers, laneviews
from store.claims import Owner
from store.journal import Sees, Tx
from store.models.prompt_side import PromptSide
from store.writer import Writer

log = logging.getLogger("failsoft.runner")

PROMPT: Final = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,"
UNITS: Final = 8
_LATE: Final = 2
"""So many times `canary_every_s` without one is too long."""
_HOLD_S: Final = 10.0
"""How long a lane is kept free for it in a row."""


class Canary:
    """One runner's. `beat` is its sign of life; the first canary belongs to loading."""

    def __init__(
        self,
        owner: Owner,
        writer: Writer,
        policy: Policy,
        side: PromptSide,
        *,
        device: Device | None,
        cores: CoreBook | None,
        fixed_threads: int | None,
        beat: Callable[[Phase], None],
        doubts: Doubts,
    ) -> None:
        self._doubts = doubts
        self._owner = owner
        self._writer = writer
        self._policy = policy
        self._work = GenerateWork(
            prompt=side.text_ids(PROMPT),
            done=(),
            max_units=UNITS,
            eos=side.eos,
            sampling=Sampling(temperature=0.0),
            said=Said(prompt=PROMPT),
        )
        self._host = CanaryHost(device, cores, fixed_threads, lambda: beat("busy" if self._asked_at else "loading"))
        self._asked_at: float | None = None
        self._worked = False

    def worked(self) -> None:
        """The lane has worked on something; who does not work needs no canary."""
        self._worked = True

    def overdue(self) -> bool:
        """Whether it should have been asked long ago, and the lane is worth keeping free for it."""
        if self._doubts.holds:
            return True
        if self._asked_at is None or not self._worked:
            return False
        too_long_s = _LATE * self._policy.canary_every_s
        late_s = time.monotonic() - self._asked_at - too_long_s
        return late_s >= 0 and late_s % (too_long_s + _HOLD_S) < _HOLD_S

    def due(self, look: Sees) -> bool:
        """Whether to ask now."""
        if self._asked_at is None or self._doubts.open:
            return True
        if self._worked and time.monotonic() - self._asked_at >= self._policy.canary_every_s:
            return True
        found = breakers.breaker_of(look, self._owner.device)
        return found is not None and found.state == "half-open"

    def ask(self, loaded: Loaded) -> Verdict:
        """Ask, and write down what is to be kept. Raises `DeviceFault` when the device itself is gone."""
        began = time.monotonic()
        units = self._answer(loaded)
        took_us = int((time.monotonic() - began) * 1e6)
        self._asked_at, self._worked = time.monotonic(), False
        self._doubts.settled()
        owner, policy = self._owner, self._policy

        def unit(tx: Tx) -> Verdict:
            row = laneviews.lane_row(tx, owner.lane, owner.model)
            if row is None:
                return "right"  # the lane is gone, and so is whoever wanted to know
            path = laneviews.path_of(tx, row)
            return breakers.answered(tx, owner.device, path, units, policy, runner=owner.runner, took_us=took_us)

        verdict = self._writer.run(unit)
        if verdict == "wrong":
            log.error("the canary was answered wrongly: nothing that this worker computes is to be trusted")
        elif verdict == "slow":
            log.error("the canary was answered rightly, and far too slowly: this worker begins anew")
        return verdict

    def _answer(self, loaded: Loaded) -> tuple[int, ...]:
        units: list[int] = []
        try:
            sequence = loaded.begin(self._work, self._host)
            try:
                for chunk in sequence:
                    units += chunk.units
                    if chunk.end is not None:
                        break
            finally:
                sequence.close()
                self._host.done()
        except EngineFault as error:
            log.error("the canary was not answered: %s", error)  # noqa: TRY400 -- the message says it all
            return ()
        return tuple(units)


class CanaryHost:
    """`runners.engines.base.Host` for work that belongs to no request."""

    def __init__(
        self, device: Device | None, cores: CoreBook | None, fixed_threads: int | None, beat: Callable[[], None]
    ) -> None:
        self._device = device
        self._cores = cores
        self._fixed = fixed_threads
        self._beat = beat

    def pulse(self, units: int) -> None:  # noqa: ARG002 -- the protocol tells the size of the step
        """A sign of life; raises what the device has to say."""
        self._beat()
        if self._device is not None:
            self._device.check()

    def threads(self) -> int:
        """A grant of cores, waiting until there is one."""
        if self._cores is None:
            return 1
        return self._cores.wait(self._fixed, lambda: self.pulse(0))

    def chunk_size(self, done: int) -> int:
        """All of it."""
        return chunk_size(done, UNITS)

    def stretch(self, done: int) -> int:
        """One chunk."""
        return self.chunk_size(done)

    def ready(self, how: Ready) -> None:
        """Nobody asked."""

    def done(self) -> None:
        """Give the cores back."""
        if self._cores is not None:
            self._cores.release()
