"""Learned footprints: what was really seen replaces the formula.

1. A growing observation raises the learned value at once; a shrinking one lowers it slowly, by an eighth of the gap.
2. Between loads of the same model and settings, bytes that rise every time are a leak: told after `LEAK_LOADS` loads.
"""

from itertools import pairwise
from typing import Final

import msgspec

LEAK_LOADS: Final = 5
LEAK_STEP: Final = 64 << 20


class Learned(msgspec.Struct, frozen=True):
    """For one (engine build, model, settings). Bytes."""

    formula: int
    value: int
    last: int
    loads: int


def observe(before: Learned | None, formula: int, seen: int) -> Learned:
    """The learned value after one more load that was seen to take `seen` bytes."""
    if before is None:
        return Learned(formula, seen, seen, 1)
    value = seen if seen >= before.value else before.value - (before.value - seen) // 8
    return Learned(formula, value, seen, before.loads + 1)


def leaking(baselines: list[int]) -> bool:
    """Whether what stays behind after each unload (oldest first) shows a leak: five steady steps up."""
    recent = baselines[-LEAK_LOADS:]
    steps = [after - before for before, after in pairwise(recent)]
    return len(recent) == LEAK_LOADS and all(step >= LEAK_STEP for step in steps)
