"""Whose turn it is in a lane's queue."""

from core.words import Priority

BATCH_BEHIND_US = 60_000_000
"""A batch request takes its turn as if it had come a minute later: interactive work goes first, nothing starves."""


def turn_us(priority: Priority, created_us: int) -> int:
    """The position in a queue: smaller goes first. Accepted earlier goes first, wherever it was moved since."""
    return created_us + (BATCH_BEHIND_US if priority == "batch" else 0)
