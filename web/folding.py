"""A history for people: three or more checkpoints and saved states in a row are told in one line.

In a journal of many requests, which take turns, a row is what lies between two other events: there each request's
checkpoints are one line, and its saved states another.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

_NAMES: Final = {"Checkpointed": "checkpoints", "SnapshotSaved": "saved states"}
_QUIET: Final = frozenset(_NAMES)
_FROM: Final = 3


def folded(rows: Iterable[T], type_of: Callable[[T], str]) -> Iterator[Sequence[T]]:
    """The rows in order, each alone or as part of a run that is told in one line."""
    for run in stretches(rows, type_of):
        yield from [run] if len(run) >= _FROM else ([row] for row in run)


def count(run: Sequence[object]) -> str:
    """How many are told in the one line."""
    return f"{len(run)} checkpoints and saved states"


def summary(sentences: Sequence[str]) -> str:
    """The one line: how many there were, and the last of them."""
    return sentences[0] if len(sentences) == 1 else f"{count(sentences)}; the last: {sentences[-1]}"


def stretches(rows: Iterable[T], type_of: Callable[[T], str]) -> Iterator[Sequence[T]]:
    """The rows in order: each alone, and checkpoints and saved states that lie together as one stretch."""
    run: list[T] = []
    for row in rows:
        if type_of(row) in _QUIET:
            run.append(row)
            continue
        if run:
            yield run
        run = []
        yield [row]
    if run:
        yield run


def by_stream(stretch: Sequence[T], type_of: Callable[[T], str], stream_of: Callable[[T], str]) -> list[list[T]]:
    """The lines of a stretch, each by its first row: what many rows of one stream and type say is one line."""
    kinds: dict[tuple[str, str], list[T]] = {}
    for row in stretch:
        kinds.setdefault((stream_of(row), type_of(row)), []).append(row)
    place = {id(row): number for number, row in enumerate(stretch)}
    lines = [line for run in kinds.values() for line in ([run] if len(run) >= _FROM else [[row] for row in run])]
    return sorted(lines, key=lambda line: place[id(line[0])])


def count_of(run: Sequence[T], type_of: Callable[[T], str]) -> str:
    """How many of one type are told in the one line."""
    return f"{len(run):,} {_NAMES[type_of(run[0])]}"
