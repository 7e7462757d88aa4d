"""What follows from an Xid that blames a program: whoever of ours computed on the card is ended, and begins anew.

1. The number says which card, not which program. So every runner of ours is ended that was at work on that card when it
   was reported: one worker too many costs a second, a wrong word that was shown cannot be taken back. One that was idle
   gave the card nothing to fail at.
2. What is reported just after one of ours died there is about the dead one, not about its successor.
3. An Xid that is reported when programs end, however they do (45), ends nobody.
4. It is a fault of the worker, with the number as evidence; the card stays in. Xids that blame the card are judged by
   the monitor, and come as its state.
"""

import logging
import sqlite3
import time
from typing import Final

import msgspec

from core.xid import classify
from runners.children import Child
from runners.deaths import XID
from runners.devices.base import XidSeen
from runners.devices.real import is_real
from store.clock import Clock
from store.house import reading_of
from store.journal import Look

log = logging.getLogger("failsoft")

AFTERMATH_US: Final = 3_000_000
_CLEAN_UP: Final = 45
_AT_WORK: Final = frozenset({"busy", "loading"})


class _Told(msgspec.Struct, frozen=True):
    """What is of interest here in a reading."""

    xids: tuple[XidSeen, ...] = ()


class Xids:
    """The supervisor's eye on the Xids of its one card; without a real one it does nothing."""

    def __init__(self, device: str, children: list[Child], driver: sqlite3.Connection, clock: Clock) -> None:
        self._device = device
        self._children = [child for child in children if child.spec is not None and child.spec.device == device]
        self._driver = driver
        self._clock = clock
        self._seen_us = clock.now_us()
        self._died_us = 0

    def tick(self) -> None:
        """Look, and end who was at work when something was reported since the last look."""
        if not is_real(self._device):
            return
        found = reading_of(Look(self._driver, 0), self._device)
        if found is None:
            return
        news = [xid for xid in msgspec.json.decode(found[1], type=_Told).xids if xid.at > self._seen_us]
        for xid in news:
            self._seen_us = max(self._seen_us, xid.at)
            told = classify(xid.code)
            if told.blames == "worker" and xid.code != _CLEAN_UP and xid.at > self._died_us + AFTERMATH_US:
                log.error("%s: %s. %s", self._device, told, told.consequence)
                self._end(xid)

    def died(self, child: Child) -> None:
        """A runner ended; what its card reports in the next moments is about it."""
        if child in self._children:
            self._died_us = self._clock.now_us()

    def _end(self, xid: XidSeen) -> None:
        lived_us = [int((time.monotonic() - child.started) * 1e6) for child in self._children]
        for child, age_us in zip(self._children, lived_us, strict=True):
            there = child.process is not None and self._clock.now_us() - age_us < xid.at
            if there and child.pulse is not None and child.pulse.phase() in _AT_WORK:
                child.kill(f"{XID}{xid.code}")
