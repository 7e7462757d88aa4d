"""Text that a server sends, as units of the model: each piece of text becomes ids that spell it exactly.

1. A server sends its tokens one by one or a few at a time, never half of one. So each piece by itself is turned into
   ids, and the ids are those that were drawn, as far as text can tell.
2. What a piece ends with may be half a character: half of a pair of surrogates, or the sign that stands for bytes that
   are no character yet. It waits for the next piece.
3. Ids that do not spell the text are handed to nobody.
"""

from typing import Final

from core.errors import EngineFault, Malformed
from store.models.prompt_side import PromptSide

_REPLACEMENT: Final = "\ufffd"
_LEADS: Final = ("", "\n")
"""Some vocabularies put a space in front of a text; behind a line's end they do not."""


class Speller:
    """For one answer."""

    def __init__(self, side: PromptSide) -> None:
        self._side = side
        self._held = ""

    def take(self, text: str) -> tuple[int, ...]:
        """The units of what can be told by now. Raises `EngineFault` for what the vocabulary cannot spell."""
        text = self._held + text
        ready = text.rstrip(_REPLACEMENT)
        if ready and "\ud800" <= ready[-1] <= "\udbff":
            ready = ready[:-1]
        self._held = text[len(ready) :]
        return self._units(ready)

    def rest(self, *, cut: bool) -> tuple[int, ...]:
        """The units of what still waited. After an answer that was cut, that is half a character and nothing."""
        held, self._held = self._held, ""
        return () if cut else self._units(held)

    def _units(self, text: str) -> tuple[int, ...]:
        if not text:
            return ()
        try:
            whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
            wanted = whole.encode()
            for lead in _LEADS:
                before = self._side.tokenizer.encode(lead, special=False)
                ids = self._side.tokenizer.encode(lead + whole, special=False)
                units = ids[len(before) :]
                if ids[: len(before)] == before and b"".join(map(self._side.piece, units)) == wanted:
                    return units
        except (UnicodeError, Malformed) as error:
            raise EngineFault(f"The server sent half a character, and never its other half: {text!r}.") from error
        raise EngineFault(
            f"The server sent {whole[:40]!r}, which the vocabulary of {self._side.model} cannot spell. See that it"
            " serves the same model."
        )
