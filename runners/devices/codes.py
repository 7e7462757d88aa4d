"""What NVML's return codes say about a device: its state, the words, and what a person can do.

1. Out for good (`lost`, `reset-required`): 9, 15, 16, 28. A card does not come back from these without a deed.
2. Not readable (`blind`): 4, 11, 14, 17, 18. The card may compute well; its memory is not known.
3. Passing: 1, 10, 999. `unknown` at first; whoever asks repeats the question a few times, then takes the card out.
4. 3 (not supported) and 21 (no data) are answers: that number is unknown. They say nothing about the device.
5. Any other code is `unknown`, and never takes a card out by itself.
"""

from typing import Final

import msgspec

from runners.devices.base import State

NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
NO_DATA: Final = 21
UNKNOWN: Final = 999

NO_VALUE: Final = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, NO_DATA})
"""Codes that say that there is no such number here."""

PASSING: Final = frozenset({1, TIMEOUT, UNKNOWN})
"""Codes that may be gone at the next question."""


class Meaning(msgspec.Struct, frozen=True):
    """A code in words."""

    state: State
    words: str
    advice: str


_CONTAINER: Final = "Restart the service; in a container, restart the container. When it stays, reboot this machine."

_MEANINGS: Final = {
    1: Meaning("unknown", "the driver library is not initialised", _CONTAINER),
    3: Meaning("blind", "the driver does not tell its memory", "Nothing is wrong with it as such."),
    4: Meaning(
        "blind", "this user may not read it", "Run the service as a user who may, or give the container the device."
    ),
    9: Meaning("lost", "the NVIDIA driver is not loaded", "Load it: modprobe nvidia. After an upgrade, reboot."),
    10: Meaning("unknown", "the driver did not answer in time", _CONTAINER),
    11: Meaning("blind", "the kernel has trouble with the card's interrupt", "Look at dmesg; reboot this machine."),
    12: Meaning(
        "unknown", "the library libnvidia-ml.so.1 is not installed", "Install the NVIDIA driver, if there is a card."
    ),
    14: Meaning("blind", "the card's infoROM is corrupted", "Have the card checked by its maker."),
    15: Meaning(
        "lost",
        "the card fell off the bus or cannot be reached",
        "Reboot this machine; when it stays away, switch the machine off and on.",
    ),
    16: Meaning(
        "reset-required",
        "the card must be reset before it can be used",
        "Stop what uses it, this service too, and run nvidia-smi --gpu-reset; or reboot this machine.",
    ),
    17: Meaning(
        "blind",
        "the operating system blocks the access, a device cgroup as a rule",
        "Restart the container with the device given to it; on the host, look at the service's device rules.",
    ),
    18: Meaning(
        "blind",
        "the driver and its library are of different versions: the driver was upgraded under running programs",
        "Restart the service, and the container it runs in; when that does not help, reboot this machine.",
    ),
    28: Meaning("lost", "there is no such card any more", "Look at nvidia-smi -L and dmesg; reboot this machine."),
    999: Meaning("unknown", "the driver gives an unknown error", _CONTAINER),
}


def meaning(code: int) -> Meaning:
    """The row of a code."""
    fallback = Meaning("unknown", f"the driver library answers with code {code}", "Look at dmesg and nvidia-smi.")
    return _MEANINGS.get(code, fallback)
