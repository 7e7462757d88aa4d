# ruff: noqa: N802 -- the functions have the names of the library's
"""A stand-in for NVIDIA's library, beneath the real pynvml: put into `pynvml.nvmlLib`, so that the real binding, its
structures and its mapping of errors run.

What it shows is a `Box` of cards. It is changed from the test, by a timeline, or lies in a JSON file that is read anew
at every call, so that a test can change what another process sees.

It behaves like the library in what matters here: handles and event sets die with a shutdown; a card that was once found
to be lost stays lost until the library is initialised anew; events from before a registration are not told; a hanging
call never returns (until `release`, at the end of a test).
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pynvml

GIB = 1 << 30
MIB = 1 << 20
NONE = 2**64 - 1
XID = 8


class FakeSlice(msgspec.Struct):
    uuid: str
    total: int
    used: int = 0
    reserved: int = 0
    gpu_instance: int = 1
    compute_instance: int = 0
    processes: dict[int, int] = {}


class FakeEvent(msgspec.Struct):
    """`kind` as NVML's event type; `code`: instead of an event, the wait fails with it."""

    data: int = 0
    kind: int = XID
    gpu_instance: int = 0xFFFFFFFF
    code: int = 0


class FakeCard(msgspec.Struct):
    """A card. `used` is what programs have allocated, as version 2 counts; version 1 adds `reserved` to it."""

    uuid: str
    name: str = "NVIDIA Fake 4090"
    pci: str = "00000000:01:00.0"
    total: int = 16 * GIB
    used: int = 0
    reserved: int = 0
    raw: dict[str, int] = {}
    """Fields of the memory structures that are answered as they are, such as {"used": 2**64-1}."""
    version2: bool = True
    aperture: int | None = 16 * GIB
    processes: dict[int, int] = {}
    drawing: dict[int, int] = {}
    code: int = 0
    """Answered by every call about this card."""
    codes: dict[str, int] = {}
    """Answered by single functions, by their names."""
    hangs: list[str] = []
    """Functions that never return; `*` is all."""
    recovery: int | None = None
    slices: list[FakeSlice] | None = None
    """None: not in MIG mode."""
    event_kinds: int = 0xFFFF
    events: list[FakeEvent] = []
    """All events so far, in order; append to it."""


class Box(msgspec.Struct):
    """What the library sees."""

    cards: list[FakeCard] = []
    init: int = 0
    """What initialising answers."""
    count: int = 0
    """What counting the cards answers, if it is an error."""
    driver: str = "999.10"


