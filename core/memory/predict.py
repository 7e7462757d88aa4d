"""A model's footprint over several contexts, for people."""

from collections.abc import Iterable

import msgspec

from core.memory.estimate import footprint
from core.memory.footprint import Footprint
from core.memory.setting import Setting
from core.memory.shape import ModelShape


class PredictRow(msgspec.Struct, frozen=True):
    """One context: bytes by kind on the devices (each kind over all of them) and in total; None is unknown."""

    context: int
    weights: int | None
    kv: int | None
    recurrent: int | None
    compute: int | None
    pool: int | None
    driver: int | None
    device_total: int | None
    host_total: int | None
    unknown: tuple[str, ...]
    """Kinds not known, `host ` before those of the host."""
    footprint: Footprint


def predict_table(shape: ModelShape, setting: Setting, contexts: Iterable[int]) -> list[PredictRow]:
    """One row per context, in the order given; all else as in `setting`."""
    rows = []
    for context in contexts:
        found = footprint(shape, msgspec.structs.replace(setting, context=context))
        device, host = found.steady.device, found.steady.host
        count = device.devices
        rows.append(
            PredictRow(
                context=context,
                weights=device.weights.bytes,
                kv=device.kv.bytes,
                recurrent=device.recurrent.bytes,
                compute=_times(device.compute.bytes, count),
                pool=_times(device.pool.bytes, count),
                driver=_times(device.context.bytes, count),
                device_total=found.device_total,
                host_total=found.host_total,
                unknown=(*device.unknown, *(f"host {name}" for name in host.unknown)),
                footprint=found,
            )
        )
    return rows


def _times(value: int | None, count: int) -> int | None:
    return None if value is None else value * count
