"""What a measurement says, and how a report shows it."""

from collections.abc import Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """One row of the report, in words."""

    name: str
    measured: str
    reference: str
    ratio: str
    goal: str
    met: bool


def percentile(values: Sequence[float], q: float) -> float:
    """The value that `q` percent do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(len(ordered) * q) // 100) - 1))]


def table(figures: Sequence[Figure]) -> str:
    """The figures as a Markdown table."""
    lines = ["| figure | measured | reference, same run | ratio | goal | met |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {f.name} | {f.measured} | {f.reference} | {f.ratio} | {f.goal} | {'yes' if f.met else '**no**'} |"
        for f in figures
    ]
    return "\n".join(lines)