class _Function:
    """A function pointer: callable, and willing to have its `restype` set."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


class FakeNvml:
    def __init__(self, *cards: FakeCard, file: Path | None = None) -> None:
        self.memory = Box(list(cards))
        self.file = file
        self.calls: list[str] = []
        self.inits = 0
        self._timeline: list[tuple[float, Callable[[], object]]] = []
        self._began = time.monotonic()
        self._up = False
        self._lost: set[str] = set()
        self._sets: dict[int, dict[str, int]] = {}
        self._next_set = 0x5E7_0001
        self._frozen: dict[str, Any] = {}
        self._released = threading.Event()

    # ---- for tests ----

    @property
    def box(self) -> Box:
        for step in [step for step in self._timeline if step[0] <= time.monotonic() - self._began]:
            self._timeline.remove(step)
            step[1]()
        return self.memory if self.file is None else msgspec.json.decode(self.file.read_bytes(), type=Box)

    def after(self, seconds: float, change: Callable[[], object]) -> None:
        """A step of the timeline, counted from the making of this object."""
        self._timeline.append((seconds, change))

    def freeze(self, card: FakeCard) -> None:
        """Memory numbers of this card are those of now, whatever happens."""
        self._frozen[card.uuid] = msgspec.structs.replace(card)

    def release(self) -> None:
        """Let all that hangs go on."""
        self._released.set()

    @contextmanager
    def installed(self) -> Iterator["FakeNvml"]:
        self.install()
        try:
            yield self
        finally:
            self.release()
            pynvml.nvmlLib = None
            pynvml._nvmlGetFunctionPointer_cache.clear()

    def install(self) -> None:
        pynvml.nvmlLib = self
        pynvml._nvmlGetFunctionPointer_cache.clear()

    # ---- the library ----

    def __getattr__(self, name: str) -> _Function:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        method = type(self).__dict__.get(f"_{name}")
        if method is None:
            raise AttributeError(name)  # pynvml makes FUNCTION_NOT_FOUND of it

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if not self._up and name != "nvmlInitWithFlags":
                return 1
            return int(method(self, *arguments) or 0)

        return _Function(call)

    def _nvmlInitWithFlags(self, _flags: int) -> int:
        if self.box.init:
            return self.box.init
        self.inits += 1
        self._up = True
        self._lost.clear()
        return 0

    def _nvmlShutdown(self) -> int:
        assert not self._sets, "event sets must be given back before the library is shut down"
        self._up = False
        return 0

    def _nvmlSystemGetDriverVersion(self, buffer: Any, _size: Any) -> None:
        buffer.value = self.box.driver.encode()

    def _nvmlDeviceGetCount_v2(self, out: Any) -> int:
        out._obj.value = len(self.box.cards)
        return self.box.count

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:
        return self._hand(index.value, out)

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, out: Any) -> int:
        text = getattr(uuid, "value", uuid).decode()
        for index, card in enumerate(self.box.cards):
            if card.uuid == text:
                return self._hand(index, out)
        return 28 if self.inits else 6

    def _hand(self, index: int, out: Any) -> int:
        code = self._refusal(self.box.cards[index], "nvmlDeviceGetHandle")
        ctypes.c_void_p.from_buffer(out._obj).value = self.inits << 16 | index << 8
        return code

    def _refusal(self, card: FakeCard, function: str) -> int:
        if {"*", function} & set(card.hangs):
            self._released.wait()
        if card.code == 15:
            self._lost.add(card.uuid)
        if card.uuid in self._lost:
            return 15
        return card.code or card.codes.get(function, 0)

    def _about(self, handle: Any, function: str) -> tuple[FakeCard, FakeSlice | None, int]:
        token = ctypes.c_void_p.from_buffer(handle).value or 0
        card = self.box.cards[token >> 8 & 0xFF]
        part = card.slices[(token & 0xFF) - 1] if token & 0xFF and card.slices is not None else None
        stale = 2 if token >> 16 != self.inits else 0
        return card, part, stale or self._refusal(card, function)

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, _size: Any) -> int:
        card, part, code = self._about(handle, "nvmlDeviceGetUUID")
        buffer.value = (part or card).uuid.encode()
        return code

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, _size: Any) -> int:
        card, _, code = self._about(handle, "nvmlDeviceGetName")
        buffer.value = card.name.encode()
        return code

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, out: Any) -> int:
        card, _, code = self._about(handle, "nvmlDeviceGetPciInfo")
        out._obj.busId = card.pci.encode()
        return code

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:
        card, part, code = self._about(handle, "nvmlDeviceGetMemoryInfo")
        seen = part or self._frozen.get(card.uuid, card)
        self._fill(out._obj, seen, seen.used + seen.reserved, card.raw if part is None else {})
        return code

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, out: Any) -> int:
        card, part, code = self._about(handle, "nvmlDeviceGetMemoryInfo_v2")
        if not card.version2:
            return 25
        if out._obj.version != 0x02000028:
            return 2
        seen = part or self._frozen.get(card.uuid, card)
        out._obj.reserved = seen.reserved
        self._fill(out._obj, seen, seen.used, card.raw if part is None else {})
        return code

    def _fill(self, out: Any, seen: Any, used: int, raw: dict[str, int]) -> None:
        out.total, out.used, out.free = seen.total, used, seen.total - seen.used - seen.reserved
        for field, value in raw.items():
            if hasattr(out, field):
                setattr(out, field, value)

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, out: Any) -> int:
        card, part, code = self._about(handle, "nvmlDeviceGetComputeRunningProcesses")
        return code or _list((part or card).processes, count, out)

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, out: Any) -> int:
        card, part, code = self._about(handle, "nvmlDeviceGetGraphicsRunningProcesses")
        return code or _list({} if part else card.drawing, count, out)

    def _nvmlDeviceGetBAR1MemoryInfo(self, handle: Any, out: Any) -> int:
        card, _, code = self._about(handle, "nvmlDeviceGetBAR1MemoryInfo")
        if card.aperture is None:
            return code or 3
        out._obj.bar1Total = card.aperture
        return code

    def _nvmlDeviceGetMigMode(self, handle: Any, now: Any, pending: Any) -> int:
        card, _, code = self._about(handle, "nvmlDeviceGetMigMode")
        now._obj.value = pending._obj.value = int(card.slices is not None)
        return code

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, out: Any) -> int:
        _, _, code = self._about(handle, "nvmlDeviceGetMaxMigDeviceCount")
        out._obj.value = 7
        return code

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, out: Any) -> int:
        card, _, code = self._about(handle, "nvmlDeviceGetMigDeviceHandleByIndex")
        if index.value >= len(card.slices or []):
            return code or 6
        token = ctypes.c_void_p.from_buffer(handle).value or 0
        ctypes.c_void_p.from_buffer(out._obj).value = token | (index.value + 1)
        return code

    def _nvmlDeviceGetGpuInstanceId(self, handle: Any, out: Any) -> int:
        _, part, code = self._about(handle, "nvmlDeviceGetGpuInstanceId")
        out._obj.value = part.gpu_instance if part else 0xFFFFFFFF
        return code

    def _nvmlDeviceGetComputeInstanceId(self, handle: Any, out: Any) -> int:
        _, part, code = self._about(handle, "nvmlDeviceGetComputeInstanceId")
        out._obj.value = part.compute_instance if part else 0xFFFFFFFF
        return code

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, out: Any) -> int:
        card, _, code = self._about(handle, "nvmlDeviceGetFieldValues")
        for field in out._obj:
            known = field.fieldId == 230 and card.recovery is not None
            field.nvmlReturn = 0 if known else 3
            field.valueType = 1
            field.value.uiVal = card.recovery or 0
        assert count.value == len(out._obj)
        return code

    # ---- events ----

    def _nvmlDeviceGetSupportedEventTypes(self, handle: Any, out: Any) -> int:
        card, _, code = self._about(handle, "nvmlDeviceGetSupportedEventTypes")
        out._obj.value = card.event_kinds
        return code

    def _nvmlEventSetCreate(self, out: Any) -> None:
        self._next_set += 1
        self._sets[self._next_set] = {}
        ctypes.c_void_p.from_buffer(out._obj).value = self._next_set

    def _nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, into: Any) -> int:
        card, _, code = self._about(handle, "nvmlDeviceRegisterEvents")
        assert kinds.value & ~card.event_kinds == 0, "only supported events may be asked for"
        if not code:
            self._sets[_token(into)][card.uuid] = len(card.events)
        return code

    def _nvmlEventSetWait_v2(self, of: Any, out: Any, timeout: Any) -> int:
        deadline = time.monotonic() + timeout.value / 1000
        while True:
            for card in self.box.cards:
                told = self._sets[_token(of)].get(card.uuid)
                if told is None or "nvmlEventSetWait" in card.hangs:
                    continue
                if told < len(card.events):
                    self._sets[_token(of)][card.uuid] += 1
                    event = card.events[told]
                    out._obj.eventType, out._obj.eventData = event.kind, event.data
                    out._obj.gpuInstanceId = event.gpu_instance
                    return event.code
            if time.monotonic() >= deadline:
                return 10
            time.sleep(0.005)

    def _nvmlEventSetFree(self, of: Any) -> None:
        del self._sets[_token(of)]


def _token(handle: Any) -> int:
    return ctypes.c_void_p.from_buffer(handle).value or 0


def _list(held: dict[int, int], count: Any, out: Any) -> int:
    """As the library does: success with nothing, else the number first and the list at the second call."""
    room, count._obj.value = count._obj.value, len(held)
    if len(held) > room:
        return 7
    for place, (pid, size) in enumerate(held.items()):
        out[place].pid, out[place].usedGpuMemory = pid, size
    return 0
