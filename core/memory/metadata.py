"""Reads a model's numbers from the key-value part and the tensor list of its file.

1. What is missing or of the wrong kind is None, and never guessed, except where the format itself has a default: the
   head length is E / heads, keys and values have as many heads as queries.
2. Per-layer arrays stay arrays; a single number means the same for all layers.
3. Tensors say more than keys: whether a layer has attention or a recurrent state, whether queries, keys and values
   are fused, whether the output is tied.
4. Trailing layers that only predict ahead, and layers that share the cache of another, have no cache of their own.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from core.memory.architectures import ENCODERS, FUSED_QKV, HYBRID_EVERY, MLA, RECURRENT, TIED, WINDOW_EVERY, every
from core.memory.shape import ModelShape

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_INPUTS = ("token_embd.", "position_embd.", "token_types.", "token_embd_norm.")
_ATTENDS = ("attn_k.", "attn_kv_a_mqa.", "attn_kv_b.")
_FOREIGN = ("time_mix_", "shortconv.", "channel_mix_")
MOST_LAYERS = 4096
"""More would be a damaged file, and is unknown."""


class _Parts(msgspec.Struct):
    """What the tensor list says, per layer."""

    layer: list[int]
    experts: list[int]
    attends: list[bool]
    recurs: list[bool]
    foreign: bool = False
    fused: bool = False
    embedding: int | None = None
    inputs: int = 0
    output: int | None = None
    total: int = 0
    largest: int = 0
    largest_expert: int = 0
    split_latent: bool = False


def shape_of(metadata: Mapping[str, Any], tensors: Sequence[tuple[str, int]]) -> ModelShape:
    """The numbers of a model from its metadata and its tensors' names and bytes. Never raises."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        return ModelShape(weights_bytes=sum(size for _, size in tensors) or None)
    keys = _Keys(metadata, architecture)
    layers = keys.number("block_count")
    if layers is None or not 0 < layers <= MOST_LAYERS:
        return ModelShape(architecture=architecture, weights_bytes=sum(size for _, size in tensors) or None)
    parts = _tensors(layers, tensors)
    known = bool(tensors)
    recurrent = _recurrent(keys, architecture, layers, parts if known else None)
    heads = keys.per_layer("attention.head_count", layers)
    held = keys.per_layer("attention.head_count_kv", layers) or heads
    if held is not None:
        held = _holding(keys, held, recurrent, parts.attends if known and any(parts.attends) else None)
    if heads is None and architecture in RECURRENT:
        heads = held = (0,) * layers
    window = keys.number("attention.sliding_window") or None
    sliding = _sliding(keys, architecture, layers) if window else ()
    key_dims, value_dims = _dims(keys, layers, heads, sliding)
    lora = keys.number("attention.kv_lora_rank") if architecture in MLA or keys.has("attention.kv_lora_rank") else None
    shape = ModelShape(
        # Layers of a kind that no formula knows make the whole architecture unknown.
        architecture=None if parts.foreign else architecture,
        layers=layers,
        width=keys.number("embedding_length"),
        heads=heads,
        kv_heads=held,
        key_dims=key_dims,
        value_dims=value_dims,
        feed_forward=keys.per_layer("feed_forward_length", layers),
        vocabulary=keys.number("vocab_size") or _count(metadata.get("tokenizer.ggml.tokens")),
        context_train=keys.number("context_length"),
        window=window if sliding else None,
        sliding=sliding,
        kv_lora_rank=lora or None,
        rope_dims=keys.number("rope.dimension_count"),
        latent_file=bool(lora) and (parts.split_latent or keys.has("attention.key_length_mla")),
        conv_width=keys.number("ssm.conv_kernel"),
        inner_width=keys.number("ssm.inner_size"),
        state_width=keys.number("ssm.state_size"),
        state_groups=keys.number("ssm.group_count") or 0,
        recurrent=recurrent,
        experts=keys.number("expert_count") or 0,
        experts_used=keys.number("expert_used_count") or 0,
        expert_feed_forward=keys.number("expert_feed_forward_length"),
        shared_feed_forward=keys.number("expert_shared_feed_forward_length") or 0,
        dense_layers=keys.number("leading_dense_block_count") or 0,
        fused_qkv=parts.fused if known else architecture in FUSED_QKV,
        causal=metadata.get(f"{architecture}.attention.causal") is not False and architecture not in ENCODERS,
    )
    return _with_bytes(shape, parts) if known else msgspec.structs.replace(shape, tied=architecture in TIED)


def _with_bytes(shape: ModelShape, parts: _Parts) -> ModelShape:
    tied = parts.output is None and not shape.encoder
    embedding = None if parts.embedding is None else parts.inputs
    return msgspec.structs.replace(
        shape,
        tied=tied,
        weights_bytes=parts.total,
        embedding_bytes=embedding,
        output_bytes=parts.embedding if tied else parts.output,
        layer_bytes=tuple(parts.layer),
        expert_bytes=tuple(parts.experts),
        largest_tensor=parts.largest,
        largest_expert=parts.largest_expert or None,
    )


