"""Finds control and user-defined tokens in a text, in the order in which the engine looks for them.

1. The longest token first, everywhere in the text, then the next; what is left between is plain text.
2. A control token counts only where the caller trusts the text, and only if it lies in one trusted part.
3. Some models' control tokens swallow the white space behind them.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence

_SPACES = " \t\n\v\f\r"


class Marks:
    """The tokens to look for, by spelling."""

    def __init__(self, control: dict[str, int], user: dict[str, int], swallowing: Iterable[int] = ()) -> None:
        self._control = control
        self._swallowing = frozenset(swallowing)
        known = {**user, **control}
        self._ordered = sorted(known.items(), key=lambda item: -len(item[0].encode("utf-8", "surrogateescape")))
        self._any = _any_of(known)
        self._any_user = _any_of(user)

    def split(self, parts: Iterable[tuple[str, bool]]) -> list[str | int]:
        """Plain text and ids, in turn; empty texts are left out. Each part comes with whether it is trusted."""
        trusted: list[tuple[int, int]] = []
        texts: list[str] = []
        size = 0
        for part, trust in parts:
            if trust:
                trusted.append((size, size + len(part)))
            texts.append(part)
            size += len(part)
        text = "".join(texts)
        pattern = self._any if trusted else self._any_user
        if not text or pattern is None or pattern.search(text) is None:
            return [text] if text else []
        pieces: list[tuple[int, int] | int] = [(0, size)]
        for mark, index in self._ordered:
            if mark in text:
                allowed = trusted if mark in self._control else None
                if allowed != []:
                    pieces = self._parted(text, pieces, mark, index, allowed)
        return [piece if isinstance(piece, int) else text[piece[0] : piece[1]] for piece in pieces]

    def _parted(
        self,
        text: str,
        pieces: list[tuple[int, int] | int],
        mark: str,
        index: int,
        allowed: Sequence[tuple[int, int]] | None,
    ) -> list[tuple[int, int] | int]:
        found: list[tuple[int, int] | int] = []
        for piece in pieces:
            if isinstance(piece, int):
                found.append(piece)
                continue
            start, end = piece
            at = text.find(mark, start, end)
            while at >= 0:
                after = at + len(mark)
                if allowed is not None and not _within(allowed, at, after):
                    at = text.find(mark, at + 1, end)
                    continue
                if at > start:
                    found.append((start, at))
                found.append(index)
                if index in self._swallowing:
                    while after < end and text[after] in _SPACES:
                        after += 1
                start = after
                at = text.find(mark, start, end)
            if start < end:
                found.append((start, end))
        return found


def _within(ranges: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    """Whether one of the ranges, which are in order, holds all of it."""
    place = bisect_right(ranges, (start, end))
    return any(low <= start and end <= high for low, high in ranges[max(0, place - 1) : place + 1])


def _any_of(marks: Iterable[str]) -> re.Pattern[str] | None:
    spellings = [re.escape(mark) for mark in marks]
    return re.compile("|".join(spellings)) if spellings else None
