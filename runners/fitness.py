"""Whether a worker is fit to take work up: what computes is still there, and canaries are answered rightly.

Asked only while nothing is worked on. One that is not fit ends, with an exit code that says why.
"""

import logging
import threading
from typing import Final

from core.errors import DeviceFault, EngineFault, NoSpace
from runners import stops
from runners.canary import Canary
from runners.endings import Endings
from runners.engines.base import Loaded
from store.journal import Sees

log = logging.getLogger("failsoft.runner")

_UNFIT: Final = {"wrong": stops.GARBAGE, "slow": stops.SLOW}


class Fitness:
    """One worker's. `exit` is the code to end with, once it is not fit."""

    def __init__(self, loaded: Loaded, canary: Canary, endings: Endings, draining: threading.Event) -> None:
        self.canary = canary
        self.exit: int | None = None
        self._loaded = loaded
        self._endings = endings
        self._draining = draining

    def seen(self, look: Sees) -> bool:
        """Whether it is fit; a canary is asked if one is due."""
        try:
            self._loaded.check()
            while self.exit is None and self.canary.due(look) and not self._draining.is_set():
                self.exit = _UNFIT.get(self.canary.ask(self._loaded))
        except DeviceFault as fault:
            self.exit = self._endings.device_lost(str(fault))
        except EngineFault as error:
            log.error("%s", error)  # noqa: TRY400 -- the message says it all
            self.exit = stops.ENGINE_FAILED
        except NoSpace as error:
            log.warning("cannot write what a canary answered: %s", error)
        return self.exit is None
