"""Single questions to NVML about one handle, each with what its odd answers mean.

Unknown is None: 2^64-1, "not supported", a driver too old to know. Whatever says something about the device itself
(lost, no permission, ...) passes through as `NVMLError`.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import pynvml
from pynvml import NVMLError

from runners.devices.base import MigPlace
from runners.devices.codes import NO_VALUE

_NOT_AVAILABLE: Final = 2**64 - 1
_NO_INSTANCE: Final = 0xFFFFFFFF
_RECOVERY_ACTION: Final = 230
_OLD_MEMORY: Final = NO_VALUE | {2, 25}
"""Codes by which an old driver says that it does not know memory of version 2."""


class Memory(msgspec.Struct, frozen=True):
    """Bytes; None is unknown."""

    total: int | None = None
    used: int | None = None
    free: int | None = None
    reserved: int | None = None


def text(value: str | bytes) -> str:
    """What the library tells as bytes or as text, by its binding's version."""
    return value.decode() if isinstance(value, bytes) else value


def _number(value: int) -> int | None:
    return None if value == _NOT_AVAILABLE else int(value)


def memory(handle: Any) -> Memory:
    """Both versions answer 0 of 0 on devices without memory of their own; that is unknown too."""
    try:
        seen = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except NVMLError as error:
        if error.value not in _OLD_MEMORY:
            raise
        try:
            seen = pynvml.nvmlDeviceGetMemoryInfo(handle)
        except NVMLError as old:
            if old.value not in NO_VALUE:
                raise
            return Memory()
    if not seen.total:
        return Memory()
    reserved = _number(seen.reserved) if hasattr(seen, "reserved") else None
    return Memory(_number(seen.total), _number(seen.used), _number(seen.free), reserved)


def name(handle: Any) -> str | None:
    """What the driver calls it; a MIG slice is called by its card and its size."""
    try:
        return text(pynvml.nvmlDeviceGetName(handle))
    except NVMLError:
        return None


def aperture(handle: Any) -> bool | None:
    """Whether the device shows memory of its own on the bus (BAR1); None when that cannot be known."""
    try:
        return bool(pynvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total)
    except NVMLError as error:
        return False if error.value in NO_VALUE else None


def processes(handle: Any) -> dict[int, int | None] | None:
    """Bytes by pid, of computing and of drawing programs; one that does both is told by both, with the same bytes."""
    try:
        found = {entry.pid: entry.usedGpuMemory for entry in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except NVMLError:
        return None
    with suppress(NVMLError):
        for entry in pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle):
            found.setdefault(entry.pid, entry.usedGpuMemory)
    return found


def slices(handle: Any, parent: str) -> dict[str, tuple[Any, MigPlace]] | None:
    """Handles and places of a card's slices by UUID; None when it is not in MIG mode."""
    try:
        mode, _ = pynvml.nvmlDeviceGetMigMode(handle)
        if mode != pynvml.NVML_DEVICE_MIG_ENABLE:
            return None
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except NVMLError as error:
        if error.value in NO_VALUE:
            return None
        raise
    found = {}
    for index in range(count):
        with suppress(pynvml.NVMLError_NotFound):
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            place = MigPlace(
                parent,
                _instance(pynvml.nvmlDeviceGetGpuInstanceId, part),
                _instance(pynvml.nvmlDeviceGetComputeInstanceId, part),
            )
            found[text(pynvml.nvmlDeviceGetUUID(part))] = (part, place)
    return found


def _instance(ask: Callable[[Any], int], part: Any) -> int | None:
    try:
        number = ask(part)
    except NVMLError:
        return None
    return None if number == _NO_INSTANCE else number


def recovery_action(handle: Any) -> int | None:
    """The driver's recovery action; drivers from before it was invented do not tell."""
    try:
        (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])
    except NVMLError:
        return None
    return int(field.value.uiVal) if field.nvmlReturn == pynvml.NVML_SUCCESS else None
