"""The tokenizer of a model, built from the model file itself.

1. Ids are made once, at admission, and stored; engines are fed ids, never text. An engine whose own tokenizer is
   wrong for the model (the embedded engine merges by score, which says nothing for a byte-level vocabulary) still
   computes the right thing.
2. Control tokens are made only where the caller says so. Text from outside is encoded with `special=False`, so
   "<|im_end|>" in it stays nine ordinary characters.
3. Tokens that are names without power (user-defined ones) are recognised in all text, as in training.
4. A byte that is not in the vocabulary has no id and is left out; SmolLM2 lacks a few control characters and
   bytes that begin no assigned character. Every implementation of these vocabularies does the same.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as NativeTokenizer
from tokenizers.models import BPE

from core.errors import Malformed, ModelFileError
from store.models import bytes_alphabet
from store.models.gguf import GGUF, read_header
from store.models.pretokenizers import PRE_TOKENIZERS, PreTokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Values of `tokenizer.ggml.token_type`."""
MAX_MARKS = 10_000
"""Each is looked for in every text; real models have at most about a thousand."""

_MARK = re.compile(r"<\|.+\|>", re.DOTALL)
_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ENDS_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")
_REMEDY = "Use a model with a byte-level BPE vocabulary whose pre-tokenizer is known, or add it to the table."


class Tokenizer:
    """Text to ids and back for one model. Safe to use from several threads."""

    def __init__(self, header: GGUF) -> None:
        self._pre = pre_tokenizer(header)
        tokens = header.texts("tokenizer.ggml.tokens")
        kinds = header.numbers("tokenizer.ggml.token_type") or (NORMAL,) * len(tokens)
        merges = header.texts("tokenizer.ggml.merges")
        if bytes_alphabet.LETTERS[0x20] not in tokens:
            cause = "the vocabulary is not spelled in the byte-level alphabet, as in a copy prepared for another engine"
            raise _broken(header, cause)
        if len(kinds) != len(tokens):
            raise _broken(header, f"{len(tokens)} tokens have {len(kinds)} types")
        self.vocab_size = len(tokens)
        self.bos = _id(header, "bos", self.vocab_size)
        self.eos = _id(header, "eos", self.vocab_size)
        by_text = {text: index for index, text in enumerate(tokens)}
        self.eot = _id(header, "eot", self.vocab_size)
        self.adds_bos = header.value("tokenizer.ggml.add_bos_token", bool, default=self._pre.starts_with_bos)
        if self.bos is None:
            self.adds_bos = False
        named = {self.bos, self.eos, self.eot}
        control = {
            index
            for index, kind in enumerate(kinds)
            if kind in {CONTROL, UNKNOWN} or index in named or (kind == USER_DEFINED and _MARK.fullmatch(tokens[index]))
        }
        self.control: frozenset[int] = frozenset(control)
        """Ids of tokens that steer the model and show nothing."""
        if self.eot is None:
            ends = (by_text.get(text) for text in _ENDS_OF_TURN)
            self.eot = next((index for index in ends if index in control and index != self.eos), None)
        user = {index for index, kind in enumerate(kinds) if kind == USER_DEFINED} - control
        self._pieces = tuple(
            b"" if index in control else _bytes_of(text, kinds[index]) for index, text in enumerate(tokens)
        )
        self._user = {tokens[index]: index for index in user if tokens[index]}
        self._marks = {**self._user, **{tokens[index]: index for index in control if tokens[index]}}
        if len(self._marks) > MAX_MARKS:
            raise _broken(header, f"{len(self._marks)} control and user-defined tokens are more than {MAX_MARKS}")
        self._user_pattern = _any_of(self._user)
        self._mark_pattern = _any_of(self._marks)
        self.digest = _digest(header, tokens, kinds, merges)
        """Hex SHA-256 of all that decides which ids a text gets."""
        self._native = _build(header, self._pre, by_text, merges)

    @classmethod
    def from_gguf(cls, source: GGUF | Path) -> "Tokenizer":
        """From a header, or from a file. Raises `ModelFileError` when its kind of vocabulary is not known here."""
        return cls(source if isinstance(source, GGUF) else read_header(source))

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """The ids of `text`, without any BOS of its own.

        With `special`, control tokens written out in the text become those tokens; without, they stay text.
        Raises `core.errors.Malformed` for text that is not valid Unicode (lone surrogates).
        """
        return self.encode_parts(((text, special),))

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> tuple[int, ...]:
        """The ids of several texts that follow each other, each with its own right to control tokens.

        Between control tokens the texts are encoded as one, so that where one text ends and the next begins leaves
        no trace in the ids. Raises `core.errors.Malformed` as `encode` does.
        """
        found: list[int] = []
        plain: list[str] = []
        for text, special in parts:
            at = 0
            for match in self._controls(text) if special else ():
                plain.append(text[at : match.start()])
                found += self._named("".join(plain))
                found.append(self._marks[match.group()])
                plain.clear()
                at = match.end()
            plain.append(text[at:])
        found += self._named("".join(plain))
        return tuple(found)

    def piece(self, token: int) -> bytes:
        """The exact bytes a token adds to the output; empty for control tokens and for ids out of range.

        A character may need several tokens, so single pieces need not be valid UTF-8.
        """
        return self._pieces[token] if 0 <= token < self.vocab_size else b""

    def controls_in(self, text: str) -> tuple[int, ...]:
        """The control tokens that `encode(text, special=True)` would make, in order."""
        return tuple(self._marks[match.group()] for match in self._controls(text))

    def _controls(self, text: str) -> Iterator[re.Match[str]]:
        if self._mark_pattern is not None:
            for match in self._mark_pattern.finditer(text):
                if self._marks[match.group()] in self.control:
                    yield match

    def _named(self, text: str) -> list[int]:
        """Ids of text without control tokens, user-defined tokens recognised."""
        if self._user_pattern is None:
            return self._plain(text)
        found: list[int] = []
        at = 0
        for match in self._user_pattern.finditer(text):
            found += self._plain(text[at : match.start()])
            found.append(self._user[match.group()])
            at = match.end()
        return found + self._plain(text[at:])

    def _plain(self, text: str) -> list[int]:
        if not text:
            return []
        try:
            return list(self._native.encode(text, add_special_tokens=False).ids)
        except (UnicodeEncodeError, TypeError) as error:
            # The library takes only text that can be UTF-8 and says so by either error.
            msg = "the text holds half a character (a lone surrogate); send valid Unicode"
            raise Malformed(msg) from error


