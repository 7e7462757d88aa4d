"""What people read: tables, sizes, times; and what programs read: JSON, one document or one a line.

Text of models and strangers is never sent to a terminal as it is: control characters in it could rewrite the screen.
"""

import sys
from collections.abc import Sequence
from typing import Any, Final

import msgspec

_KEPT: Final = frozenset("\n\t")


def printable(text: str) -> str:
    """`text` without characters that command a terminal; a line feed and a tab stay."""
    return "".join(char if char.isprintable() or char in _KEPT else "\N{REPLACEMENT CHARACTER}" for char in text)


def for_stdout(text: str) -> str:
    """`text` as it may be written to standard output: made printable for a terminal, untouched for a file or a pipe."""
    return printable(text) if sys.stdout.isatty() else text


def document(value: Any, *, one_line: bool = False) -> None:
    """Write a JSON document."""
    raw = msgspec.json.encode(value)
    print((raw if one_line else msgspec.json.format(raw, indent=2)).decode(), flush=True)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need; the last one may be long."""
    lines = [list(heads), *([printable(cell).replace("\n", " ") for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def facts(rows: Sequence[tuple[str, str]]) -> None:
    """Names and values, one a line."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name.ljust(width)}  {printable(value)}")


def note(text: str) -> None:
    """Tell something beside the result, on standard error."""
    print(printable(text), file=sys.stderr, flush=True)


def size_text(size: int | None) -> str:
    """Bytes for people; `unknown` is never zero."""
    if size is None:
        return "unknown"
    for unit, bytes_ in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= bytes_:
            return f"{size / bytes_:.1f} {unit}"
    return f"{size} B"


def clock_text(moment: str | None) -> str:
    """The time of day, UTC, to the millisecond, of an RFC 3339 time."""
    return "" if moment is None else moment[11:23]


def day_text(moment: str) -> str:
    """Day and time, UTC, to the second."""
    return f"{moment[:10]} {moment[11:19]}"
