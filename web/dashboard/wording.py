"""How values are written on a page: times, durations, sizes, states. Sentences come from `core.explain`."""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from core.words import State

UNKNOWN: Final = "unknown"
NONE: Final = "—"
"""There is no such thing; `unknown` means there is, and nobody knows it."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Chip(msgspec.Struct, frozen=True):
    """A state as a reader sees it: an icon of the sprite, a word, and a tone that the style sheet colours."""

    icon: str
    word: str
    tone: str


class Moment(msgspec.Struct, frozen=True):
    """A time: machine-readable, relative, and absolute for the tooltip."""

    iso: str
    ago: str
    full: str


_CHIPS: Final[dict[State, Chip]] = {
    "admitted": Chip("clock", "admitted", "wait"),
    "running-gpu": Chip("bolt", "running-gpu", "run"),
    "checkpointed": Chip("flag", "checkpointed", "run"),
    "rerouted-cpu": Chip("branch", "rerouted-cpu", "move"),
    "completed": Chip("check", "completed", "good"),
    "resumable-error": Chip("pause", "resumable-error", "bad"),
    "cancelled": Chip("cross", "cancelled", "off"),
    "refused": Chip("ban", "refused", "off"),
}
_AFTER_FAILOVER: Final = Chip("check-branch", "completed after failover", "scar")


def state_chip(state: State, *, moved: bool = False) -> Chip:
    """The mark of a state. A request that was moved on its way does not look as if it never had been."""
    return _AFTER_FAILOVER if state == "completed" and moved else _CHIPS[state]


def moment(at_us: int, now_us: int) -> Moment:
    """A time as it is shown, seen from `now_us`."""
    at = _EPOCH + timedelta(microseconds=at_us)
    iso = at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return Moment(iso, ago((now_us - at_us) / 1e6), f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} UTC")


def ago(seconds: float | None) -> str:
    """How long something is past, coarse; `unknown` for None. The script of the page counts on in the same words."""
    if seconds is None:
        return UNKNOWN
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s ago"
    if whole < 3600:
        return f"{whole // 60} min ago"
    return f"{whole // 3600} h ago" if whole < 86400 else f"{whole // 86400} d ago"


def duration(seconds: float | None) -> str:
    """A length of time with about three digits."""
    if seconds is None:
        return UNKNOWN
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def size(count: int | None) -> str:
    """Bytes in B, KiB, MiB or GiB; unknown is said to be unknown."""
    if count is None:
        return UNKNOWN
    if count < 1 << 10:
        return f"{count} B"
    if count < 1 << 20:
        return f"{count / (1 << 10):.0f} KiB"
    return f"{count / (1 << 20):.0f} MiB" if count < 1 << 30 else f"{count / (1 << 30):.2f} GiB"


def short(id_: str) -> str:
    """A long id by its two ends: ids of neighbours begin alike, since they sort by time."""
    return id_ if len(id_) <= 14 else f"{id_[:4]}…{id_[-7:]}"


def lane_name(lane: str | None) -> str:
    """`GPU`, `CPU`, or a dash."""
    return lane.upper() if lane else NONE
