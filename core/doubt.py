"""Does an answer look like nonsense? Signs that are seen without knowing the right answer; the first is told.

1. `repeated`: its newest units are all the same one. Broken cards are seen to say `!!!!!!` or `GGGGGG` for ever.
2. `empty`: its newest units say nothing, as ids do that no vocabulary has.
3. `unreadable`: half of the newest text is characters that are none.
4. `one-unit`: it has ended, and was one unit from its beginning to its end.

A sign proves nothing: a sound model may say all of this, and be asked to. What follows is a canary, never a verdict.
"""

from collections.abc import Sequence
from typing import Final

NEWEST: Final = 24
"""Units that are looked at."""
SHORT: Final = 8
"""Fewer units than this are no sign, whatever they are."""
_BEFORE: Final = 3
"""Bytes of a character that may have begun before them; the last one may not be whole yet either."""


def sign(units: Sequence[int], pieces: Sequence[bytes], *, ended: bool) -> str | None:
    """The sign that an answer shows after its newest unit; None: it shows none. `pieces` are its units' bytes."""
    newest = units[-NEWEST:]
    if len(newest) == NEWEST and len(set(newest)) == 1:
        return "repeated"
    text = b"".join(pieces[-NEWEST:]).decode(errors="replace")
    if len(newest) == NEWEST and not text:
        return "empty"
    whole = text[_BEFORE:-1]
    if len(newest) == NEWEST and len(whole) >= SHORT and 2 * whole.count("\ufffd") >= len(whole):
        return "unreadable"
    if ended and len(units) >= SHORT and len(set(units)) == 1:
        return "one-unit"
    return None
