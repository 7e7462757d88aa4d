"""What the runtime and the driver take on top, which no engine prints."""

from core.memory.cache import cache_rows, cells
from core.memory.setting import Era, Setting
from core.memory.shape import ModelShape

CONTEXT_BYTES = 500 * 1024 * 1024
"""Per process and device until it is measured; 107 to 612 MiB were seen."""
WORKER_BYTES = 144 * 1024 * 1024
"""What a worker's programs were seen to hold of the host beside their model, and a little more."""
_POOLS = frozenset({"cuda", "rocm"})


def context_bytes(setting: Setting) -> int:
    """What the driver takes for one process on one device."""
    if not setting.gpus:
        return 0
    return CONTEXT_BYTES if setting.process_context is None else setting.process_context


def pool_bytes(shape: ModelShape, setting: Setting) -> int | None:
    """The pool that conversions are made in; it grows to the largest one and is not given back.

    The embedded engine converts whole matrices to f32 and holds three of them; later ones convert to f16 and one at
    a time: the largest matrix of a layer, the scores without flash attention, or, before 2026, one layer of a
    quantised cache.
    """
    if not setting.gpus or setting.backend not in _POOLS:
        return 0
    if not shape.ruled or shape.width is None or not shape.feed_forward or shape.layers is None:
        return None
    inner = max(shape.feed_forward)
    if not setting.scratch:
        moments = (2 * shape.width * max(inner, shape.width), _scores(shape, setting), _thawed(shape, setting))
        return None if None in moments else max(part for part in moments if part is not None)
    output = shape.vocabulary if setting.output_offloaded(shape.layers) else 0
    return None if output is None else -(-105 * 4 * shape.width * (shape.width + inner + output) // 100)


def _scores(shape: ModelShape, setting: Setting) -> int | None:
    """The scores of a batch as f16."""
    if setting.flash_attention:
        return 0
    return 2 * setting.rows * max(shape.heads) * cells(setting) if shape.heads else None


def _thawed(shape: ModelShape, setting: Setting) -> int | None:
    """One layer of a quantised cache as f16; since 2026 that is part of the compute buffer."""
    if not setting.flash_attention or setting.era is Era.LLAMACPP_2026:
        return 0
    if {setting.cache_k, setting.cache_v} <= {"f16", "bf16", "f32"}:
        return 0
    rows = cache_rows(shape, setting)
    return None if rows is None else 2 * cells(setting) * max((key + value for key, value in rows), default=0)
