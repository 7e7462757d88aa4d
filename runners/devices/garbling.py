"""A model on a simulated accelerator: what it computes is garbage while that is ordered.

The engine itself knows nothing of it, as a real engine knows nothing of what its card does to its numbers: it goes on
with what it believes to have said, and so do the states it saves.
"""

from pathlib import Path
from typing import Final

from runners.devices.simulated import SimulatedDevice
from runners.engines.base import Chunk, GenerateWork, Host, Loaded, Sequence

GARBAGE: Final = 33
"""One unit again and again, which in most vocabularies is an exclamation mark: what a broken card is seen to say."""


class Garbling:
    """`runners.engines.base.Loaded`, computed on that device."""

    def __init__(self, inside: Loaded, device: SimulatedDevice) -> None:
        self._inside = inside
        self._device = device
        self.kv_format = inside.kv_format

    def begin(self, work: GenerateWork, host: Host) -> Sequence:
        """As the model inside does."""
        return _Sequence(self._inside.begin(work, host), self._device)

    def at_rest(self, sequence: Sequence) -> bool:
        """As the model inside says."""
        return self._inside.at_rest(_inner(sequence))

    def save(self, sequence: Sequence, into: Path) -> int:
        """As the model inside does."""
        return self._inside.save(_inner(sequence), into)

    def check(self) -> None:
        """As the model inside does."""
        self._inside.check()

    def close(self) -> None:
        """As the model inside does."""
        self._inside.close()


class _Sequence:
    def __init__(self, inside: Sequence, device: SimulatedDevice) -> None:
        self.inside = inside
        self._device = device

    def __iter__(self) -> "_Sequence":
        return self

    def __next__(self) -> Chunk:
        chunk = next(self.inside)
        if not self._device.garbles():
            return chunk
        return Chunk((GARBAGE,) * len(chunk.units), chunk.end)

    def close(self) -> None:
        self.inside.close()


def _inner(sequence: Sequence) -> Sequence:
    assert isinstance(sequence, _Sequence)
    return sequence.inside
