"""A history for people: three or more checkpoints and saved states in a row are told in one line."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

_QUIET: Final = frozenset({"Checkpointed", "SnapshotSaved"})
_FROM: Final = 3


def folded(rows: Iterable[T], type_of: Callable[[T], str]) -> Iterator[Sequence[T]]:
    """The rows in order, each alone or as part of a run that is told in one line."""
    run: list[T] = []
    for row in rows:
        if type_of(row) in _QUIET:
            run.append(row)
            continue
        yield from _told(run)
        run = []
        yield [row]
    yield from _told(run)


def count(run: Sequence[object]) -> str:
    """How many are told in the one line."""
    return f"{len(run)} checkpoints and saved states"


def summary(sentences: Sequence[str]) -> str:
    """The one line: how many there were, and the last of them."""
    return sentences[0] if len(sentences) == 1 else f"{count(sentences)}; the last: {sentences[-1]}"


def _told(run: list[T]) -> Iterator[Sequence[T]]:
    if len(run) >= _FROM:
        yield run
    else:
        yield from ([row] for row in run)
