"""How values are written on a page: times, durations, sizes, states. Sentences come from `core.explain`."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from core.explain import moved, reason
from core.machine import SMALLER
from core.state import DegradedMark, FailoverMark, RequestState
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
    code: str = ""
    """For the tooltip: the stored word where people are shown another, or what the word means."""


class Moment(msgspec.Struct, frozen=True):
    """A time: machine-readable, relative, and absolute for the tooltip."""

    iso: str
    ago: str
    full: str


_CHIPS: Final[dict[State, Chip]] = {
    "admitted": Chip("clock", "admitted", "wait"),
    "running-gpu": Chip("bolt", "running on the GPU", "run", "running-gpu"),
    "checkpointed": Chip("flag", "checkpointed", "run"),
    "rerouted-cpu": Chip("branch", "moved to the CPU", "move", "rerouted-cpu"),
    "completed": Chip("check", "completed", "good"),
    "resumable-error": Chip("pause", "stopped, can be resumed", "bad", "resumable-error"),
    "cancelled": Chip("cross", "cancelled", "off"),
    "refused": Chip("ban", "refused", "off"),
}
_AFTER_FAILOVER: Final = Chip("check-branch", "completed after failover", "scar")
_SENT_ELSEWHERE: Final = Chip("check-branch", "completed on the CPU lane", "scar")


def state_chip(state: State, failovers: Sequence[FailoverMark] = ()) -> Chip:
    """The mark of a state. A request that was moved on its way does not look as if it never had been.

    One that was sent to the CPU lane when it was accepted did not fail over: nothing had begun.
    """
    if state != "completed" or not failovers:
        return _CHIPS[state]
    return _AFTER_FAILOVER if failed_over(failovers) else _SENT_ELSEWHERE


def failed_over(failovers: Sequence[FailoverMark]) -> bool:
    """Whether any of the moves took it away from a lane."""
    return any(one.from_lane is not None for one in failovers)


def model_words(state: RequestState) -> str:
    """The model that was asked for, and the one that answers where that is another."""
    serves = state.served_model or state.model
    return f"{state.asked_model}, answered by {serves}" if state.asked_model else serves


def shortened(state: RequestState) -> str:
    """By how much the answer was shortened; empty when it was not."""
    if state.asked_units is None or state.asked_units == state.max_units:
        return ""
    return f"asked {state.asked_units:,} tokens, given {state.max_units:,}"


def degraded_sentence(state: RequestState, why: str = "") -> str:
    """In what way it is served less well, and why; empty when it is not. `why` another model answers, if known."""
    mark = state.degraded
    if mark is None:
        return ""
    parts = []
    if state.asked_model:
        because = f", because {why}" if why else ""
        parts.append(f"Answered by {state.served_model or state.model} instead of {state.asked_model}{because}.")
    if not (state.asked_model and mark.lane == "gpu" and mark.rule == SMALLER):
        parts.append(_lane_sentence(state, mark))
    if less := shortened(state):
        parts.append(f"Shortened: {less}.")
    return " ".join(parts)


def _lane_sentence(state: RequestState, mark: DegradedMark) -> str:
    if mark.lane == "gpu":
        if state.lane == "gpu" and not state.running and state.waits_for == mark.reason:
            return f"Waits in its place for the GPU lane: {reason(mark.reason)}."
        return f"The GPU lane serves it less well than it asked: {reason(mark.reason)}."
    source = next((one.from_lane for one in state.failovers if one.version == mark.version), None)
    return moved(source, mark.lane, mark.reason, mark.rule)


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


def coming(at_us: int, now_us: int) -> Moment:
    """A time that is still to come, as it is shown."""
    return msgspec.structs.replace(moment(at_us, now_us), ago=due((at_us - now_us) / 1e6))


def due(seconds: float) -> str:
    """How soon something is, coarse. The script of the page counts down in the same words."""
    whole = max(0, int(seconds))
    if whole < 1:
        return "now"
    return f"in {whole} s" if whole < 60 else f"in {whole // 60} min {whole % 60} s"


def spread(low_s: float | None, high_s: float | None) -> str:
    """A range of time: `4 to 9 s`, `at least 4 s` where its end is not known, or `unknown`."""
    if low_s is None:
        return UNKNOWN
    if high_s is None:
        return f"at least {_rough(low_s)}"
    low, high = _rough(low_s), _rough(high_s)
    if low == high:
        return f"about {low}"
    return f"{low.removesuffix(' s')} to {high}" if high.endswith(" s") else f"{low} to {high}"


def _rough(seconds: float) -> str:
    if seconds < 0.05:
        return "0 s"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


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


def cut(name: str, most: int) -> str:
    """A name that somebody else chose, with a sign where it is cut for its length."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def lane_name(lane: str | None) -> str:
    """`GPU`, `CPU`, or a dash."""
    return lane.upper() if lane else NONE
