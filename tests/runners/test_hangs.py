"""Who is ended as hung: whoever shows no sign of life at two looks in a row."""

import types
from pathlib import Path
from typing import Any

from core.policy import Policy
from runners.hangs import Hangs
from runners.pulse import Beat, Pulse
from store.clock import Clock

HOUR_US = 3_600_000_000


class At(Clock):
    def mono_us(self) -> int:
        return 2 * HOUR_US


class Child:
    """As much of a child as is looked at."""

    def __init__(self, *beats: Beat) -> None:
        self.id, self.role, self.process, self.killed_for = "gpu-1", "runner", object(), None
        self.killed: list[str] = []
        self.pulse = types.SimpleNamespace(read=iter(beats).__next__)

    def kill(self, why: str) -> None:
        self.killed.append(why)


def watch(*beats: Beat) -> tuple[Hangs, Child]:
    child = Child(*beats)
    children: Any = [child]
    gate: Any = None
    return Hangs(children, gate, Policy(), At()), child


ALIVE = Beat(2 * HOUR_US - 1000, 500, "busy")
TORN = Beat(0, 500, "busy")
"""As a beat looks that is read while it is written."""


def test_a_torn_beat_ends_nobody() -> None:
    hangs, child = watch(ALIVE, TORN, ALIVE, TORN, ALIVE)
    for _ in range(5):
        hangs.pulses()
    assert child.killed == []


def test_two_looks_in_a_row_end_it() -> None:
    hangs, child = watch(ALIVE, TORN, TORN, TORN)
    for _ in range(3):
        hangs.pulses()
    assert child.killed == ["hung"]


def test_a_pulse_is_read_as_it_was_written(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path / "p")
    pulse.beat(1000, "busy", 1)
    pulse.beat(1000, "idle")
    assert pulse.read() == Beat(1000, 0, "idle")
    pulse.close()
