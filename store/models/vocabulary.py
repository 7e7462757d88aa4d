"""The vocabulary of a model file: its entries, which of them steer the model, and which end an answer.

The engine that will compute decides some of this by the spelling of an entry, since converters often leave it out.
What is done here is the same, so that both agree where an answer ends:

1. Entries with the spelling of an end (`<|im_end|>`, `</s>`, ...) end an answer and are control tokens, whatever
   type the file gives them. So do the ids that the file names as end of text, of turn or of message.
2. Entries that fill in the middle of code are control tokens; the fillers, repository names and file separators
   among them end an answer.
3. Where one model uses `<|end|>` between parts of an answer, that one ends nothing; the same for `</s>` where it is
   a name in mark-up.
4. A user-defined entry that is spelled like a control token is one here: no text of a person's may make it.
"""

import re

import msgspec

from core.errors import ModelFileError
from store.models.gguf import GGUF

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Values of `tokenizer.ggml.token_type`."""

_MARK = re.compile(r"<\|.+\|>", re.DOTALL)
_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_DEFAULT_IDS = {"llama": {"bos": 1, "eos": 2}}
"""Of vocabularies that need not name them, by kind."""

ENDS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>"),
        *("<end_of_utterance>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),  # noqa: RUF001
    )
)
"""Spellings that end an answer in every vocabulary."""
_TURN_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>"),
    *("[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"),  # noqa: RUF001
)
"""Spellings of the end of a turn, likeliest first."""
_FILLING = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Spellings that end an answer unless the file names another id for the purpose."""
_MIDDLE = {
    "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),  # noqa: RUF001
    "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),  # noqa: RUF001
    "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),  # noqa: RUF001
}
_SHOWN = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))
"""Control tokens that divide an answer into parts; without them the parts run into each other."""


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one file and what they are for. Ids are places in `tokens`."""

    model: str
    """The kind: `gpt2` for byte-level BPE, `llama` for SentencePiece."""
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    by_text: dict[str, int]
    bos: int | None
    eos: int | None
    eot: int | None
    control: frozenset[int]
    user: frozenset[int]
    """Names without power: recognised in all text."""
    shown: frozenset[int]
    """Control tokens whose spelling belongs into the text of an answer."""
    ends: tuple[int, ...]
    """Ids that end an answer, the likeliest first."""


def read_vocabulary(header: GGUF) -> Vocabulary:
    """Raises `ModelFileError` when there is none, or when its parts do not fit together."""
    model = header.value("tokenizer.ggml.model", str)
    if model is None:
        raise broken(header, "the file carries no tokenizer (tokenizer.ggml.model is missing)")
    tokens = header.texts("tokenizer.ggml.tokens")
    kinds = header.numbers("tokenizer.ggml.token_type") or (NORMAL,) * len(tokens)
    if len(kinds) != len(tokens):
        raise broken(header, f"{len(tokens)} tokens have {len(kinds)} types")
    by_text = {text: index for index, text in enumerate(tokens)}
    named = {name: _id(header, model, name, len(tokens)) for name in ("bos", "eos", "eot", "eom", *_FILLING, *_MIDDLE)}
    found = {*(by_text[text] for text in ENDS if text in by_text)}
    found |= {index for name in ("eos", "eot", "eom") if (index := named[name]) is not None}
    for name, spellings in _FILLING.items():
        found |= _filling(named[name], spellings, by_text)
    middle = {index for name, spellings in _MIDDLE.items() for index in _filling(named[name], spellings, by_text)}
    shown = {by_text[text] for text in _SHOWN if text in by_text}
    within = _ends_nothing(found, by_text)
    plain = {by_text["</s>"]} & within if "</s>" in by_text else set()
    shown |= within - plain
    named_ids = {index for name in ("bos", "eos", "eot", "eom") if (index := named[name]) is not None}
    control = {
        index
        for index, kind in enumerate(kinds)
        if kind in {CONTROL, UNKNOWN} or (kind == USER_DEFINED and _MARK.fullmatch(tokens[index]))
    }
    control = (control | named_ids | found | middle | shown) - plain
    eot = named["eot"]
    if eot is None:
        likely = (by_text.get(text) for text in _TURN_ENDS)
        eot = next((index for index in likely if index in found - within and index != named["eos"]), None)
    ends = found - within
    first = [index for index in (named["eos"], eot) if index in ends]
    return Vocabulary(
        model=model,
        tokens=tokens,
        kinds=kinds,
        by_text=by_text,
        bos=named["bos"],
        eos=named["eos"],
        eot=eot,
        control=frozenset(control),
        user=frozenset(index for index, kind in enumerate(kinds) if kind == USER_DEFINED) - control,
        shown=frozenset(shown),
        ends=tuple(dict.fromkeys([index for index in first if index is not None] + sorted(ends))),
    )


def byte_of(text: str) -> int | None:
    """The byte that an entry such as `<0x0A>` stands for."""
    match = _BYTE_NAME.fullmatch(text)
    return int(match.group(1), 16) if match else None


def broken(header: GGUF, cause: str, remedy: str = "") -> ModelFileError:
    """The error of a file whose vocabulary cannot be used."""
    known = "Use a model with a byte-level BPE vocabulary whose pre-tokenizer is known, or a SentencePiece one."
    return ModelFileError(f"{header.path.name}: {cause}. {remedy or known}")


def _filling(named: int | None, spellings: tuple[str, ...], by_text: dict[str, int]) -> set[int]:
    if named is not None:
        return {named}
    return {by_text[text] for text in spellings if text in by_text}


def _ends_nothing(found: set[int], by_text: dict[str, int]) -> set[int]:
    """Of the ends found by spelling, those that these vocabularies use for something else."""

    def there(*texts: str) -> bool:
        return any(by_text.get(text) in found for text in texts if text in by_text)

    call = there("<|call|>", "<|calls|>")
    within = set()
    if call and there("<|return|>", "<|flush|>") and there("<|end|>"):
        within.add(by_text["<|end|>"])
    if there("<|tool_response>") and there("</s>"):
        within.add(by_text["</s>"])
    return within


def _id(header: GGUF, model: str, name: str, size: int) -> int | None:
    found = header.value(f"tokenizer.ggml.{name}_token_id", int)
    if found is not None and not 0 <= found < size:
        raise broken(header, f"the {name} token {found} is not in the vocabulary of {size}")
    if found is None:
        found = _DEFAULT_IDS.get(model, {}).get(name)
        found = found if found is not None and found < size else None
    return found
