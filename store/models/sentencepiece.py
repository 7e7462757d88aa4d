"""SentencePiece vocabularies: text is merged pair by pair, the pair with the best score first.

1. A text is its characters, spaces written as `▁`. Of all neighbours that together spell an entry, those whose entry
   has the highest score become one, the leftmost first among equals; until no neighbours spell an entry.
2. A character that is no entry becomes the entries of its UTF-8 bytes.
3. Only entries that are text are merged to. Spelling out a control token or the name of a byte gives its letters.
4. Two characters that stand next to each other in no entry are never merged across. So a text falls into pieces
   that do not depend on each other; most are words, and words return.
"""

import heapq
from functools import lru_cache
from itertools import pairwise

from store.models.gguf import GGUF
from store.models.vocabulary import BYTE, NORMAL, UNUSED, USER_DEFINED, Vocabulary, broken, byte_of

SPACE = "\u2581"
"""What a space is written as."""
_TEXT = frozenset((NORMAL, UNUSED, USER_DEFINED))
_REMEMBERED = 1 << 15
_WORD = 64
"""Longer pieces are rare and not remembered."""


class Merger:
    """Text to ids by score. Safe to use from several threads."""

    def __init__(self, header: GGUF, vocabulary: Vocabulary) -> None:
        """Raises `ModelFileError` when scores or bytes are missing."""
        scores = _scores(header, len(vocabulary.tokens))
        self._entries = {
            text: (-scores[index], index)
            for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
            if kind in _TEXT and index not in vocabulary.control
        }
        self._pairs = {text[at : at + 2] for text in self._entries for at in range(len(text) - 1)}
        self._bytes = _bytes(header, vocabulary)
        self._remembered = lru_cache(_REMEMBERED)(self._merged)

    def ids(self, text: str) -> list[int]:
        """The ids of a text without any control token."""
        found: list[int] = []
        start = 0
        escaped = text.replace(" ", SPACE)
        pairs = self._pairs
        for at, (one, other) in enumerate(pairwise(escaped), 1):
            if one + other not in pairs:
                found += self._piece(escaped[start:at])
                start = at
        return found + self._piece(escaped[start:]) if escaped else found

    def _piece(self, text: str) -> list[int]:
        return self._remembered(text) if len(text) <= _WORD else self._merged(text)

    def _merged(self, text: str) -> list[int]:
        """The ids of one piece."""
        entries = self._entries
        size = len(text)
        length = [1] * size
        before = list(range(-1, size - 1))
        after = [*range(1, size), -1]
        queue: list[tuple[float, int, int, int]] = []

        def consider(left: int, right: int) -> None:
            entry = entries.get(text[left : right + length[right]])
            if entry is not None:
                heapq.heappush(queue, (entry[0], left, right, length[left] + length[right]))

        for right in range(1, size):
            consider(right - 1, right)
        while queue:
            _, left, right, together = heapq.heappop(queue)
            if not length[left] or not length[right] or length[left] + length[right] != together:
                continue
            length[left], length[right] = together, 0
            following = after[left] = after[right]
            if following >= 0:
                before[following] = left
                consider(left, following)
            if before[left] >= 0:
                consider(before[left], left)
        found = []
        for at in range(size):
            if length[at]:
                part = text[at : at + length[at]]
                entry = entries.get(part)
                found += [entry[1]] if entry is not None else [self._bytes[byte] for byte in part.encode()]
        return found


def _scores(header: GGUF, size: int) -> tuple[float, ...]:
    found = header.value("tokenizer.ggml.scores", tuple)
    if found is None or len(found) != size or any(type(score) not in {float, int} for score in found):
        raise broken(header, f"a SentencePiece vocabulary of {size} needs as many scores in tokenizer.ggml.scores")
    if any(score != score for score in found):  # noqa: PLR0124 -- only what is not a number differs from itself
        raise broken(header, "a score in tokenizer.ggml.scores is not a number")
    return found


def _bytes(header: GGUF, vocabulary: Vocabulary) -> list[int]:
    """The id for each byte: its entry by name, else the character it is."""
    named = {
        byte: index
        for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind == BYTE and (byte := byte_of(text)) is not None
    }
    missing = [byte for byte in range(256) if byte not in named]
    if missing:
        raise broken(header, f"the vocabulary has no entry for {len(missing)} bytes, <0x{missing[0]:02X}> first")
    return [named[byte] for byte in range(256)]
