"""A request's own bytes on the device: taken when its work begins, given back before its end is recorded."""

import time
from collections.abc import Callable
from typing import Final

from core.errors import AllocationFailed
from runners.devices.base import Device

_WAIT_S: Final = 1.0
"""The bytes are promised to this request; whoever had them before may be slower to give back than the record is."""
_PAUSE_S: Final = 0.02


class Holding:
    """`size` bytes of a device, or nothing where no device is accounted. `pulse` is called while it waits for them."""

    def __init__(self, device: Device | None, size: int, pulse: Callable[[], None]) -> None:
        self._device = device
        self._size = size
        self._pulse = pulse
        self._held = 0

    def take(self) -> None:
        """Take the bytes. Raises `AllocationFailed`, `DeviceFault`, and what a pulse raises."""
        if self._device is None or not self._size:
            return
        give_up = time.monotonic() + _WAIT_S
        while True:
            try:
                self._device.allocate(self._size)
            except AllocationFailed as refused:
                # Only want of free bytes passes by itself.
                if refused.extra.get("free", 0) >= self._size or time.monotonic() > give_up:
                    raise
                self._pulse()
                time.sleep(_PAUSE_S)
            else:
                self._held = self._size
                return

    def give_back(self) -> None:
        """Give back what is held, once."""
        size, self._held = self._held, 0
        if self._device is not None and size:
            self._device.give_back(size)
