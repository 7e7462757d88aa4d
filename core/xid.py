"""What an Xid says: the number under which NVIDIA's driver reports that something went wrong on a card.

1. A class per number, and per class whom it blames. Six classes:
   `app`      the program that used the card failed; the card is fine. Blames the worker.
   `reset`    the card must be reset before anything is computed on it again. Blames the card.
   `check`    the card, or its link to others, must be looked at before it is trusted again. Blames the card.
   `lost`     the card is gone until a reboot or a power cycle. Blames the card.
   `info`     recorded; nothing follows.
   `unknown`  in no table, or the driver did not know itself. Blames the worker: a card is not taken out by a number
              that nobody can read.
2. Of 109 and 154 the driver is asked what to do (its recovery action), and `none` acquits the card: 109 is in some
   tables and ignored by others, 154 says no more than that the recovery action has changed.

Sources: NVIDIA's Xid catalogue as gpud held it in October 2025; 43 and 45 as NVIDIA's device plugin for Kubernetes
treats them.
"""

from typing import Final, Literal

import msgspec

XidClass = Literal["app", "reset", "check", "lost", "info", "unknown"]


class Xid(msgspec.Struct, frozen=True):
    """A number, its class, and what it means in words ("" where the catalogue's words would not help)."""

    code: int
    kind: XidClass
    words: str = ""
    ask_driver: bool = False
    """The driver's recovery action, where it can be read, has the last word."""

    def __str__(self) -> str:
        return f"Xid {self.code}" + (f" ({self.words})" if self.words else "")

    @property
    def blames(self) -> Literal["worker", "device"] | None:
        """Against whom it counts."""
        return _BLAMES[self.kind]

    @property
    def consequence(self) -> str:
        """What follows, for people."""
        return CONSEQUENCES[self.kind]


UNKNOWN: Final = 999
"""The driver's own word for an Xid that it could not name."""

CONSEQUENCES: Final[dict[XidClass, str]] = {
    "app": "The program that used the card failed and the card is fine: its worker is started again.",
    "reset": "The card must be reset first: stop what uses it, this service too, and run nvidia-smi --gpu-reset.",
    "check": "The card or its link needs a look before it is trusted again: see the kernel log and run diagnostics.",
    "lost": "The card is gone until this machine is rebooted; when it stays away, switch the machine off and on.",
    "info": "Nothing follows; it is recorded.",
    "unknown": "Nobody knows what this number means: it counts against the worker, and the card is tried again.",
}

_BLAMES: Final[dict[XidClass, Literal["worker", "device"] | None]] = {
    "app": "worker",
    "reset": "device",
    "check": "device",
    "lost": "device",
    "info": None,
    "unknown": "worker",
}

_CODES: Final[dict[XidClass, tuple[int, ...]]] = {
    "app": (8, 13, 31, 32, 43, 45, 68, 69, 94, *range(126, 136), 139),
    "reset": (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    "check": (48, 74, *range(144, 151)),
    "lost": (79, 151, 154, 167),
    "info": (63, 92, 121, 137, 157, 160, 161, 168),
}
_KINDS: Final = {code: kind for kind, codes in _CODES.items() for code in codes}
_WORDS: Final = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "a program's work was stopped",
    45: "clean-up after a program",
    48: "double-bit ECC error",
    63: "a memory row was remapped",
    64: "remapping a memory row failed",
    74: "NVLink error",
    79: "the card fell off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the card's system processor does not answer",
    120: "the card's system processor failed",
    140: "unrecovered ECC error",
    154: "the recovery action has changed",
    168: "memory was reduced",
    UNKNOWN: "the driver could not name it",
}
_ASK_DRIVER: Final = frozenset({109, 154})


def classify(code: int) -> Xid:
    """The table's row for a number; class `unknown` for one that is in no table."""
    return Xid(code, _KINDS.get(code, "unknown"), _WORDS.get(code, ""), code in _ASK_DRIVER)
