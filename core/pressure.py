"""Memory pressure with hysteresis: when new work spills to the CPU lane, when it returns.

Spilling begins above `high`; it ends when use has stayed at or below `low` for `calm_for`. Between the two marks
nothing changes, so a reading that swings around one mark does not move work to and fro.
"""

import msgspec


class Pressure(msgspec.Struct, frozen=True):
    """`calm_us` is since when use has been low while spilling, or None."""

    spilling: bool = False
    calm_us: int | None = None


def step(before: Pressure, share: float, now_us: int, *, high: float, low: float, calm_for_us: int) -> Pressure:
    """The pressure after a reading that shows this share of the device in use."""
    if share > high:
        return Pressure(spilling=True)
    if not before.spilling:
        return before
    if share > low:
        return Pressure(spilling=True)
    calm_us = before.calm_us if before.calm_us is not None else now_us
    return Pressure() if now_us - calm_us >= calm_for_us else Pressure(spilling=True, calm_us=calm_us)
