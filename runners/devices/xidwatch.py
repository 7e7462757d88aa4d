"""Listening for a card's events.

1. A set of its own for each card: an error of one says nothing about another.
2. Nothing is told from before the registration, so it comes before the first look.
3. After an unknown error the set is made anew; what happened in between is lost, and the next look asks the driver's
   recovery action. A set that cannot be made is tried again after `PAUSE_S`.
4. Of the other events (memory poison, retired memory, recovery action) only this is used: something happened, look now.
5. A library that has no events here (not Linux, WSL) is no error: then there are readings alone.
"""

import time
from collections import deque
from contextlib import suppress
from typing import Any, Final

import pynvml
from pynvml import NVMLError

from core.xid import Xid, classify
from runners.devices.base import XidSeen
from runners.devices.codes import NO_VALUE, TIMEOUT, UNKNOWN

PAUSE_S: Final = 30.0
KEPT: Final = 8
_XID: Final = 0x8
_WANTED: Final = _XID | 0x2 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000
"""Critical Xid, double-bit ECC, retired memory, failure of that, poison (contained, fatal), GPU unavailable, recovery
action."""
_NO_INSTANCE: Final = 0xFFFFFFFF


class XidWatch:
    """The events of one card, and the last Xids among them."""

    def __init__(self) -> None:
        self._set: Any = None
        self._kept: deque[XidSeen] = deque(maxlen=KEPT)
        self._not_before = 0.0

    @property
    def seen(self) -> tuple[XidSeen, ...]:
        """The last few Xids, oldest first."""
        return tuple(self._kept)

    def attach(self, handle: Any) -> None:
        """Listen to the card with this handle, unless it is being listened to, or was found deaf a moment ago."""
        if self._set is not None or time.monotonic() < self._not_before:
            return
        try:
            kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _WANTED
            if not kinds:
                self._not_before = float("inf")
                return
            self._set = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, kinds, self._set)
        except NVMLError as error:
            self._give_back()
            self._not_before = float("inf") if error.value in NO_VALUE else time.monotonic() + PAUSE_S

    def wait(self, seconds: float) -> list[Xid] | None:
        """Up to that long for an event: the Xid it is, [] for another event, None for none or for a bad set."""
        if self._set is None:
            return None
        try:
            data = pynvml.nvmlEventSetWait_v2(self._set, max(1, int(seconds * 1000)))
        except NVMLError as error:
            if error.value != TIMEOUT:
                self._give_back()
                self._not_before = 0.0 if error.value == UNKNOWN else time.monotonic() + PAUSE_S
            return None
        if data.eventType != _XID:
            return []
        xid = classify(int(data.eventData))
        part = None if data.gpuInstanceId == _NO_INSTANCE else int(data.gpuInstanceId)
        self._kept.append(XidSeen(xid.code, xid.kind, time.time_ns() // 1000, part))
        return [xid]

    def close(self) -> None:
        """Before the library is shut down. It may be attached again to a handle from after that."""
        self._give_back()
        self._not_before = 0.0

    def _give_back(self) -> None:
        if self._set is not None:
            with suppress(NVMLError):
                pynvml.nvmlEventSetFree(self._set)
            self._set = None
