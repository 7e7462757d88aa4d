"""Bytes of the compute buffer: the most that one batch has live at once.

A graph allocator reuses what is no longer needed, so the buffer is the largest of a few moments, the *arms*. Per token
of a batch of U, counted in f32 values of 4 bytes, with C cells, H heads, Q = heads times key length:

1. logits: V + E; with flash attention V + 2E when other devices take part, and V + 3E + C once the mask's gap has
   become too large for the last hidden vector. Since 2026 only one row per sequence has logits.
2. attention: H*C scores, the masks (two where some layers slide), 2E + 2Q; 6E instead when queries, keys and values
   are one matrix; 2E + the two latent products more for MLA models kept in full; E more for encoders. With flash
   attention no scores, and the mask once as f32 and once as f16 (only as f16 since 2026).
3. feed-forward: 2F + 2E + mask, 3F since the gated product is a tensor of its own. With experts, those used at once.
4. host weights copied over for one large product: the output matrix + V + E, or the largest tensor left on the host.
5. Since 2026, a quantised cache under flash attention: f16 copies of one layer's K and V on top.
6. Pipeline copies: three more masks and four more inputs on every device.

In 2023: one scratch buffer, max(V + E, H*C + mask + 3E), on the device and again on the host; before GGUF a table.
Which arm counts when is a matter of the era; see `Era`. Where no law was ever seen to hold (MLA on the latent vector,
other backends, pure recurrent models), the answer is None.
"""

import msgspec

from core.memory.cache import cache_rows, cells, mla_form
from core.memory.setting import LAWFUL_BACKENDS, Era, Setting
from core.memory.shape import ModelShape
from core.memory.weights import layer_sizes

_STREAM_ROWS = 32
_TABLES = {26: (512, 128), 32: (512, 128), 40: (640, 160), 60: (768, 208), 80: (1536, 416)}
"""By layers: bytes per row of a batch, as kB and as bytes per cell (before GGUF)."""
_ALL_ROWS = frozenset({Era.LLAMACPP_2024, Era.LLAMACPP_2025})
_COPYING_BACKENDS = frozenset({"cuda", "rocm"})


class _Numbers(msgspec.Struct, frozen=True):
    """What the laws are written in. Masks are bytes per token, the rest values per token."""

    width: int
    vocabulary: int
    scores: int
    queries: int
    inner: int
    used_width: int
    mask: int
    mask16: int
    cells: int


def device_compute(shape: ModelShape, setting: Setting) -> int | None:
    """Bytes that each device holds."""
    if not setting.gpus:
        return 0
    if setting.scratch:
        return _scratch(shape, setting) if setting.n_gpu_layers else 0
    numbers = _numbers(shape, setting)
    layers = shape.layers
    if numbers is None or layers is None or setting.backend == "cpu":
        return None
    with_logits = setting.output_offloaded(layers) and not shape.encoder
    streamed = _streamed(shape, setting, numbers)
    if streamed is None:
        return None
    best = max(_arms(shape, setting, numbers, logits=with_logits), streamed)
    copies = setting.pipeline(layers)
    return best + (copies - 1) * numbers.mask + (copies if copies > 1 else 0) * 4 * setting.rows * numbers.width


def host_compute(shape: ModelShape, setting: Setting) -> int | None:
    """Bytes that the host holds: everything without devices, else inputs and what is left to it."""
    if setting.scratch:
        return _scratch(shape, setting)
    numbers = _numbers(shape, setting)
    layers = shape.layers
    if numbers is None or layers is None:
        return None
    if not setting.gpus:
        return _arms(shape, setting, numbers, logits=not shape.encoder)
    copies = setting.pipeline(layers)
    vectors = 2 if shape.encoder else 1
    inputs = copies * numbers.mask + 4 * setting.rows * vectors * numbers.width
    if copies > 1 and setting.era is Era.LLAMACPP_2026:
        inputs = copies * (numbers.mask + 4 * setting.rows * numbers.width)
    left = setting.offloaded(layers) < layers or not setting.output_offloaded(layers)
    if left and not _streams(setting):
        return max(inputs, _arms(shape, setting, numbers, logits=not setting.output_offloaded(layers)))
    if setting.experts_on_host:
        inner = shape.experts_used * (2 * (shape.expert_feed_forward or numbers.inner) + numbers.width)
        return inputs + 4 * setting.rows * inner
    return inputs


