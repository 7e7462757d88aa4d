"""Whether the llama.cpp engine can take a model file, told before native code sees it.

That engine reads the source file itself, and knows far more than a list here could. So only this is checked:

1. The file is one whole model that generates text: no part of several files, no projector, adapter, or model that
   turns text into a vector.
2. It gives the numbers that admission needs, and a vocabulary that ids can be made of here, with an end.

What is left is found out by a trial of the file in a throw-away process.
"""

import importlib.util
from typing import Any

from core.errors import ModelFileError
from core.memory.architectures import ENCODERS
from store.models.gguf import GGUF
from store.models.tokenizer import Tokenizer
from store.models.weights import EMBEDDINGS

PACKAGE = "xllamacpp"
INSTALL = "pip install xllamacpp==2026.10.11549"
_PROJECTOR = "clip"
_PAIRED = frozenset(("t5", "bart", "whisper"))
"""An encoder feeds a decoder; there is no prompt to continue."""
_NUMBERS = ("context_length", "block_count", "embedding_length")
_MMPROJ = "mmproj"
_KINDS = {
    _MMPROJ: "a projector for images or sound, of use only beside the model it belongs to",
    "adapter": "an adapter, of use only on top of the model it was made for",
    "imatrix": "a table of importances for quantizing, not a model",
    "vocab": "a vocabulary without weights",
    "dataset": "a data set, not a model",
}


def installed() -> bool:
    """Whether the package with the engine is there; found without importing it."""
    return importlib.util.find_spec(PACKAGE) is not None


def require_installed() -> None:
    """Raise `ModelFileError` with the installing command when the package is not there."""
    if not installed():
        msg = f"the llama.cpp engine is not installed (package {PACKAGE}). Run: {INSTALL}, or: make setup"
        raise ModelFileError(msg)


def problems(header: GGUF) -> list[str]:
    """Reasons why the llama.cpp engine cannot serve this file; empty when it can try."""
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        return ["the file does not say its architecture"]
    found = _not_whole(header, architecture)
    if found:
        return found
    found = [
        f"{architecture}.{key} is missing or no positive number"
        for key in _NUMBERS
        if most(header, f"{architecture}.{key}") < 1
    ]
    return found + _vocabulary(header)


def require(header: GGUF) -> None:
    """Raise `ModelFileError` naming every problem and what to do."""
    found = problems(header)
    if found:
        msg = (
            f"{header.path.name} does not suit the llama.cpp engine: {'; '.join(found)}. "
            "Choose another file of the model, or another model."
        )
        raise ModelFileError(msg)


def most(header: GGUF, key: str, default: int = 0) -> int:
    """A count that a file may give once or for each layer; the largest. `default` when it is absent or no count."""
    value: Any = header.metadata.get(key)
    items = value if isinstance(value, tuple) else (value,)
    counts = [item for item in items if type(item) is int and item >= 0]
    return max(counts) if counts and len(counts) == len(items) else default


def _not_whole(header: GGUF, architecture: str) -> list[str]:
    kind = header.metadata.get("general.type")
    if architecture == _PROJECTOR or kind in _KINDS:
        return [f"it is {_KINDS[_MMPROJ if architecture == _PROJECTOR else str(kind)]}"]
    parts = most(header, "split.count")
    if parts > 1:
        number = most(header, "split.no") + 1
        join = "join them with llama-gguf-split --merge"
        return [f"it is part {number} of a model in {parts} files, and only whole files are served; {join}"]
    pooling = most(header, f"{architecture}.pooling_type")
    if architecture in ENCODERS or header.metadata.get(f"{architecture}.attention.causal") is False or pooling:
        return [f"it turns text into vectors ({architecture}) and does not write"]
    if architecture in _PAIRED:
        return [
            f"the architecture {architecture} pairs an encoder with a decoder; only models that continue text serve"
        ]
    if not header.tensors:
        return ["it has no weights"]
    return []


def _vocabulary(header: GGUF) -> list[str]:
    try:
        tokenizer = Tokenizer.from_gguf(header)
    except ModelFileError as error:
        return [error.detail.removeprefix(f"{header.path.name}: ").rstrip(".")]
    found = []
    if tokenizer.eos is None:
        found.append("the vocabulary names no EOS token")
    tokens = header.texts("tokenizer.ggml.tokens")
    if len(set(tokens)) != len(tokens):
        found.append("two entries of the vocabulary are spelled alike")
    rows = {tensor.shape[-1] for tensor in header.tensors if tensor.name == EMBEDDINGS}
    if rows and rows != {len(tokens)}:
        found.append(f"the embeddings are for {max(rows)} tokens, the vocabulary has {len(tokens)}")
    return found
