r"""How a model's training split text before merging, by the name in `tokenizer.ggml.pre`.

A wrong split still gives ids and still gives an answer, only a worse one, so a name that is not in this table is
refused instead of guessed. Each entry is a list of steps, applied one after the other to the pieces of the step
before; what a pattern does not match stays a piece of its own. Byte-level spelling follows at the end.

`\p{N}` first and alone means that every digit is a token (SmolLM, StarCoder and kin). Where the llama.cpp engine
splits otherwise than the model's publisher, it is followed: its users are who the models were tried by.
"""

import msgspec
from tokenizers import Regex, pre_tokenizers


def _either(*ways: str) -> str:
    """One pattern of several, the first that matches winning."""
    return "|".join(ways)


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_SHORT = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _either(_SHORT, _WORD, r"\p{N}{1,3}", _SIGNS, _SPACES)
_QWEN2 = _either(_SHORT, _WORD, r"\p{N}", _SIGNS, _SPACES)
_QWEN35 = _either(_SHORT, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _SPACES)
_SEED = _either(_SHORT, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _SPACES)
_MINICPM5 = _either(_SHORT, _WORD, r"\p{N}+", _SIGNS, _SPACES)
_CASCADE = _either(*(rf"\s{{{size}}}(?!\S)" for size in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")))
_JAIS2 = _either(_SHORT, _WORD, r"\p{N}{1,3}", _SIGNS, r"\s*[\r\n]+", _CASCADE, r"\s")
_NOT_LOWER, _NOT_UPPER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_SIGNS_OR_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


def _cased(first: str, second: str, short: str, digits: str) -> str:
    """Words split where a small letter is followed by a capital."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return _either(
        f"{lead}{first}*{second}+{short}", f"{lead}{first}+{second}*{short}", digits, _SIGNS_OR_SLASH, _SPACES
    )


_TEKKEN = _cased(_NOT_LOWER, _NOT_UPPER, "", r"\p{N}")
_GPT4O = _cased(_NOT_LOWER, _NOT_UPPER, f"{_SHORT}?", r"\p{N}{1,3}")
_HAN = (
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ebef\U0002f800-\U0002fa1f]"
)
_KIMI_K2 = _either(
    f"{_HAN}+", rf"[^\r\n\p{{L}}\p{{N}}]?(?:(?!{_HAN})\p{{L}})+{_SHORT}?", r"\p{N}{1,3}", _SIGNS, _SPACES
)
_EXAONE = _either(
    _SHORT,
    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
    _DIGIT,
    r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
    r"\s*[\r\n]|\s+(?!\S)|\s+",
)
_UFAKZEKA = _either(_WORD, _DIGIT, _SIGNS, _SPACES)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _SPACES
)
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK = r"(?:(?!\s)[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff])+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"  # noqa: RUF001 -- the commas of several scripts


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


_FAMILIES = {
    ("default",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0", "mellum"): (
        PreTokenizer((_GPT2,))
    ),
    ("exaone4",): PreTokenizer((_GPT2,)),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"): (
        PreTokenizer((_DIGIT, _GPT2))
    ),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"): (
        PreTokenizer((_LLAMA3,), whole_words=True, starts_with_bos=True)
    ),
    ("dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"): PreTokenizer((_LLAMA3,)),
    (
        *("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        *("bailingmoe", "bailingmoe2", "llada-moe"),
    ): PreTokenizer((_QWEN2,)),
    ("qwen35",): PreTokenizer((_QWEN35,)),
    ("seed-coder",): PreTokenizer((_SEED,)),
    ("minicpm5",): PreTokenizer((r"\p{N}{1,3}", _MINICPM5), whole_words=True),
    ("jais-2",): PreTokenizer((_JAIS2,)),
    ("tekken",): PreTokenizer((_TEKKEN,), whole_words=True, starts_with_bos=True),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): PreTokenizer((_GPT4O,)),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm"): PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3)),
    ("deepseek-coder",): PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT)),
    ("falcon",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    ("bloom", "poro-chat", "gpt3-finnish"): PreTokenizer((_BLOOM,)),
    ("viking",): PreTokenizer((_BLOOM, _DIGIT)),
    ("exaone-moe",): PreTokenizer((_EXAONE,)),
    ("laguna",): PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
    ("ufakzeka",): PreTokenizer((_UFAKZEKA,)),
    ("kimi-k2",): PreTokenizer((_KIMI_K2,)),
    ("superbpe",): PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
}

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: way for names, way in _FAMILIES.items() for name in names}
