"""What a model's process and its requests need on a device, from the catalog entry and the settings."""

from pathlib import Path
from typing import Final

import msgspec

from core.decision import Part
from core.errors import FailsoftError
from core.memory import (
    CONTEXT_BYTES,
    WORKER_BYTES,
    Era,
    ModelShape,
    Setting,
    Shape,
    embedded_footprint,
    footprint,
    shape_of,
)
from core.tiers import Bandwidths, hybrid_rate
from core.words import Lane
from runners.devices.host import observe_host
from runners.devices.real import is_real
from store.journal import Sees
from store.learned import learned
from store.models.catalog import ModelEntry
from store.models.gguf import read_header
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
_BATCH: Final = 64
"""Tokens that the llama.cpp engine computes at once; its scratch memory grows with it."""
_UNKNOWN_FACTOR: Final = 1.25
_UNKNOWN_MORE: Final = 512 << 20
"""What is taken for a model whose memory has no rule: its file and a quarter, and this much."""


def need_of(tx: Sees, entry: ModelEntry, settings: Settings, engine: str, lane: Lane, device: str) -> ModelNeed:
    """Real engines hold their KV cache with their process; the null model pretends what it is told to.

    On a real card the driver takes its own share for each process; what was learned there holds for cards only.
    """
    context = min(settings.context_on(lane), entry.context_length)
    card = is_real(device)
    key = f"context={context}{',card' * card}"
    if entry.engine == "null":
        load = settings.null_load_bytes
        parts = _parts(settings, _NULL_LAYERS, load, 0, load)
        return ModelNeed(load, settings.null_token_bytes, load, "declared", key, _NULL_LAYERS, parts)
    if entry.engine == "llamacpp":
        return _current(tx, entry, settings, engine, lane, context, card=card)
    shape = Shape(entry.prepared_bytes, entry.layers, entry.width, entry.heads or 1, entry.kv_heads, entry.vocabulary)
    bill = embedded_footprint(shape, context)
    if lane == "cpu":
        return _on_host(entry, bill.total, "formula", key)
    driver = process_bytes(device)
    # Below all layers this engine keeps its whole KV cache on the host.
    parts = _parts(settings, entry.layers, bill.weights, bill.compute + driver, bill.weights + bill.kv)
    seen = learned(tx, engine, entry.id, key)
    value, basis = (bill.total + driver, "formula") if seen is None else (seen.value, "learned")
    return ModelNeed(value, 0, bill.total + driver, basis, key, entry.layers, parts)


def process_bytes(device: str) -> int:
    """What the driver of a device takes for each process that computes there, beside all that the process asks for."""
    return CONTEXT_BYTES if is_real(device) else 0


def _current(
    tx: Sees, entry: ModelEntry, settings: Settings, engine: str, lane: Lane, context: int, *, card: bool
) -> ModelNeed:
    """llama.cpp: one cache for all slots, taken with the process. An architecture without a rule gets a wide margin."""
    slots = settings.gpu_slots if lane == "gpu" else settings.cpu_slots
    cells = (settings.pool_tokens or context * slots) if slots > 1 else context
    key = f"cells={cells},slots={slots}{',card' * card}"
    driver = CONTEXT_BYTES if card else 0
    try:
        header = read_header(Path(entry.prepared))
        shape = shape_of(header.metadata, [(tensor.name, tensor.nbytes) for tensor in header.tensors])
    except FailsoftError:
        shape = None
    if lane == "cpu":
        whole = _host_bill(shape, cells, slots)
        guess = int(entry.prepared_bytes * _UNKNOWN_FACTOR) + _UNKNOWN_MORE
        return _on_host(entry, guess if whole is None else whole, "unknown" if whole is None else "formula", key)
    every = entry.layers + 1
    whole = _bill(shape, cells, slots, every, driver)
    seen = learned(tx, engine, entry.id, key)
    if whole is None:
        guess = int(entry.prepared_bytes * _UNKNOWN_FACTOR) + _UNKNOWN_MORE + driver
        return ModelNeed(guess if seen is None else seen.value, 0, guess, "unknown", key, entry.layers, ())
    parts = []
    rates = (settings.policy.device_gb_per_s, settings.policy.host_gb_per_s, settings.policy.disk_gb_per_s)
    bandwidths = Bandwidths(*(rate * 1e9 for rate in rates))
    free = observe_host().available
    for quarter in _QUARTERS:
        count = entry.layers * quarter // 4
        part = _bill(shape, cells, slots, count, driver) if count else None
        if part is not None:
            left = max(0, whole - part)
            rate = hybrid_rate(device_bytes=part, host_bytes=left, host_free=free, bandwidths=bandwidths)
            parts.append(Part(count, part, rate))
    value, basis = (whole, "formula") if seen is None else (seen.value, "learned")
    return ModelNeed(value, 0, whole, basis, key, entry.layers, tuple(parts))


def _on_host(entry: ModelEntry, model: int, basis: str, key: str) -> ModelNeed:
    """On the CPU lane the whole model lies in the host's memory, its mapped file counted as needed."""
    load = model + WORKER_BYTES
    return ModelNeed(load, 0, load, basis, f"{key},cpu", entry.layers)


def _bill(shape: ModelShape | None, cells: int, slots: int, layers: int, driver: int) -> int | None:
    """Bytes of the device at the load peak or after it; `driver`: what it takes per process. None: unknown."""
    return None if shape is None else footprint(shape, _setting(cells, slots, layers, driver)).device_total


def _host_bill(shape: ModelShape | None, cells: int, slots: int) -> int | None:
    """Bytes of the host for a model that is all there, at the load peak or after it. None: unknown."""
    return None if shape is None else footprint(shape, _setting(cells, slots, 0, 0)).host_total


def _setting(cells: int, slots: int, layers: int, driver: int) -> Setting:
    return Setting(
        context=cells,
        era=Era.LLAMACPP_2026,
        n_batch=_BATCH,
        n_ubatch=_BATCH,
        slots=slots,
        unified=True,
        flash_attention=True,
        n_gpu_layers=layers,
        process_context=driver,
    )


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
