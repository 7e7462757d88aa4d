"""Draws the states of a request into `docs/concepts.md`, from the table that the program itself obeys.

`python docs/diagram.py` writes it, `--check` only says whether it is current (exit status 1 if not).
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from core.machine import START, TABLE, ByUnits, Target
from core.words import ALL_STATES, SETTLED, TERMINAL, State

PAGE = Path(__file__).resolve().with_name("concepts.md")
BEGIN, END = "<!-- diagram: begin (made by docs/diagram.py) -->\n", "<!-- diagram: end -->\n"


def reached(target: Target) -> set[State]:
    """The states that a target may mean."""
    if isinstance(target, ByUnits):
        return {target.none_gpu, target.none_cpu, target.some_gpu, target.some_cpu}
    return {target}


def edges() -> Iterator[tuple[str, str, str]]:
    """(from, to, event) for every row that leads to another state; `[*]` is the beginning and the end."""
    for event, state in START.items():
        yield "[*]", state, event
    for event, rows in TABLE.items():
        for source, target in rows.items():
            for state in sorted(reached(target) - {source}, key=ALL_STATES.index):
                yield source, state, event
    for state in ALL_STATES:
        if state in TERMINAL:
            yield state, "[*]", ""


def stays() -> dict[str, list[str]]:
    """Events that may come in a state without changing it."""
    found: dict[str, list[str]] = {state: [] for state in ALL_STATES}
    for event, rows in TABLE.items():
        for source, target in rows.items():
            if source in reached(target):
                found[source].append(event)
    return found


def drawing() -> str:
    """The diagram and the list of events that change nothing, as Markdown."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for source, target, event in edges():
        grouped.setdefault((source, target), []).append(event)
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    {_name(state)}: {state}" for state in ALL_STATES]
    for (source, target), events in grouped.items():
        label = ", ".join(filter(None, events))
        lines.append(f"    {_name(source)} --> {_name(target)}" + (f": {label}" if label else ""))
    lines += ["```", "", "| state | kind | events that leave it as it is |", "|---|---|---|"]
    for state, events in stays().items():
        kind = "terminal" if state in TERMINAL else "settled" if state in SETTLED else "active"
        lines.append(f"| `{state}` | {kind} | {', '.join(f'`{event}`' for event in events)} |")
    return "\n".join(lines) + "\n"


def _name(state: str) -> str:
    """A state's name in the diagram's own language, which reads `-` as part of an arrow."""
    return state.replace("-", "_")


def renewed(page: str) -> str:
    """The page with today's drawing in its place."""
    before, begin, rest = page.partition(BEGIN)
    _old, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has lost the lines that mark the diagram's place: {BEGIN!r} and {END!r}")
    return before + BEGIN + drawing() + END + after


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 when it is not current")
    parser.add_argument("--page", type=Path, default=PAGE, help=argparse.SUPPRESS)
    given = parser.parse_args()
    page = given.page.read_text()
    fresh = renewed(page)
    if given.check and page != fresh:
        print(f"{given.page.name} shows other states than core/machine.py has; run: python docs/diagram.py")
        return 1
    if page != fresh:
        given.page.write_text(fresh)
    print("the state diagram is current")
    return 0


if __name__ == "__main__":
    sys.exit(main())
