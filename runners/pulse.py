"""Proof of life from inside the engine loop: a few bytes in a mapped file that the supervisor reads.

1. Only the thread that does the work beats; a helper thread would go on beating over a hung engine.
2. A beat says how long the last step took, so that *hung* is relative to this work's own pace.
3. The file is worth nothing after a reboot.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Final, Literal

import msgspec

_LAYOUT: Final = struct.Struct("<QQB")
_PHASES: Final = ("unused", "loading", "idle", "busy", "stopping")
_PLACES: Final = 33
Phase = Literal["unused", "loading", "idle", "busy", "stopping"]


class Beat(msgspec.Struct, frozen=True):
    """One place's last sign of life: when (boot-monotonic µs), the longest recent step, and doing what."""

    at_us: int
    step_us: int
    phase: Phase


class Pulse:
    """One runner's file: place 0 is its claiming thread, place n its slot n. The runner writes, others read."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _LAYOUT.size * _PLACES)  # a hole would be SIGBUS once the disk is full
            self._map = mmap.mmap(descriptor, _LAYOUT.size * _PLACES)
        finally:
            os.close(descriptor)
        self._steps = [0] * _PLACES
        self._last = [0] * _PLACES

    def beat(self, now_us: int, phase: Phase, place: int = 0) -> None:
        """Write a sign of life."""
        if phase == "busy" and self._last[place]:
            step = now_us - self._last[place]
            self._steps[place] = max(step, self._steps[place] - self._steps[place] // 8)
        else:
            self._steps[place] = 0
        self._last[place] = now_us if phase == "busy" else 0
        _LAYOUT.pack_into(self._map, place * _LAYOUT.size, now_us, self._steps[place], _PHASES.index(phase))

    def read(self) -> Beat | None:
        """The stalest place that is in use, or None before the first beat.

        A torn read is possible, and may look like a beat of long ago; who acts on one looks twice.
        """
        beats = []
        for place in range(_PLACES):
            at, step, phase = _LAYOUT.unpack_from(self._map, place * _LAYOUT.size)
            if phase and (place == 0 or _PHASES[phase % len(_PHASES)] == "busy"):
                beats.append(Beat(at, step, _PHASES[phase % len(_PHASES)]))
        return min(beats, key=lambda beat: beat.at_us, default=None)

    def phase(self) -> Phase:
        """What the runner as a whole is doing: busy when any slot is."""
        phases = [_LAYOUT.unpack_from(self._map, place * _LAYOUT.size)[2] for place in range(_PLACES)]
        if any(_PHASES[phase % len(_PHASES)] == "busy" for phase in phases):
            return "busy"
        return _PHASES[phases[0] % len(_PHASES)]

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()
