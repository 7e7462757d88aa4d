"""The chunk plan: how many units between two checkpoints.

Sizes grow 2, 4, 8, … up to a cap pinned at admission, by position: a resume that starts inside the plan goes on with
the sizes the position would have had. Seeds hang on positions, and where an engine takes one for a whole chunk, on the
plan as well: a sampled answer is reproduced by the same plan.
"""

from typing import Final

CHUNK_S: Final = 0.25
"""About how long a chunk may take: what is computed is shown, saved, cancelled and moved in steps of it."""


def cap_for(tps: float | None, most: int) -> int:
    """The largest chunk for a lane of `tps` units a second: a power of two, 2 at least, `most` at most or unknown."""
    if tps is None:
        return most
    cap = 2
    while cap * 2 <= min(most, tps * CHUNK_S):
        cap *= 2
    return min(cap, most)


def chunk_size(done: int, cap: int) -> int:
    """Units in the chunk that starts after `done` units; never below 1."""
    size, boundary = 2, 0
    while size < cap and boundary + size <= done:
        boundary += size
        size *= 2
    return max(1, min(size, cap))
