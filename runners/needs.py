"""What a model's process and its requests need on a device, from the catalog entry and the settings."""

from typing import Final

import msgspec

from core.decision import Part
from core.memory import Shape, embedded_footprint
from core.tiers import Bandwidths, hybrid_rate
from runners.devices.host import observe_host
from store.journal import Sees
from store.learned import learned
from store.models.catalog import ModelEntry
from store.settings import Settings


class ModelNeed(msgspec.Struct, frozen=True):
    """Bytes. `formula` is what the rules say of the process; `load` is what counts: learned where it was seen."""

    load: int
    token: int
    formula: int
    basis: str
    settings: str
    """The settings the numbers hold for, as one word."""
    layers: int = 0
    parts: tuple[Part, ...] = ()
    """Partial placements, most layers first."""


_NULL_LAYERS: Final = 4
_QUARTERS: Final = (3, 2, 1)


def need_of(tx: Sees, entry: ModelEntry, settings: Settings, engine: str) -> ModelNeed:
    """The embedded engine holds its KV cache with its process; the null model pretends what it is told to."""
    context = min(settings.context, entry.context_length)
    key = f"context={context}"
    if entry.engine == "null":
        load = settings.null_load_bytes
        parts = _parts(settings, _NULL_LAYERS, load, 0, load)
        return ModelNeed(load, settings.null_token_bytes, load, "declared", key, _NULL_LAYERS, parts)
    shape = Shape(entry.prepared_bytes, entry.layers, entry.width, entry.heads or 1, entry.kv_heads, entry.vocabulary)
    bill = embedded_footprint(shape, context)
    # Below all layers this engine keeps its whole KV cache on the host.
    parts = _parts(settings, entry.layers, bill.weights, bill.compute, bill.weights + bill.kv)
    seen = learned(tx, engine, entry.id, key)
    value, basis = (bill.total, "formula") if seen is None else (seen.value, "learned")
    return ModelNeed(value, 0, bill.total, basis, key, entry.layers, parts)


def _parts(settings: Settings, layers: int, weights: int, fixed: int, read: int) -> tuple[Part, ...]:
    """Three, two and one quarter of the layers on the device. `read` is what each token reads in all, in bytes."""
    policy = settings.policy
    rates = (policy.device_gb_per_s, policy.host_gb_per_s, policy.disk_gb_per_s)
    bandwidths = Bandwidths(*(rate * 1e9 for rate in rates))
    free = observe_host().available
    found = []
    for quarter in _QUARTERS:
        count = layers * quarter // 4
        if count:
            there = weights * count // layers
            rate = hybrid_rate(device_bytes=there, host_bytes=read - there, host_free=free, bandwidths=bandwidths)
            found.append(Part(count, there + fixed, rate))
    return tuple(found)
