"""What of an answer may be shown: a pure function of its bytes so far, so that nothing shown is ever taken back.

1. Bytes that do not yet make a whole character wait (🦜 can be three tokens). Bytes that never can become one are
   shown as U+FFFD, exactly as a decoder with `errors="replace"` would show them at the end.
2. Text that is a proper prefix of a stop string waits.
3. A stop string itself and all after it is never shown. Of several, the one that is whole first counts, whatever the
   cut into pieces; of two that end together, the longer.
4. What is shown grows with the bytes: for b2 starting with b1, visible(b2) starts with visible(b1).
"""

import codecs
from collections.abc import Sequence

import msgspec


class Visible(msgspec.Struct, frozen=True):
    """`text` may be shown; `stopped` says that a stop string was reached and nothing follows."""

    text: str
    stopped: bool


def visible(raw: bytes, stops: Sequence[str], *, final: bool) -> Visible:
    """What of `raw` may be shown. `final` releases what was held back, since no more will come."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(raw, final=final)
    cut = _first_stop(text, stops)
    if cut is not None:
        return Visible(text[:cut], stopped=True)
    if final:
        return Visible(text, stopped=False)
    return Visible(text[: len(text) - _held(text, stops)], stopped=False)


def units_until_stop(pieces: Sequence[bytes], stops: Sequence[str]) -> int | None:
    """How many units it takes until a stop string is whole, or None. Units after it do not belong to the answer."""
    if not stops:
        return None
    raw = b"".join(pieces)
    if not visible(raw, stops, final=False).stopped:
        return None
    low, high = 1, len(pieces)
    while low < high:
        middle = (low + high) // 2
        if visible(b"".join(pieces[:middle]), stops, final=False).stopped:
            high = middle
        else:
            low = middle + 1
    return low


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string begins that is whole before any other, or None."""
    found = [(at + len(stop), at) for stop in stops if stop and (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def _held(text: str, stops: Sequence[str]) -> int:
    """Length of the longest tail of `text` that a stop string begins with."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
