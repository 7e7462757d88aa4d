"""What a model needs on a device, in bytes, by formula.

The embedded engine bundles a llama.cpp of August 2023: f16 KV cache, one scratch buffer, weights as they lie in the
file. Sources: llama.cpp at 43033b7bb; checked by its users' logs (7B at 2048 tokens: scratch 152 MiB).
"""

import msgspec


class Shape(msgspec.Struct, frozen=True):
    """The numbers of a model file that decide its memory."""

    weights_bytes: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    vocabulary: int


class Footprint(msgspec.Struct, frozen=True):
    """Bytes by kind; their sum is what a load must find free."""

    weights: int
    kv: int
    compute: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.compute


def embedded_footprint(shape: Shape, context: int) -> Footprint:
    """The embedded engine with all layers on the device, at a context of so many tokens."""
    if not shape.layers:
        return Footprint(shape.weights_bytes, 0, 0)
    kv_width = shape.width // shape.heads * shape.kv_heads
    kv = context * shape.layers * 2 * kv_width * 2
    batch = min(context, 512)
    logits = 4 * batch * (shape.vocabulary + shape.width)
    attention = 4 * batch * (shape.heads * context + 3 * shape.width)
    return Footprint(shape.weights_bytes, kv, max(logits, attention))