class _Keys:
    """Typed access to one architecture's keys."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self._prefix = architecture

    def value(self, key: str) -> Any:
        return self._metadata.get(f"{self._prefix}.{key}")

    def has(self, key: str) -> bool:
        return self.value(key) is not None

    def number(self, key: str) -> int | None:
        """A single count; of an array, nothing."""
        found = self.value(key)
        return found if type(found) is int and found >= 0 else None

    def per_layer(self, key: str, layers: int) -> tuple[int, ...] | None:
        """One count per layer; an array of another length is unknown."""
        found = self.value(key)
        if type(found) is int and found >= 0:
            return (found,) * layers
        if isinstance(found, tuple | list) and len(found) >= layers:
            items = tuple(found[:layers])
            if all(type(item) is int and item >= 0 for item in items):
                return items
        return None


def _count(value: Any) -> int | None:
    return len(value) if isinstance(value, tuple | list) and value else None


def _tensors(layers: int, tensors: Sequence[tuple[str, int]]) -> _Parts:
    parts = _Parts([0] * layers, [0] * layers, [False] * layers, [False] * layers)
    fused = [False] * layers
    for name, size in tensors:
        parts.total += size
        if name == "token_embd.weight":
            parts.embedding = size
        if name.startswith(_INPUTS):
            parts.inputs += size
        if name == "output.weight":
            parts.output = size
        found = _LAYER.fullmatch(name)
        if found is None or int(found[1]) >= layers:
            continue
        index, rest = int(found[1]), found[2]
        parts.layer[index] += size
        if "_exps." in rest:
            parts.experts[index] += size
            parts.largest_expert = max(parts.largest_expert, size)
        else:
            parts.largest = max(parts.largest, size)
        parts.foreign |= rest.startswith(_FOREIGN)
        parts.recurs[index] |= rest.startswith("ssm_")
        parts.attends[index] |= rest.startswith(_ATTENDS)
        parts.split_latent |= rest.startswith("attn_k_b.")
        fused[index] |= rest.startswith("attn_qkv.")
    for index, one in enumerate(fused):
        # Gated recurrent layers have a fused projection too; it is no attention.
        if one and not parts.recurs[index]:
            parts.attends[index] = parts.fused = True
    return parts


def _recurrent(keys: _Keys, architecture: str, layers: int, parts: _Parts | None) -> tuple[bool, ...]:
    if parts is not None:
        return tuple(parts.recurs) if any(parts.recurs) else ()
    if architecture in RECURRENT:
        return (True,) * layers
    group = keys.number("full_attention_interval") or HYBRID_EVERY.get(architecture, 0)
    if group:
        return every(layers, group)
    held = keys.value("attention.head_count_kv")
    if keys.has("ssm.state_size") and isinstance(held, tuple | list):
        return tuple(item == 0 for item in held[:layers])
    return ()


def _holding(
    keys: _Keys, held: tuple[int, ...], recurrent: tuple[bool, ...], attends: list[bool] | None
) -> tuple[int, ...]:
    """Key-value heads of the layers that have a cache of their own."""
    ahead = keys.number("nextn_predict_layers") or 0
    shared = keys.number("attention.shared_kv_layers") or 0
    last = len(held) - max(ahead, shared)
    found = []
    for index, count in enumerate(held):
        has = attends[index] if attends is not None else not (recurrent and recurrent[index])
        found.append(count if has and index < last else 0)
    return tuple(found)


def _sliding(keys: _Keys, architecture: str, layers: int) -> tuple[bool, ...]:
    """Which layers slide. Engines look through no window where the architecture has no pattern."""
    pattern = keys.value("attention.sliding_window_pattern")
    if isinstance(pattern, tuple | list) and len(pattern) >= layers:
        return tuple(bool(item) for item in pattern[:layers])
    group = pattern if type(pattern) is int and pattern > 0 else WINDOW_EVERY.get(architecture)
    return every(layers, group) if group is not None else ()


def _dims(
    keys: _Keys, layers: int, heads: tuple[int, ...] | None, sliding: tuple[bool, ...]
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Head lengths of keys and of values."""
    width = keys.number("embedding_length")
    default = width // max(heads) if width and heads and any(heads) else None
    found: list[tuple[int, ...] | None] = []
    for name in ("key_length", "value_length"):
        size = keys.number(f"attention.{name}")
        size = default if size is None else size
        if size is None and heads is not None and not any(heads):
            size = 0
        narrow = keys.number(f"attention.{name}_swa")
        if size is None:
            found.append(None)
        elif narrow is not None and sliding:
            found.append(tuple(narrow if slides else size for slides in sliding))
        else:
            found.append((size,) * layers)
    return found[0], found[1]
