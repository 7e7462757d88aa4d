"""The tokenizer of a model, built from the model file itself.

1. Ids are made once, at admission, and stored; engines are fed ids, never text. An engine whose own tokenizer is
   wrong for the model (the embedded engine does not split text as these models were trained) still computes the
   right thing.
2. Control tokens are made only where the caller says so. Text from outside is encoded with `special=False`, so
   "<|im_end|>" in it stays nine ordinary characters. In a SentencePiece vocabulary the llama.cpp engine's own
   tokenizer may merge such letters to the control token; here they stay letters.
3. Tokens that are names without power (user-defined ones) are recognised in all text, as in training.
4. A byte that is not in the vocabulary has no id and is left out; SmolLM2 lacks a few control characters and
   bytes that begin no assigned character. Every implementation of these vocabularies does the same.
5. In a SentencePiece vocabulary a text that begins, or follows a control or user-defined token, gets a space in
   front unless the file says otherwise.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as NativeTokenizer
from tokenizers.models import BPE

from core.errors import Malformed
from store.models import bytes_alphabet
from store.models.gguf import GGUF, read_header
from store.models.marks import Marks
from store.models.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from store.models.sentencepiece import SPACE, Merger
from store.models.vocabulary import BYTE, NORMAL, UNUSED, USER_DEFINED, Vocabulary, broken, byte_of, read_vocabulary

MAX_MARKS = 10_000
"""Each is looked for in every text; real models have at most about a thousand."""
_SWALLOWING = ("phi-3", "phi3")
_NOT_SWALLOWING = ("<unk>", "<s>", "<|endoftext|>")


class Tokenizer:
    """Text to ids and back for one model. Safe to use from several threads."""

    def __init__(self, header: GGUF) -> None:
        vocabulary = read_vocabulary(header)
        self._encoder: _ByteLevel | _SentencePiece
        if vocabulary.model == "llama":
            self._encoder = _SentencePiece(header, vocabulary)
        else:
            self._encoder = _ByteLevel(header, vocabulary)
        self.vocab_size = len(vocabulary.tokens)
        self.bos = vocabulary.bos
        self.eos = vocabulary.eos
        self.eot = vocabulary.eot
        self.adds_bos = self.bos is not None and header.value(
            "tokenizer.ggml.add_bos_token", bool, default=self._encoder.starts_with_bos
        )
        self.control = vocabulary.control
        """Ids of tokens that steer the model. But for a few that divide an answer, they show nothing."""
        self.ends = vocabulary.ends
        """Ids that end an answer, the likeliest first."""
        hidden = vocabulary.control - vocabulary.shown
        self._pieces = tuple(
            b"" if index in hidden or kind == UNUSED else self._encoder.bytes_of(text, kind)
            for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        )
        self._marks = _marks(header, vocabulary)
        self.digest = _digest(header, vocabulary, self._encoder.digested)
        """Hex SHA-256 of all that decides which ids a text gets."""

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
        first = True
        try:
            for piece in self._marks.split(parts):
                if isinstance(piece, int):
                    found.append(piece)
                    first = True
                else:
                    found += self._encoder.ids(piece, first=first)
                    first = False
        except (UnicodeEncodeError, TypeError) as error:
            # The library takes only text that can be UTF-8 and says so by either error.
            msg = "the text holds half a character (a lone surrogate); send valid Unicode"
            raise Malformed(msg) from error
        return tuple(found)

    def piece(self, token: int) -> bytes:
        """The exact bytes a token adds to the output; empty for control tokens and for ids out of range.

        A character may need several tokens, so single pieces need not be valid UTF-8.
        """
        return self._pieces[token] if 0 <= token < self.vocab_size else b""

    def controls_in(self, text: str) -> tuple[int, ...]:
        """The control tokens that `encode(text, special=True)` would make, in order."""
        found = self._marks.split(((text, True),))
        return tuple(piece for piece in found if isinstance(piece, int) and piece in self.control)


class _ByteLevel:
    """Byte-level BPE, by the tokenizers library."""

    def __init__(self, header: GGUF, vocabulary: Vocabulary) -> None:
        pre = pre_tokenizer(header)
        if bytes_alphabet.LETTERS[0x20] not in vocabulary.by_text:
            cause = "the vocabulary is not spelled in the byte-level alphabet, as in a copy prepared for another engine"
            raise broken(header, cause)
        merges = header.texts("tokenizer.ggml.merges")
        self.starts_with_bos = pre.starts_with_bos
        self.digested = ((), merges)
        self._native = _build(header, pre, vocabulary.by_text, merges)

    def ids(self, text: str, *, first: bool) -> list[int]:  # noqa: ARG002 -- where a text stands changes nothing here
        return list(self._native.encode(text, add_special_tokens=False).ids)

    def bytes_of(self, text: str, kind: int) -> bytes:
        if kind == BYTE and (byte := byte_of(text)) is not None:
            return bytes([byte])
        raw = None if kind == USER_DEFINED else bytes_alphabet.to_bytes(text)
        return text.encode("utf-8", "surrogateescape") if raw is None else raw


class _SentencePiece:
    """SentencePiece, merged by score."""

    starts_with_bos = True

    def __init__(self, header: GGUF, vocabulary: Vocabulary) -> None:
        self._merger = Merger(header, vocabulary)
        self._spaced = header.value("tokenizer.ggml.add_space_prefix", bool, default=True)
        self.digested = ((self._spaced, *header.metadata["tokenizer.ggml.scores"]), ())

    def ids(self, text: str, *, first: bool) -> list[int]:
        return self._merger.ids(f" {text}" if first and self._spaced else text)

    def bytes_of(self, text: str, kind: int) -> bytes:
        if kind == BYTE and (byte := byte_of(text)) is not None:
            return bytes([byte])
        shown = text.replace(SPACE, " ") if kind == NORMAL else text
        return shown.encode("utf-8", "surrogateescape")


def pre_tokenizer(header: GGUF) -> PreTokenizer:
    """The way a byte-level model splits text; raises `ModelFileError` naming what is not known."""
    model = header.value("tokenizer.ggml.model", str)
    if model != "gpt2":
        kinds = {"bert": "WordPiece", "t5": "unigram", "rwkv": "RWKV"}
        name = f"{model!r} ({kinds[model]})" if model in kinds else repr(model)
        raise broken(header, f"vocabularies of kind {name} are not supported")
    name = header.value("tokenizer.ggml.pre", str, default="default")
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise broken(header, f"the pre-tokenizer {name!r} is not known (known: {known})")
    return PRE_TOKENIZERS[name]


def _build(header: GGUF, pre: PreTokenizer, vocabulary: dict[str, int], merges: tuple[str, ...]) -> Any:
    pairs = []
    for merge in merges:
        # A merge is two entries with one space between; entries themselves spell a space as another character.
        left, space, right = merge.partition(" ")
        if not space or any(part not in vocabulary for part in (left, right, left + right)):
            raise broken(header, f"the merge {merge!r} does not fit the vocabulary")
        pairs.append((left, right))
    try:
        native = NativeTokenizer(BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre.whole_words))
        native.pre_tokenizer = pre.build()
    except Exception as error:  # the library raises bare Exception
        raise broken(header, f"the vocabulary cannot be used: {error}") from error
    return native


def _marks(header: GGUF, vocabulary: Vocabulary) -> Marks:
    control = {text: index for index in vocabulary.control if (text := vocabulary.tokens[index])}
    user = {text: index for index in vocabulary.user if (text := vocabulary.tokens[index])}
    if len(control) + len(user) > MAX_MARKS:
        raise broken(header, f"{len(control) + len(user)} control and user-defined tokens are more than {MAX_MARKS}")
    name = header.value("general.name", str, default="").lower()
    swallowing: set[int] = set()
    if any(part in name for part in _SWALLOWING):
        swallowing = {index for text, index in (control | user).items() if text not in _NOT_SWALLOWING}
    return Marks(control, user, swallowing)


def _digest(header: GGUF, vocabulary: Vocabulary, digested: tuple[tuple[float, ...], tuple[str, ...]]) -> str:
    scores, merges = digested
    keys = ("model", "pre", "bos_token_id", "eos_token_id", "eot_token_id", "add_bos_token")
    scalars = {key: header.metadata.get(f"tokenizer.ggml.{key}") for key in keys}
    total = hashlib.sha256(msgspec.json.encode(scalars, order="sorted"))
    for part in (vocabulary.tokens, merges):
        raw = [text.encode("utf-8", "surrogateescape") for text in part]
        total.update(msgspec.msgpack.encode(raw))
    total.update(msgspec.msgpack.encode(vocabulary.kinds))
    if scores:
        total.update(msgspec.msgpack.encode(scores))
    return total.hexdigest()
