"""Whether the embedded engine can take a model file, told before native code sees it.

The embedded engine carries a reader of August 2023. What it does not know it does not refuse: it misreads, aborts or
crashes. So everything it relies on is checked here, and what is not on a list is a problem, never a guess:

1. Architecture `llama`, dense, without scaled rotary positions, sliding windows or biases.
2. Exactly the tensors it expects, in the shapes the metadata promises, in types it has code for.
3. A byte-level BPE vocabulary with a known pre-tokenizer; of the SentencePiece ones it would misread the copy.
"""

from typing import Any

from core.errors import ModelFileError
from store.models import llamacpp
from store.models.gguf import GGUF, Tensor
from store.models.gguf_write import F32, U32
from store.models.tokenizer import Tokenizer

ARCHITECTURES = ("llama",)
TENSOR_TYPES = frozenset({"F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"})
NUMBER_KEYS = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
)
"""Each a positive 32-bit number, and needed."""
_LIMIT = 1 << 20


def suitability(header: GGUF) -> list[str]:
    """Reasons why the embedded engine cannot take this file; empty when it can."""
    architecture = header.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        return [f"the architecture is {architecture!r}; the embedded engine knows {known}"]
    problems = [
        f"{header.path.name}: {architecture}.{key} is missing or no positive number"
        for key in NUMBER_KEYS
        if not _good_number(header, f"{architecture}.{key}")
    ]
    if problems:
        return problems
    problems += _extras(header)
    problems += _vocabulary(header)
    problems += _tensors(header)
    return problems


def require_suitable(header: GGUF) -> None:
    """Raise `ModelFileError` naming every problem and what to do."""
    problems = suitability(header)
    if problems:
        msg = (
            f"{header.path.name} does not suit the embedded engine: {'; '.join(problems)}. "
            f"Serve it with the llama.cpp engine ({llamacpp.INSTALL}), or choose another file of the model."
        )
        raise ModelFileError(msg)


def _good_number(header: GGUF, key: str) -> bool:
    found = header.metadata.get(key)
    return header.types.get(key) == U32 and isinstance(found, int) and 0 < found <= _LIMIT


def _extras(header: GGUF) -> list[str]:
    """What a newer model of the same architecture may carry and the old reader would ignore."""
    problems = _heads(header)
    if header.types.get("llama.attention.layer_norm_rms_epsilon") != F32:
        problems.append("llama.attention.layer_norm_rms_epsilon is missing or not a float")
    for name, harmless in (("expert_count", 0), ("attention.sliding_window", 0), ("rope.scaling.factor", 1.0)):
        if header.metadata.get(f"llama.{name}", harmless) != harmless:
            problems.append(f"it uses {name.replace('_', ' ').replace('.', ' ')}")
    if header.metadata.get("llama.rope.scaling.type", "none") != "none":
        problems.append("it uses scaled rotary positions")
    keys = ("llama.rope.freq_base", "llama.rope.scale_linear")
    return problems + [f"{key} is not a float" for key in keys if header.types.get(key, F32) != F32]


def _heads(header: GGUF) -> list[str]:
    heads = header.metadata["llama.attention.head_count"]
    width = header.metadata["llama.embedding_length"]
    key = "llama.attention.head_count_kv"
    if key in header.metadata and not _good_number(header, key):
        return ["the number of key/value heads is not one number for all layers"]
    kv_heads = header.metadata.get(key, heads)
    if heads % kv_heads or width % heads:
        return [f"{heads} heads, {kv_heads} key/value heads and a width of {width} do not fit together"]
    size = width // heads
    names = ("rope.dimension_count", "attention.key_length", "attention.value_length")
    return [
        f"{name} differs from the head size {size}"
        for name in names
        if header.metadata.get(f"llama.{name}", size) != size
    ]


def _vocabulary(header: GGUF) -> list[str]:
    if header.metadata.get("tokenizer.ggml.model") == "llama":
        return ["the vocabulary is a SentencePiece one; the embedded engine is given byte-level ones only"]
    try:
        tokenizer = Tokenizer.from_gguf(header)
    except ModelFileError as error:
        return [error.detail.removeprefix(f"{header.path.name}: ")]
    problems = []
    line_feed = tokenizer.encode("\n", special=False)
    if len(line_feed) != 1:
        problems.append("the vocabulary has no token for the line feed")
    if tokenizer.bos is None or tokenizer.eos is None:
        problems.append("the vocabulary names no BOS or EOS token")
    return problems


def expected_shapes(metadata: dict[str, Any], vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a dense llama model, the output matrix included."""
    width = metadata["llama.embedding_length"]
    inner = metadata["llama.feed_forward_length"]
    heads = metadata["llama.attention.head_count"]
    kv_width = width // heads * metadata.get("llama.attention.head_count_kv", heads)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (width, vocabulary),
        "output_norm.weight": (width,),
        "output.weight": (width, vocabulary),
    }
    block = {
        "attn_norm": (width,),
        "attn_q": (width, width),
        "attn_k": (width, kv_width),
        "attn_v": (width, kv_width),
        "attn_output": (width, width),
        "ffn_norm": (width,),
        "ffn_gate": (width, inner),
        "ffn_up": (width, inner),
        "ffn_down": (inner, width),
    }
    for index in range(metadata["llama.block_count"]):
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def _tensors(header: GGUF) -> list[str]:
    kv_heads = header.metadata.get("llama.attention.head_count_kv", 1)
    if not isinstance(kv_heads, int):
        return []  # told by _heads
    if header.metadata["llama.block_count"] > len(header.tensors):
        return ["tensors are missing: fewer than there are blocks"]
    tokens = header.metadata.get("tokenizer.ggml.tokens", ())
    shapes = expected_shapes(header.metadata, len(tokens))
    there: dict[str, Tensor] = {tensor.name: tensor for tensor in header.tensors}
    missing = [name for name in shapes if name not in there and name != "output.weight"]
    unknown = [name for name in there if name not in shapes]
    wrong = [name for name, tensor in there.items() if shapes.get(name, tensor.shape) != tensor.shape]
    foreign = sorted({tensor.type.name for tensor in header.tensors} - TENSOR_TYPES)
    norms = [name for name, tensor in there.items() if len(tensor.shape) == 1 and tensor.type.name != "F32"]
    problems = []
    for names, what in (
        (missing, "tensors are missing"),
        (unknown, "it has tensors the engine does not know"),
        (wrong, "tensors have another shape than the metadata says"),
        (norms, "norm weights are not F32"),
        (foreign, "it uses tensor types newer than the engine"),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            problems.append(f"{what}: {', '.join(names[:3])}{more}")
    return problems
