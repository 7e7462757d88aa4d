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
    met: bool | None
    """None where there is no goal."""


def percentile(values: Sequence[float], q: float) -> float:
    """The value that `q` percent do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(len(ordered) * q) // 100) - 1))]


HEAD = "| figure | measured | reference, same run | ratio | goal | met |\n|---|---|---|---|---|---|"


_MET = {True: "yes", False: "**no**", None: "-"}


def row(figure: Figure) -> str:
    """A figure as a row of a Markdown table under `HEAD`."""
    name, measured, reference, ratio, goal, met = figure
    return f"| {name} | {measured} | {reference} | {ratio} | {goal} | {_MET[met]} |"
