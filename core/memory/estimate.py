"""The footprint of a model under a setting."""

from core.memory.cache import split_cache, split_states
from core.memory.compute import device_compute, host_compute
from core.memory.footprint import Bill, Footprint, Sides, Term, term
from core.memory.runtime import context_bytes, pool_bytes
from core.memory.setting import Setting
from core.memory.shape import ModelShape
from core.memory.weights import repacked, split_weights


def footprint(shape: ModelShape, setting: Setting) -> Footprint:
    """What a load needs on the devices and on the host, while loading and in use. Exact integers; never raises.

    While loading, a mapped file passes through host memory as a whole, and the runtime's pool is still empty. All
    that is reserved is reserved before the first token, so only the pool makes use exceed loading on the device.
    """
    device_weights, host_weights = split_weights(shape, setting)
    device_kv, host_kv = split_cache(shape, setting)
    device_states, host_states = split_states(shape, setting)
    device = Bill(
        weights=term(device_weights),
        kv=term(device_kv),
        recurrent=term(device_states),
        compute=term(device_compute(shape, setting)),
        pool=term(pool_bytes(shape, setting)),
        context=_context(setting),
        devices=max(1, setting.gpus),
    )
    host = Bill(
        weights=term(host_weights),
        kv=term(host_kv),
        recurrent=term(host_states),
        compute=term(host_compute(shape, setting)),
        output=term(_output(shape, setting)),
    )
    passing = repacked(shape, setting, shape.weights_bytes) if setting.mmap else host_weights
    if passing is not None and host_weights is not None:
        passing = max(passing, host_weights)
    return Footprint(
        peak=Sides(_with(device, pool=term(0)), _with(host, weights=term(passing))),
        steady=Sides(device, host),
    )


def _context(setting: Setting) -> Term:
    measured = setting.gpus > 0 and setting.process_context is not None
    return term(context_bytes(setting), "declared" if measured else "formula")


def _output(shape: ModelShape, setting: Setting) -> int | None:
    """Results on the host: logits of one row per sequence; encoders hand over a vector."""
    values = shape.width if shape.encoder else shape.vocabulary
    return None if values is None else 4 * values * setting.slots


def _with(bill: Bill, *, weights: Term | None = None, pool: Term | None = None) -> Bill:
    return Bill(
        weights=weights or bill.weights,
        kv=bill.kv,
        recurrent=bill.recurrent,
        compute=bill.compute,
        output=bill.output,
        pool=pool or bill.pool,
        context=bill.context,
        devices=bill.devices,
    )
