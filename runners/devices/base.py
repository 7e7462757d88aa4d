"""What an accelerator must let us ask, real or simulated."""

from typing import Literal, Protocol

import msgspec


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """An observation of a device. Any number may be unknown (None), and unknown is never zero. Bytes."""

    state: Literal["ok", "lost", "blind"]
    total: int | None = None
    used: int | None = None
    ours: int | None = None
    """Bytes held by this service's processes."""
    foreign: int | None = None
    """Bytes held by programs that are not ours."""
    reason: str | None = None
    simulated: bool = False


class Device(Protocol):
    """An accelerator as its runner and the monitor use it."""

    id: str
    name: str
    simulated: bool

    def allocate(self, size: int) -> None:
        """Take memory for this process where the device is simulated; a real engine takes it itself.

        Raises `AllocationFailed` or `DeviceFault`.
        """

    def check(self) -> None:
        """Cheap, called at every pulse. Raises `DeviceFault` when the device is gone."""

    def observe(self) -> Reading:
        """What can be seen now; never raises."""
