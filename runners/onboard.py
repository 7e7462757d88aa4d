"""After a model was loaded for a real card: does its engine hold memory there?

1. An engine whose CUDA part fails goes on with the CPU and says nothing. What it holds on the card tells.
2. The question waits for a reading from after the load, for a bounded time. Where the driver tells memory by process,
   this process and whatever it started count; else the rise of what is in use counts, though a neighbour may have
   caused it, or hidden it.
3. Less than a quarter of what was to be there is nothing: the driver takes a few hundred MiB for a process that opens
   a card and computes elsewhere.
4. What cannot be seen is unknown, and the model serves. Memory that is held while the CPU computes is not found here.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from core.errors import EngineFault
from runners.devices.base import Reading
from runners.devices.real import RealDevice

log = logging.getLogger("failsoft.runner")

WAIT_S: Final = 10.0
_SHARE: Final = 4
_PAUSE_S: Final = 0.1


class NotOnDevice(EngineFault):
    """The engine loaded the model and took nothing of the card that it was to compute on."""

    code = "not_on_device"


def held_on(device: RealDevice, before: Reading, expected: int, now_us: int, waiting: Callable[[], None]) -> int | None:
    """Bytes that this process and what it started hold on the card; None: the driver does not tell.

    `before` is from before the load, `expected` is what was to be taken, `now_us` is the wall clock after the load.
    Raises `NotOnDevice`.
    """
    deadline = time.monotonic() + WAIT_S
    least = max(1, expected // _SHARE)
    told: tuple[int, bool] | None = None
    while time.monotonic() < deadline:
        waiting()
        latest = device.latest()
        if latest is not None and latest[0] > now_us:
            told = taken(before, latest[1])
            if told is None or told[0] >= least:
                break
        time.sleep(_PAUSE_S)
    if told is None:
        log.warning("%s does not show what the model took there: it is taken to be there", device.id)
        return None
    size, by_process = told
    if size < least:
        raise NotOnDevice(
            f"the model holds {size >> 20} MiB on {device.id} where {expected >> 20} MiB were to be: its engine "
            "computes elsewhere. Look for CUDA in the lines above: the engine's CUDA build and the driver must fit "
            "each other"
        )
    return size if by_process else None


def taken(before: Reading, after: Reading) -> tuple[int, bool] | None:
    """(bytes, whether they are this process's for certain); None where nothing can be said."""
    if after.ours is not None and after.processes is not None:
        return sum(size or 0 for pid, size in after.processes.items() if _descends(pid)), True
    if after.unified or after.used is None or before.used is None or after.used < before.used:
        return None
    return after.used - before.used, False


def _descends(pid: int) -> bool:
    """Whether that process is this one, or was started by it, at however many removes."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            return False
    return False
