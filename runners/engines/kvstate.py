"""Which models' attention state llama.cpp can save and take up again, and what two engines must agree on for it.

1. Only an architecture known to keep a plain cache of every token is believed; one that is not listed cannot.
2. The state of some architectures is saved without an error and comes back as something else: they are listed with
   the reason, which is shown to whoever asks.
3. A state is taken only where everything in its format agrees, letter for letter.
"""

from collections.abc import Mapping
from typing import Any, Final

_WHOLE: Final = frozenset(
    (
        *("arcee", "baichuan", "bitnet", "bloom", "chatglm", "codeshell", "command-r", "dbrx", "deepseek", "dots1"),
        *("ernie4_5", "ernie4_5-moe", "exaone", "falcon", "gemma", "glm4", "glm4moe", "gpt2", "gptneox", "granite"),
        *("granitemoe", "grok", "internlm2", "jais", "llama", "minicpm", "mpt", "nemotron", "olmo", "olmoe", "orion"),
        *("phi2", "plamo", "qwen", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "refact", "seed_oss", "smollm3"),
        *("stablelm", "starcoder", "starcoder2", "xverse"),
    )
)
"""Every layer attends to every token, and the cache is all the state there is."""

_WINDOW: Final = "it keeps only a window of the last tokens in some layers"
_RECURRENT: Final = "its layers carry a running state that cannot be cut at a token"
_PICTURES: Final = "its positions are made for pictures"
_REASONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("cohere2", "exaone4", "gemma2", "gemma3", "gemma3n", "gpt-oss", "llama4", "olmo2", "phi3", "phimoe"), _WINDOW
    ),
    **dict.fromkeys(
        (
            *("arwkv7", "falcon-h1", "granitehybrid", "jamba", "kimi-linear", "lfm2", "lfm2moe", "mamba", "mamba2"),
            *("nemotron_h", "nemotron_h_moe", "plamo2", "qwen3next", "rwkv6", "rwkv6qwen2", "rwkv7"),
        ),
        _RECURRENT,
    ),
    **dict.fromkeys(("cogvlm", "glm4v", "qwen2vl", "qwen3vl", "qwen3vlmoe"), _PICTURES),
}


def why_not(metadata: Mapping[str, Any]) -> str:
    """Why the state of a model with this metadata cannot be saved; empty when it can."""
    architecture = metadata.get("general.architecture", "")
    if architecture in _REASONS:
        return f"The state of {architecture} models cannot be saved: {_REASONS[architecture]}."
    if architecture not in _WHOLE:
        return f"It is not known whether the state of {str(architecture)[:40]!r} models can be saved."
    if metadata.get(f"{architecture}.attention.sliding_window"):
        return f"The state of this {architecture} model cannot be saved: {_WINDOW}."
    return ""


def kv_format(*, build: str, contract: str, context: int, metadata: Mapping[str, Any]) -> str:
    """What a saved state must agree to, in words. Empty when the model's cannot be saved."""
    if why_not(metadata):
        return ""
    architecture = metadata["general.architecture"]
    scaling = [
        f"{key.rpartition('.')[2]}={metadata[key]}"
        for key in (f"{architecture}.rope.scaling.type", f"{architecture}.rope.scaling.factor")
        if key in metadata
    ]
    facts = [
        f"llama.cpp {build}",
        f"model {contract[:16] or 'unnamed'}",
        "k=f16 v=f16 flash unified no-window",
        f"rope {' '.join(scaling)}" if scaling else "rope plain",
        f"context {context}",
    ]
    return "; ".join(facts)
