"""Whether a device has memory of its own, or computes in the host's.

In this order:

1. What the operator says about it.
2. Its name is that of a system on a chip: unified, whatever its driver answers. (GB10 answers "not supported" on one
   machine and the host's size on another; N1X answers a carve-out of 8128 MiB.)
3. It has no memory aperture on the bus (BAR1), and its driver tells no size, or the size of the host's memory.

A size alone never decides: a card with as much memory as its host exists.
"""

import re
from typing import Final

_CHIPS: Final = re.compile(r"\b(GB10|N1X|Orin|Xavier|Thor|Tegra|Jetson)\b", re.IGNORECASE)
_NEAR: Final = 0.05


def is_unified(
    name: str, *, total: int | None, aperture: bool | None, host_total: int, said: bool | None = None
) -> bool:
    """`total`: bytes by the driver; `aperture`: whether there is one, None when not known; `said`: the operator."""
    if said is not None:
        return said
    if _CHIPS.search(name):
        return True
    if aperture is not False:
        return False
    return total is None or abs(total - host_total) <= _NEAR * host_total
