"""The chunk plan: how many units between two checkpoints.

Sizes grow 2, 4, 8, … up to a cap pinned at admission, by position: a resume that starts inside the plan goes on with
the sizes the position would have had. Seeds hang on positions, so the plan never changes a result.
"""


def chunk_size(done: int, cap: int) -> int:
    """Units in the chunk that starts after `done` units; never below 1."""
    size, boundary = 2, 0
    while size < cap and boundary + size <= done:
        boundary += size
        size *= 2
    return max(1, min(size, cap))
