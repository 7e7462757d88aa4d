"""What a page shows of an output: its end, in a window that moves in steps. The whole is text at an address of its own.

1. However long an output is, its page stays small: it shows `SHOWN` characters, and fewer than `STEP` more.
2. The window moves a whole `STEP` at a time, so that in between an open page has only to append what is new.
3. Only the chunks in the window are read.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from core.events import Recorded
from core.state import RequestState
from store.reads import Reader
from web.views import Span, spans

SHOWN: Final = 32_768
STEP: Final = 16_384


class Output(msgspec.Struct, frozen=True):
    """The shown part of the text of one output epoch: from character `start` on. `whole` asks for all of it."""

    epoch: int
    text: str
    start: int
    whole: str


def shown_upto(states: Sequence[RequestState]) -> dict[int, int]:
    """By output epoch, in order: how many characters of it were shown in the end."""
    return {state.output_epoch: state.visible_upto for state in states}


def window(upto: int) -> int:
    """The first character of a text of `upto` that is on the page."""
    return max(0, (upto - SHOWN) // STEP * STEP)


async def outputs(
    reader: Reader, history: Sequence[Recorded], states: Sequence[RequestState], at: int | None
) -> list[Output]:
    """Every output epoch, as far as it was shown at the end of `history`; `at` where that is a moment of the past."""
    parts = spans(history)
    return [await _output(reader, states[-1].id, epoch, upto, parts, at) for epoch, upto in shown_upto(states).items()]


async def _output(
    reader: Reader, request_id: str, epoch: int, upto: int, parts: Mapping[int, Span], at: int | None
) -> Output:
    start = window(upto)
    wanted = [part for part in parts.values() if part.epoch == epoch and part.end > start]
    text = ""
    if wanted:
        chunks = await reader.chunks(request_id, epoch, wanted[0].first, wanted[-1].first)
        before = wanted[0].start
        text = "".join(chunk.text for _first, chunk in chunks)[max(0, start - before) : upto - before]
    return Output(epoch, text, start, f"run={epoch + 1}" + ("" if at is None else f"&at={at}"))