def _numbers(shape: ModelShape, setting: Setting) -> _Numbers | None:
    """None when the file does not give the numbers, or no law covers the model."""
    lawful = shape.ruled and setting.backend in LAWFUL_BACKENDS and mla_form(shape, setting) in {None, "full"}
    if not lawful or not shape.heads or not shape.key_dims or shape.width is None or not any(shape.heads):
        return None
    inner = _inner(shape, setting)
    if inner is None or (shape.vocabulary is None and not shape.encoder):
        return None
    whole = cells(setting)
    masks = 2 if any(shape.sliding) else 1
    narrow = setting.era is Era.LLAMACPP_2026
    return _Numbers(
        width=shape.width,
        vocabulary=shape.vocabulary or 0,
        scores=max(shape.heads) * whole,
        queries=max(count * size for count, size in zip(shape.heads, shape.key_dims, strict=True)),
        inner=inner,
        used_width=shape.experts_used * shape.width if shape.experts else 0,
        mask=(2 if narrow else 4) * setting.rows * whole * masks,
        mask16=2 * setting.rows * whole * masks,
        cells=whole,
    )


def _inner(shape: ModelShape, setting: Setting) -> int | None:
    """Values of one gate, up or product tensor of the feed-forward block; with experts, of all used at once."""
    dense = max(shape.feed_forward) if shape.feed_forward else None
    if not shape.experts:
        return dense
    if shape.expert_feed_forward is None and shape.kv_lora_rank is not None:
        # These models give their dense layers the width of the experts that are used together.
        return dense
    each = shape.expert_feed_forward or dense
    if each is None:
        return None
    used = 1 if setting.era is Era.LLAMACPP_2024 and not setting.streams else shape.experts_used
    return max(used * each, shape.shared_feed_forward, (dense or 0) if shape.dense_layers else 0)


def _arms(shape: ModelShape, setting: Setting, n: _Numbers, *, logits: bool) -> int:
    """The largest moment of one batch."""
    unit = 4 * setting.rows
    flash = setting.flash_attention
    attention = unit * (2 * n.width + 2 * n.queries) + _attention_extra(shape, n, unit)
    if flash:
        attention += n.mask16 if setting.era is Era.LLAMACPP_2026 else n.mask + n.mask16
    else:
        attention += unit * n.scores + n.mask
    halves = 2 if setting.era is Era.LLAMACPP_2024 else 3
    feed = unit * (halves * n.inner + 2 * n.width) + (n.mask16 if flash else n.mask)
    if shape.experts:
        feed = max(feed, _experts_arm(setting, n, unit))
    best = max(attention, feed)
    if setting.era is Era.LLAMACPP_2026:
        best += _dequantised(shape, setting, n)
    if not logits:
        return best
    if setting.era is Era.LLAMACPP_2026:
        return max(best, 4 * _result_rows(setting) * n.vocabulary + unit * 2 * n.width)
    if shape.architecture == "gpt-oss" and not flash:
        # The experts leave the last hidden vector in the middle of the freed scores, which splits them.
        return best + unit * n.vocabulary
    return max(best, unit * _logits_row(setting, n, flash=flash))


def _attention_extra(shape: ModelShape, n: _Numbers, unit: int) -> int:
    if shape.kv_lora_rank is not None:
        return unit * (2 * n.width + 2 * shape.kv_lora_rank)
    if shape.encoder:
        return unit * n.width
    return unit * 2 * n.width if shape.fused_qkv else 0


