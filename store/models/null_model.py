"""The built-in model that needs no file: bytes are its tokens, and its conversation is plain text.

It serves the engine `null`, with which the whole service can be run, shown and tested without weights.
"""

import hashlib
import re
from collections.abc import Sequence

from core.errors import Malformed
from store.models.template import Message, check

NULL_ID = "null"
_NULL_NAME = re.compile(r"null(-[a-z0-9]{1,16})?")
NULL_CONTEXT = 8_192
_EOS = 256


class NullTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8; 256 ends an answer."""

    vocab_size = 257
    bos: int | None = None
    eos: int | None = _EOS
    eot: int | None = None
    adds_bos = False
    control = frozenset({_EOS})
    digest = hashlib.sha256(b"bytes, then end").hexdigest()

    def encode(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        """The bytes of `text`. There are no control tokens in text, so `special` changes nothing."""
        return self.encode_parts(((text, special),))

    def encode_parts(self, parts: Sequence[tuple[str, bool]]) -> tuple[int, ...]:
        """The bytes of several texts that follow each other; raises `core.errors.Malformed` for lone surrogates."""
        try:
            return tuple("".join(text for text, _ in parts).encode())
        except UnicodeEncodeError as error:
            msg = "the text holds half a character (a lone surrogate); send valid Unicode"
            raise Malformed(msg) from error

    def piece(self, token: int) -> bytes:
        """The byte a token stands for; nothing for the end and for ids out of range."""
        return bytes([token]) if 0 <= token < _EOS else b""

    def controls_in(self, _text: str) -> tuple[int, ...]:
        """No text writes a control token."""
        return ()


def null_chat(messages: Sequence[Message]) -> str:
    """The conversation as one line per message, ready for the answer."""
    check(messages)
    return "".join(f"{message.role}: {message.content}\n" for message in messages) + "assistant:"


def is_null(model_id: str) -> bool:
    """Whether an id names the built-in model: `null`, or `null-NAME` for another of its kind."""
    return _NULL_NAME.fullmatch(model_id) is not None