def pre_tokenizer(header: GGUF) -> PreTokenizer:
    """The way the model splits text; raises `ModelFileError` naming what is not known."""
    model = header.value("tokenizer.ggml.model", str)
    if model is None:
        raise _broken(header, "the file carries no tokenizer (tokenizer.ggml.model is missing)")
    if model != "gpt2":
        raise _broken(header, f"vocabularies of kind {model!r} (SentencePiece, WordPiece, ...) are not supported")
    name = header.value("tokenizer.ggml.pre", str, default="default")
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise _broken(header, f"the pre-tokenizer {name!r} is not known (known: {known})")
    return PRE_TOKENIZERS[name]


def _build(header: GGUF, pre: PreTokenizer, vocabulary: dict[str, int], merges: tuple[str, ...]) -> Any:
    pairs = []
    for merge in merges:
        # A merge is two entries with one space between; entries themselves spell a space as another character.
        left, space, right = merge.partition(" ")
        if not space or any(part not in vocabulary for part in (left, right, left + right)):
            raise _broken(header, f"the merge {merge!r} does not fit the vocabulary")
        pairs.append((left, right))
    try:
        native = NativeTokenizer(BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre.whole_words))
        native.pre_tokenizer = pre.build()
    except Exception as error:  # the library raises bare Exception
        raise _broken(header, f"the vocabulary cannot be used: {error}") from error
    return native


def _bytes_of(text: str, kind: int) -> bytes:
    if kind == UNUSED:
        return b""
    if kind == BYTE and (match := _BYTE_NAME.fullmatch(text)):
        return bytes([int(match.group(1), 16)])
    if kind != USER_DEFINED:
        raw = bytes_alphabet.to_bytes(text)
        if raw is not None:
            return raw
    return text.encode("utf-8", "surrogateescape")


def _any_of(marks: dict[str, int]) -> re.Pattern[str] | None:
    # Longest first, so that <|a|> inside <|a|><|b|>-like names never wins over the longer name.
    ordered = sorted(marks, key=len, reverse=True)
    return re.compile("|".join(re.escape(mark) for mark in ordered)) if ordered else None


def _id(header: GGUF, name: str, size: int) -> int | None:
    found = header.value(f"tokenizer.ggml.{name}_token_id", int)
    if found is not None and not 0 <= found < size:
        raise _broken(header, f"the {name} token {found} is not in the vocabulary of {size}")
    return found


def _digest(header: GGUF, tokens: tuple[str, ...], kinds: tuple[int, ...], merges: tuple[str, ...]) -> str:
    keys = ("model", "pre", "bos_token_id", "eos_token_id", "eot_token_id", "add_bos_token")
    scalars = {key: header.metadata.get(f"tokenizer.ggml.{key}") for key in keys}
    total = hashlib.sha256(msgspec.json.encode(scalars, order="sorted"))
    for part in (tokens, merges):
        raw = [text.encode("utf-8", "surrogateescape") for text in part]
        total.update(msgspec.msgpack.encode(raw))
    total.update(msgspec.msgpack.encode(kinds))
    return total.hexdigest()


def _broken(header: GGUF, cause: str) -> ModelFileError:
    return ModelFileError(f"{header.path.name}: {cause}. {_REMEDY}")
