"""Does a request that nobody works on wait, or is it stuck? Stuck: nothing will move it by itself as things are.

In this order; the first that applies decides:

1. It is worked on: `running`.
2. It waits where it is because the other lane is full: whichever has room first takes it: `waiting`.
3. The service is stopping: nothing begins before its next start: `stuck`.
4. There is no such lane, or its device is lost and its breaker held: `stuck`.
5. Its breaker is open or half-open: the device is tried again by itself: `waiting`.
6. It waits for memory that others hold, or that never can be there: `stuck`.
7. Everything else goes on by itself: a lane whose runner starts or is tried again, a queue, memory of ours: `waiting`.
"""

from typing import Final, Literal

import msgspec

from core.admission import HOST_MEMORY
from core.explain import reason
from core.safepoint import LANE_FULL
from core.words import Lane

Status = Literal["running", "waiting", "stuck"]

OTHERS_HOLD: Final = frozenset({"no-room", "pressure", "device-unseen", "gpu-only", "never-fits"})
"""What it waits for that nothing of ours gives back."""


class StandingFacts(msgspec.Struct, frozen=True):
    """The request, its lane, the lane's device."""

    running: bool
    lane: Lane | None
    waits_for: str | None
    draining: bool
    present: bool
    """The lane is there."""
    out_reason: str | None
    """Why the lane does not serve; None: it does."""
    breaker: str = "closed"
    breaker_reason: str = ""
    up: bool = True
    """A worker of the lane has the model."""
    held: bool = False
    """The breaker ends only when the device is found anew, or when somebody says so."""


class Standing(msgspec.Struct, frozen=True):
    """The word, and why in a sentence; empty where there is nothing to say."""

    status: Status
    why: str = ""


def standing(f: StandingFacts) -> Standing:
    """What holds of it now."""
    if f.running:
        return Standing("running")
    if f.waits_for == LANE_FULL:
        return Standing("waiting", f"{_capital(reason(LANE_FULL))}; it goes where there is room first.")
    if f.draining:
        return Standing("stuck", "The service is stopping; it goes on with the next start.")
    return _lane(f) or _memory(f) or Standing("waiting", _sentence(f.waits_for))


def _lane(f: StandingFacts) -> Standing | None:
    """Rules 4 and 5: its lane, and that lane's device."""
    name = f"The {f.lane.upper()} lane" if f.lane else "Its lane"
    if not f.present:
        return Standing("stuck", f"{name} is not set up for its model here: set it up and start again, or cancel it.")
    if f.held:
        why = reason(f.breaker_reason or "device-lost")
        return Standing("stuck", f"{name} is out ({why}) until its device answers again, or somebody has it tried.")
    if f.breaker == "open":
        return Standing("waiting", f"{name} is out: {reason(f.breaker_reason)}. Its device is tried again by itself.")
    if f.breaker == "half-open":
        return Standing("waiting", f"The device of {name[0].lower()}{name[1:]} is being tried with canaries.")
    return None


def _memory(f: StandingFacts) -> Standing | None:
    """Rules 6 and 7: memory that others hold, and a lane that is on its way."""
    if f.waits_for in OTHERS_HOLD:
        return Standing("stuck", f"{_sentence(f.waits_for)[:-1]}, and nothing of ours gives that back.")
    if f.out_reason in {"starting", "loading"}:
        return Standing("waiting", "Its lane is on its way: the worker is being started.")
    if f.out_reason is not None:
        lane = f.lane.upper() if f.lane else "its"
        then = (
            "It takes work again when there is room" if f.out_reason == HOST_MEMORY else "Its worker is started again"
        )
        return Standing("waiting", f"The {lane} lane is out: {reason(f.out_reason)}. {then}.")
    if not f.up and f.waits_for is None:
        return Standing(
            "waiting", "Its lane has no worker just now; one is started, after a pause if several have died."
        )
    return None


def _sentence(code: str | None) -> str:
    return f"{_capital(reason(code))}." if code else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
