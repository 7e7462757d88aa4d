"""What a model's process and its requests need on a device, from the catalog entry and the settings."""

import msgspec

from core.memory import Shape, embedded_footprint
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


def need_of(tx: Sees, entry: ModelEntry, settings: Settings, engine: str) -> ModelNeed:
    """The embedded engine holds its KV cache with its process; the null model pretends what it is told to."""
    context = min(settings.context, entry.context_length)
    key = f"context={context}"
    if entry.engine == "null":
        return ModelNeed(settings.null_load_bytes, settings.null_token_bytes, settings.null_load_bytes, "declared", key)
    shape = Shape(entry.prepared_bytes, entry.layers, entry.width, entry.heads or 1, entry.kv_heads, entry.vocabulary)
    formula = embedded_footprint(shape, context).total
    seen = learned(tx, engine, entry.id, key)
    if seen is None:
        return ModelNeed(formula, 0, formula, "formula", key)
    return ModelNeed(seen.value, 0, formula, "learned", key)
