"""Was a canary answered rightly? Compared with what the same path answered in good days.

In this order; the first rule that applies decides:

1. There was no answer: wrong.
2. Nothing is recorded yet, or what is recorded contradicts the host's processor: an answer that contradicts it too is
   wrong, any other is recorded. The first unit at least must agree, since counting on is what no sound model fails.
3. It differs from the recorded one: wrong. The host computes the same to the last bit; elsewhere a batch may tip a
   word, and half of the answer must agree.
4. It took far longer than the recorded one (`core.slowness.canary_slow`): slow. Else it is right.
"""

from typing import Final, Literal

import msgspec

from core.contract import HOST, PathFacts
from core.slowness import canary_slow

Verdict = Literal["recorded", "right", "wrong", "slow"]
CONTRADICTS: Final = "its first unit is not the one that the CPU lane answers"


class Answer(msgspec.Struct, frozen=True):
    """What was answered, and how long that took."""

    units: tuple[int, ...]
    took_us: int


def judge(
    path: PathFacts, given: Answer, recorded: Answer | None, host: Answer | None, slow_factor: float
) -> tuple[Verdict, str]:
    """The verdict, and what was wrong with the answer.

    `host` is what the host's processor answers under the same contract, for everybody but itself. With a `slow_factor`
    of 0 it may take as long as it does.
    """
    if not given.units:
        return "wrong", "there was no answer"
    if host is not None and recorded is not None and contradict(recorded.units, host.units):
        recorded = None
    if recorded is None:
        wrong = host is not None and contradict(given.units, host.units)
        return ("wrong", CONTRADICTS) if wrong else ("recorded", "")
    unlike = _unlike(path, given.units, recorded.units)
    if unlike:
        return "wrong", unlike
    if canary_slow(given.took_us, recorded.took_us, slow_factor):
        return "slow", f"it took {given.took_us / 1e6:.2f} s, and {recorded.took_us / 1e6:.2f} s when it was recorded"
    return "right", ""


def contradict(units: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether one of two answers to the same canary must be nonsense."""
    return units[:1] != others[:1]


def _unlike(path: PathFacts, units: tuple[int, ...], known: tuple[int, ...]) -> str:
    """How an answer falls short of the recorded one; empty when it does not."""
    alike = next((n for n, (a, b) in enumerate(zip(units, known, strict=False)) if a != b), min(len(units), len(known)))
    needed = len(known) if path.kind == HOST and path.slots == 1 else (len(known) + 1) // 2
    if alike < needed or (needed == len(known) and len(units) != len(known)):
        return f"{alike} of {len(known)} units are those of the recorded answer; {needed} must be"
    return ""
