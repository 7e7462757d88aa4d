"""Cores are promised like bytes: how many threads may a runner use for its next chunk?

The engines spin. One thread more than there are cores costs a factor of up to 250, so the sum over all runners
never exceeds the cores we may use.

1. `reserve` cores stay free where there are more cores than that; the reserve gives way before a lane starves.
2. Busy lanes share the rest evenly; a lane alone may have all of it.
3. What others hold is never taken from them: a grant comes out of what is left, and 0 means wait.
"""


def fixed_share(*, total: int, reserve: int, runners: int) -> int:
    """Threads for a runner whose engine keeps what it was loaded with: an even part of what may be used."""
    return max(1, max(1, total - reserve) // max(1, runners))


def grant(*, total: int, reserve: int, busy: int, held_by_others: int) -> int:
    """Threads for a runner that is one of `busy` ones (itself included); 0 when nothing is left right now."""
    usable = max(1, total - reserve)
    share = max(1, usable // max(1, busy))
    left_usable = usable - held_by_others
    if left_usable >= 1:
        return min(share, left_usable)
    return 1 if total - held_by_others >= 1 else 0
