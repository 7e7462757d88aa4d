"""Bytes of the attention cache and of recurrent states, on the device and on the host.

1. Each layer has cells times (key row + value row); rows are heads times head length, in the cache's type.
2. Cells are the context asked for, of all slots together, padded: by 256 with flash attention or since 2026, by 32
   in the builds before, not at all in 2023. Slots that do not share get equal parts, each padded on its own, so
   three slots can cost more than four.
3. Sliding layers need only the window of each sequence and one batch, where the engine trims them (2025 on). Since
   2026 they are never quantised.
4. MLA models keep the latent vector and the rotary part where file and engine can, else full keys and values.
5. Recurrent states are f32, per sequence and per step of speculation, and do not grow with the context.
6. The cache of a layer lies where the layer lies; in 2023 it moved as a whole, V first, and the host kept its own.
"""

from core.memory.setting import CACHE_BLOCK, Era, Setting
from core.memory.shape import ModelShape

_TRIMMING = frozenset({Era.LLAMACPP_2025, Era.LLAMACPP_2026})
_NO_PADDING = frozenset({Era.GGML_2023, Era.CTRANSFORMERS_2023, Era.LLAMACPP_2023_SEP, Era.LLAMACPP_2023})


def padded(count: int, to: int) -> int:
    """The next multiple."""
    return -(-count // to) * to


def cells(setting: Setting) -> int:
    """Cells of a layer that looks at the whole context, over all slots."""
    parts, pad = _parts(setting), _padding(setting)
    return parts * padded(-(-setting.context // parts), pad)


def sliding_cells(setting: Setting, window: int) -> int:
    """Cells of a sliding layer, over all slots."""
    whole = cells(setting)
    if setting.swa_full or setting.era not in _TRIMMING:
        return whole
    parts = _parts(setting)
    sequences = setting.slots if parts == 1 else 1
    return parts * padded(min(whole // parts, window * sequences + setting.rows), _padding(setting))


def mla_form(shape: ModelShape, setting: Setting) -> str | None:
    """How an MLA model's cache is kept: `full`, `latent`, `latent+v`; None for other models."""
    if shape.kv_lora_rank is None:
        return None
    if setting.mla is not None:
        return setting.mla
    return "latent" if shape.latent_file and setting.era in _TRIMMING | {Era.IK_LLAMA} else "full"


def cache_rows(shape: ModelShape, setting: Setting) -> list[tuple[int, int]] | None:
    """Per layer: values of a key row and of a value row. None when the file does not say."""
    form = mla_form(shape, setting)
    if form in {"latent", "latent+v"}:
        if shape.layers is None or shape.rope_dims is None or shape.kv_lora_rank is None:
            return None
        row = (shape.kv_lora_rank + shape.rope_dims, shape.kv_lora_rank if form == "latent+v" else 0)
        held = shape.kv_heads or (1,) * shape.layers
        return [row if count else (0, 0) for count in held]
    if shape.kv_heads is None or shape.key_dims is None or shape.value_dims is None:
        return None
    return [
        (count * key, count * value)
        for count, key, value in zip(shape.kv_heads, shape.key_dims, shape.value_dims, strict=True)
    ]


def layer_caches(shape: ModelShape, setting: Setting) -> list[tuple[int, int]] | None:
    """Per layer: bytes of K and of V. None when not known."""
    rows = cache_rows(shape, setting)
    if not shape.ruled or rows is None or not {setting.cache_k, setting.cache_v} <= set(CACHE_BLOCK):
        return None
    if shape.sliding and shape.window is None:
        return None
    if shape.encoder and setting.era is Era.LLAMACPP_2026:
        return [(0, 0)] * len(rows)
    block_k, block_v = CACHE_BLOCK[setting.cache_k], CACHE_BLOCK[setting.cache_v]
    whole = cells(setting)
    found = []
    for index, (key, value) in enumerate(rows):
        count, k, v = whole, block_k, block_v
        if shape.sliding and shape.sliding[index] and shape.window is not None:
            count = sliding_cells(setting, shape.window)
            if setting.era is Era.LLAMACPP_2026:
                k, v = max(k, CACHE_BLOCK["f16"]), max(v, CACHE_BLOCK["f16"])
        found.append((count * -(-key * k // 32), count * -(-value * v // 32)))
    return found


def split_cache(shape: ModelShape, setting: Setting) -> tuple[int | None, int | None]:
    """Bytes of the cache on all devices together and on the host."""
    layers = layer_caches(shape, setting)
    if layers is None:
        return (None, None) if setting.gpus else (0, None)
    whole = sum(k + v for k, v in layers)
    if setting.scratch:
        moved = 0
        if setting.gpus and setting.n_gpu_layers > len(layers) + 1:
            moved += sum(v for _, v in layers)
        if setting.gpus and setting.n_gpu_layers > len(layers) + 2:
            moved += sum(k for k, _ in layers)
        keeps = setting.era is Era.CTRANSFORMERS_2023
        return moved, whole if keeps else whole - moved
    first = len(layers) - setting.offloaded(len(layers))
    device = sum(k + v for k, v in layers[first:])
    return device, whole - device


def split_states(shape: ModelShape, setting: Setting) -> tuple[int | None, int | None]:
    """Bytes of recurrent states on all devices together and on the host."""
    if not shape.ruled:
        return (None, None) if setting.gpus else (0, None)
    if not any(shape.recurrent):
        return 0, 0
    if shape.conv_width is None or shape.inner_width is None or shape.state_width is None:
        return (None, None) if setting.gpus else (0, None)
    convolution = (shape.conv_width - 1) * (shape.inner_width + 2 * shape.state_groups * shape.state_width)
    one = 4 * (convolution + shape.state_width * shape.inner_width) * setting.slots * (1 + setting.drafts)
    first = len(shape.recurrent) - setting.offloaded(len(shape.recurrent))
    return one * sum(shape.recurrent[first:]), one * sum(shape.recurrent[:first])


def _parts(setting: Setting) -> int:
    return setting.slots if setting.era in _TRIMMING and not setting.unified else 1


def _padding(setting: Setting) -> int:
    if setting.era in _NO_PADDING:
        return 1
    return 256 if setting.flash_attention or setting.era is Era.LLAMACPP_2026 or _parts(setting) > 1 else 32