def _experts_arm(setting: Setting, n: _Numbers, unit: int) -> int:
    """The block with experts: their outputs lie side by side before they are summed."""
    if setting.era is Era.LLAMACPP_2024 and not setting.streams:
        return unit * (3 * n.inner + 3 * n.width)
    side_by_side = 5 if setting.era is Era.LLAMACPP_2026 else 1
    return unit * (side_by_side * n.used_width + 2 * n.width + 2 * n.queries) + n.mask16


def _logits_row(setting: Setting, n: _Numbers, *, flash: bool) -> int:
    if not flash:
        return n.vocabulary + n.width
    if setting.era in _ALL_ROWS and n.cells > 2 * n.width:
        return n.vocabulary + 3 * n.width + n.cells
    several = setting.experts_on_host or setting.rows_split or (setting.gpus > 1 and setting.era is Era.IK_LLAMA)
    return n.vocabulary + (2 if several else 1) * n.width


def _result_rows(setting: Setting) -> int:
    """Rows of logits that 2026 builds reserve.

    One per sequence; where slots do not share cells, a bound on what was seen: nearly a batch for each slot but one.
    """
    if setting.slots == 1 or setting.unified:
        return setting.slots
    return setting.rows * (setting.slots - 1) + 1


def _dequantised(shape: ModelShape, setting: Setting, n: _Numbers) -> int:
    """f16 copies of one layer's K and V."""
    plain = {"f32", "f16", "bf16"}
    if not setting.flash_attention or {setting.cache_k, setting.cache_v} <= plain:
        return 0
    rows = cache_rows(shape, setting) or []
    return 2 * n.cells * max((key + value for key, value in rows), default=0)


def _streams(setting: Setting) -> bool:
    """Whether batches make the engine copy host weights to the device."""
    return setting.streams and setting.gpus > 0 and setting.rows >= _STREAM_ROWS


def _streamed(shape: ModelShape, setting: Setting, n: _Numbers) -> int | None:
    """What copies of host weights need; 0 when there are none."""
    layers = shape.layers or 0
    if not _streams(setting):
        return 0
    unit = 4 * setting.rows
    best = 0
    if not setting.output_offloaded(layers) and not shape.encoder and setting.era is not Era.LLAMACPP_2026:
        if shape.output_bytes is None:
            return None
        best = shape.output_bytes + unit * (n.vocabulary + n.width)
    if setting.offloaded(layers) < layers:
        largest = shape.largest_tensor
        if largest is None:
            sizes = layer_sizes(shape)
            # All of a layer bounds any tensor of it.
            largest = max(sizes) if sizes else None
        if largest is None:
            return None
        best = max(best, largest + unit * (3 * n.inner + 2 * n.width))
    if shape.experts and (setting.experts_on_host or setting.offloaded(layers) < layers):
        experts = _streamed_experts(shape, setting, n, unit)
        if experts is None:
            return None
        best = max(best, experts)
    return best


def _streamed_experts(shape: ModelShape, setting: Setting, n: _Numbers, unit: int) -> int | None:
    if setting.era is Era.IK_LLAMA:
        if setting.rows * shape.experts_used <= _STREAM_ROWS * shape.experts:
            return 0
        return None if shape.largest_expert is None else shape.largest_expert + unit * n.width
    if shape.largest_expert is None:
        return None
    return shape.largest_expert + unit * (3 * n.used_width + 2 * n.width)


def _scratch(shape: ModelShape, setting: Setting) -> int | None:
    """The one buffer of 2023."""
    if setting.era is Era.GGML_2023:
        if shape.layers not in _TABLES:
            return None
        kilobytes, per_cell = _TABLES[shape.layers]
        return min(setting.n_batch, 512) * (kilobytes * 1024 + setting.context * per_cell)
    if not shape.ruled or not shape.heads or shape.width is None or shape.vocabulary is None:
        return None
    masks = 1 if setting.era is Era.LLAMACPP_2023 else 0
    row = max(shape.heads) * setting.context + masks * setting.context + 3 * shape.width
    return 4 * setting.rows * max(shape.vocabulary + shape.width, row)
