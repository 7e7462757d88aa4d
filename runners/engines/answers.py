"""A server's streamed answer as pieces of text, with signs of life while it is awaited, and an end to the waiting.

1. Only text counts as progress: comments, roles and empty frames prove that something writes to the connection, not
   that anything computes.
2. Until the first text the limit is `first_s`, between two texts `silence_s`. The wait is over by no progress, not by
   anybody's exit.
3. An answer without a reason for its end has broken off, however orderly the connection was closed.
4. Text that the server takes out of the answer, as thoughts or as calls of tools, would be missing from it.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from core.errors import EngineFault
from runners.engines.base import EndReason
from runners.engines.openaihttp import Stream

_LOOK_S: Final = 0.25
_ENDS: Final[dict[object, EndReason]] = {"stop": "eos", "length": "length"}
_TAKEN_OUT: Final = ("reasoning_content", "reasoning", "tool_calls", "refusal")


class Piece(msgspec.Struct, frozen=True):
    """A run of text; `end` says why nothing follows."""

    text: str
    end: EndReason | None = None


class Answer:
    """Reads one stream. `alive` is called at least every quarter of a second; what it raises passes through."""

    def __init__(self, stream: Stream, *, first_s: float, silence_s: float, alive: Callable[[], None]) -> None:
        self._stream = stream
        self._limit = first_s
        self._begun = False
        self._silence_s = silence_s
        self._alive = alive
        self._deadline = time.monotonic() + first_s

    def piece(self) -> Piece:
        """The next text that is not empty, or the end. Raises `EngineFault`."""
        if self._begun:
            # Only waiting counts, not what was done with the text meanwhile.
            self._deadline = time.monotonic() + self._silence_s
        while True:
            frame = self._frame()
            if frame is None:
                raise EngineFault("The server's answer broke off: it ended without a reason.")
            found = _read(frame)
            if found.text:
                self._limit, self._begun = self._silence_s, True
            if found.text or found.end is not None:
                return found

    def prompt_tokens(self) -> int | None:
        """After the end: how many tokens the server counted in the prompt, if it says so."""
        while (frame := self._frame()) is not None:
            usage = frame.get("usage")
            if isinstance(usage, dict) and isinstance(usage.get("prompt_tokens"), int):
                return int(usage["prompt_tokens"])
        return None

    def close(self) -> None:
        """Leave it."""
        self._stream.close()

    def _frame(self) -> dict[str, Any] | None:
        """The next frame; None at the end of the stream."""
        while True:
            self._alive()
            try:
                frame = self._stream.next(_LOOK_S)
            except EOFError:
                return None
            if time.monotonic() > self._deadline:
                raise EngineFault(f"The server gave no sign of progress for {self._limit:g} s.")
            if frame is not None:
                return frame


def _read(frame: dict[str, Any]) -> Piece:
    choices = frame.get("choices")
    if not choices:
        return Piece("")
    choice = choices[0] if isinstance(choices, list) else None
    if not isinstance(choice, dict):
        raise EngineFault("The server sent a frame that is no part of an answer.")
    delta = choice.get("delta") or {}
    text = choice.get("text", delta.get("content") if isinstance(delta, dict) else delta)
    if not isinstance(text, str | None):
        raise EngineFault("The server sent a frame whose text is none.")
    for name in _TAKEN_OUT:
        if isinstance(delta, dict) and delta.get(name):
            raise EngineFault(
                f"The server takes parts out of its answers ({name}), and they would be missing. Start it without"
                " a parser for reasoning or tools (llama-server: --reasoning-format none)."
            )
    finish = choice.get("finish_reason")
    if finish is not None and finish not in _ENDS:
        raise EngineFault(f"The server ended its answer for a reason that is not known here: {str(finish)[:40]}.")
    return Piece(text or "", None if finish is None else _ENDS[finish])
