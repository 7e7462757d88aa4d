"""Finding real cards, and finding them again.

1. It asks at the start and every `AGAIN_S` seconds: a driver that was not there, a card that went, may be back.
2. While the driver does not answer, or a card is out, the library is initialised anew first; nothing else brings a
   card back within one process.
3. What it says of the driver as a whole is a reading named `nvml`. No driver library is no news: most machines have
   none.
"""

from collections.abc import Callable
from typing import Final

from pynvml import NVMLError

from runners.devices.base import Reading
from runners.devices.codes import LIBRARY_NOT_FOUND, meaning
from runners.devices.nvml import Card, Driver

AGAIN_S: Final = 30.0
DRIVER: Final = "nvml"
"""Name of the reading about the driver."""


class Finder:
    """Hands each card to `found` once, in the thread that looks."""

    def __init__(self, driver: Driver, found: Callable[[Card], None]) -> None:
        self._driver = driver
        self._found = found
        self._known: dict[str, Card] = {}

    def look(self) -> dict[str, Reading]:
        """Enumerate; answers how the driver is, or nothing where there is no driver library."""
        troubled = any(card.troubled for card in self._known.values())
        try:
            if (self._driver.code is not None or troubled) and not self._driver.renew():
                return {
                    DRIVER: Reading(
                        "unknown",
                        reason="a call of the driver library does not return, so it cannot be initialised anew",
                        advice="Look at dmesg; reboot this machine when it stays so.",
                        driver=self._driver.version,
                    )
                }
            cards = self._driver.cards()
        except NVMLError as error:
            if error.value == LIBRARY_NOT_FOUND and not self._known:
                return {}
            told = meaning(error.value)
            return {DRIVER: Reading(told.state, reason=told.words, code=error.value, advice=told.advice)}
        for card in cards:
            if card.uuid not in self._known:
                self._known[card.uuid] = card
                self._found(card)
        if not cards:
            reason = "the driver shows no card"
            return {DRIVER: Reading("unknown", reason=reason, driver=self._driver.version)}
        return {DRIVER: Reading("ok", driver=self._driver.version)}
