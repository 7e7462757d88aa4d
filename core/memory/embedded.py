"""What the embedded engine needs with all layers on a device, from the few numbers that the catalogue keeps."""

import msgspec

from core.memory.cache import split_cache
from core.memory.compute import device_compute
from core.memory.setting import Era, Setting
from core.memory.shape import ModelShape


class Shape(msgspec.Struct, frozen=True):
    """The numbers of a model that the catalogue keeps."""

    weights_bytes: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    vocabulary: int


class EmbeddedNeed(msgspec.Struct, frozen=True):
    """Bytes by kind, without what the runtime and the driver take on top."""

    weights: int
    kv: int
    compute: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.compute


def embedded_footprint(shape: Shape, context: int) -> EmbeddedNeed:
    """The file's bytes, the cache for the context asked for, and one scratch buffer.

    A model without layers needs its bytes only. Source: llama.cpp at 43033b7bb, checked by its users' logs.
    """
    layers = shape.layers
    if not layers or not shape.heads:
        return EmbeddedNeed(shape.weights_bytes, 0, 0)
    size = shape.width // shape.heads
    model = ModelShape(
        architecture="llama",
        layers=layers,
        width=shape.width,
        heads=(shape.heads,) * layers,
        kv_heads=(shape.kv_heads,) * layers,
        key_dims=(size,) * layers,
        value_dims=(size,) * layers,
        vocabulary=shape.vocabulary,
    )
    # The cache counts as three more layers than there are: output, V, K.
    setting = Setting(context=context, era=Era.CTRANSFORMERS_2023, n_gpu_layers=layers + 3)
    kv, _ = split_cache(model, setting)
    compute = device_compute(model, setting)
    assert kv is not None
    assert compute is not None
    return EmbeddedNeed(shape.weights_bytes, kv, compute)
