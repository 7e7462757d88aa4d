"""What an accelerator must let us ask, real or simulated."""

from typing import Final, Literal, Protocol

import msgspec

from core.xid import XidClass

State = Literal["ok", "lost", "reset-required", "blind", "unknown"]
"""`lost` and `reset-required`: nothing computes there. `blind`: its memory cannot be read; running work may finish, new
work only if policy says so. `unknown`: it did not answer the last time, and is asked again."""

OUT: Final[frozenset[State]] = frozenset({"lost", "reset-required"})


class XidSeen(msgspec.Struct, frozen=True, omit_defaults=True, rename={"kind": "class"}):
    """An Xid the driver reported for this device since the monitor began; `at` in wall-clock microseconds."""

    code: int
    kind: XidClass
    at: int
    gpu_instance: int | None = None
    """On which slice of a card in MIG mode, where the driver tells."""


class MigPlace(msgspec.Struct, frozen=True):
    """Where a MIG slice lies: the card's UUID and the two instance numbers (None: the driver does not tell)."""

    parent: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """An observation of a device. Any number may be unknown (None), and unknown is never zero. Bytes.

    Its age is not in it: whoever keeps it keeps the time it was taken.
    """

    state: State
    total: int | None = None
    used: int | None = None
    """Allocated bytes. Contains the driver's own share where `reserved` is unknown, and not where it is known."""
    ours: int | None = None
    """Bytes held by this service's processes, as the driver tells them; None: it does not, so promises count."""
    foreign: int | None = None
    """Bytes held by programs that are not ours; None: by whom is not known."""
    reason: str | None = None
    """Why the state is not `ok`."""
    simulated: bool = False
    free: int | None = None
    reserved: int | None = None
    """Bytes the driver and firmware keep for themselves."""
    processes: dict[int, int | None] | None = None
    """Bytes by pid; None: there is no such list, or its pids mean nothing here (they are the host's in a container)."""
    code: int | None = None
    """The driver library's return code behind the state."""
    advice: str | None = None
    """What a person can do about it."""
    unified: bool = False
    """It has no memory of its own: the numbers are the host's, and there is one budget for both."""
    mig: MigPlace | None = None
    name: str | None = None
    pci: str | None = None
    driver: str | None = None
    recovery: int | None = None
    """The driver's recovery action: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 IMEX domain, 6 bus
    reset, 7 system reboot; None: it does not tell."""
    xids: tuple[XidSeen, ...] = ()
    """The last few, oldest first."""


class Device(Protocol):
    """An accelerator as its runner and the monitor use it."""

    id: str
    name: str
    simulated: bool

    def allocate(self, size: int) -> None:
        """Take memory for this process where the device is simulated; a real engine takes it itself.

        Raises `AllocationFailed` or `DeviceFault`.
        """

    def give_back(self, size: int) -> None:
        """Return a part of what this process took with `allocate`."""

    def check(self) -> None:
        """Cheap, called at every pulse. Raises `DeviceFault` when the device is gone."""

    def observe(self) -> Reading:
        """What can be seen now; never raises."""
