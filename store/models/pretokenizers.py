r"""How a model's training split text before merging, by the name in `tokenizer.ggml.pre`.

A wrong split still gives ids and still gives an answer, only a worse one, so a name that is not in this table is
refused instead of guessed. Each entry is a list of steps, applied one after the other to the pieces of the step
before; what a pattern does not match stays a piece of its own. Byte-level spelling follows at the end.

`\p{N}` first and alone means that every digit is a token (SmolLM, StarCoder and kin).
"""

import msgspec
from tokenizers import Regex, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_MODERN_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _MODERN_TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _MODERN_TAIL
_DIGITS = r"\p{N}"


class PreTokenizer(msgspec.Struct, frozen=True):
    """One way to split. The two flags are what the same name implies elsewhere in the tokenizer."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    """A piece that is in the vocabulary is taken as it is, without merging."""
    starts_with_bos: bool = False
    """Whether a prompt begins with the BOS token when the file does not say."""

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The same as a step of the tokenizers library."""
        splits = (pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns)
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_BY_DIGIT = PreTokenizer((_DIGITS, _GPT2))
_PLAIN = PreTokenizer((_GPT2,))
_LLAMA = PreTokenizer((_LLAMA3,), whole_words=True, starts_with_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "mpt": _PLAIN,
    "olmo": _PLAIN,
    "smollm": _BY_DIGIT,
    "starcoder": _BY_DIGIT,
    "refact": _BY_DIGIT,
    "command-r": _BY_DIGIT,
    "codeshell": _BY_DIGIT,
    "exaone": _BY_DIGIT,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "llama-bpe": _LLAMA,
    "qwen2": PreTokenizer((_QWEN2,)),
    "stablelm2": PreTokenizer((_QWEN2,)),
}
