"""Writes the copy of a model file that the embedded engine can read.

The engine's reader is of August 2023. The copy differs from the source in exactly this:

1. GGUF version 2, alignment 32, only metadata the reader knows.
2. `output.weight` written out as a copy of `token_embd.weight` where the source ties the two.
3. Scores of 0 for every token: the reader wants the list even where it has no meaning.
4. Normal tokens as raw bytes instead of the byte-level alphabet; merges and all weights unchanged.

The source is read in pieces and never changed. The copy appears whole or not at all, and is not made again while
its record names the same source.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from core.errors import ModelFileError
from store.models import bytes_alphabet
from store.models.atomic import replacing
from store.models.gguf import GGUF, STRING, read_header
from store.models.gguf_write import F32, I32, NewTensor, write_gguf
from store.models.suitability import require_suitable
from store.models.vocabulary import NORMAL
from store.models.weights import EMBEDDINGS, OUTPUT, file_digest, tensor_chunks

RECIPE = 1
"""Raised whenever a copy of the same source would come out otherwise."""
_VERSION = 2
_KNOWN = (
    "general.architecture",
    "general.name",
    "general.file_type",
    "general.quantization_version",
    "llama.context_length",
    "llama.embedding_length",
    "llama.block_count",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.rope.scale_linear",
    "tokenizer.ggml.model",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.padding_token_id",
)


class _Record(msgspec.Struct, frozen=True):
    """Lies beside the copy and says what it was made of."""

    recipe: int
    source_digest: str
    prepared_bytes: int


def prepare(source: Path, target_dir: Path) -> Path:
    """The path of a copy of `source` in `target_dir` that the embedded engine can read; made if need be.

    Raises `ModelFileError` when the file is broken or does not suit the engine (nothing is written then), and
    `core.errors.NoSpace` when the copy does not fit on the disk.
    """
    header = read_header(source)
    require_suitable(header)
    target = target_dir / f"{source.stem}.prepared.gguf"
    record_path = target.with_suffix(".json")
    digest = file_digest(source)
    if _is_current(target, record_path, digest):
        return target
    # While the copy is being replaced no record may vouch for it.
    record_path.unlink(missing_ok=True)
    metadata, types = _metadata(header)
    with replacing(target) as file:
        write_gguf(file, version=_VERSION, metadata=metadata, types=types, tensors=_tensors(header))
        size = file.tell()
        if file_digest(source) != digest:
            msg = f"{source.name} changed while it was prepared. Wait until it is complete and prepare it again."
            raise ModelFileError(msg)
    with replacing(record_path) as file:
        file.write(msgspec.json.encode(_Record(RECIPE, digest, size)))
    return target


def _is_current(target: Path, record_path: Path, digest: str) -> bool:
    try:
        record = msgspec.json.decode(record_path.read_bytes(), type=_Record)
        return record == _Record(RECIPE, digest, target.stat().st_size)
    except (OSError, msgspec.DecodeError):
        return False


def _metadata(header: GGUF) -> tuple[dict[str, Any], dict[str, int]]:
    metadata = {key: header.metadata[key] for key in _KNOWN if key in header.metadata}
    types = {key: header.types[key] for key in metadata}
    tokens = header.texts("tokenizer.ggml.tokens")
    kinds = header.numbers("tokenizer.ggml.token_type") or (NORMAL,) * len(tokens)
    metadata["tokenizer.ggml.tokens"] = tuple(
        _raw(token) if kind == NORMAL else token for token, kind in zip(tokens, kinds, strict=True)
    )
    metadata["tokenizer.ggml.token_type"] = kinds
    metadata["tokenizer.ggml.scores"] = (0.0,) * len(tokens)
    types |= {
        "tokenizer.ggml.tokens": STRING,
        "tokenizer.ggml.token_type": I32,
        "tokenizer.ggml.scores": F32,
    }
    return metadata, types


def _raw(token: str) -> str | bytes:
    raw = bytes_alphabet.to_bytes(token)
    return token if raw is None else raw


def _tensors(header: GGUF) -> list[NewTensor]:
    tensors = []
    for tensor in header.tensors:
        chunks: Callable[[], Iterable[bytes]] = partial(tensor_chunks, header, tensor)
        tensors.append(NewTensor(tensor.name, tensor.shape, tensor.type, chunks))
    names = {tensor.name: tensor for tensor in tensors}
    if OUTPUT not in names:
        shared = names[EMBEDDINGS]
        tensors.append(NewTensor(OUTPUT, shared.shape, shared.type, shared.chunks))
    return tensors
