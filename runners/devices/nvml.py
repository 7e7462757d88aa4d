"""Real cards, as NVIDIA's management library (NVML) shows them. `python -m runners.devices.nvml` prints what it sees.

1. Only NVML is asked, never CUDA: the first CUDA call of a process takes memory on the card.
2. A card is its UUID. A card in MIG mode is its slices, each with its own UUID and its own size, never the card's.
3. Any call may hang for ever. This module is for processes that may: the monitor, and this command. Never for the
   supervisor or a runner.
4. 2^64-1, "not supported" and "no permission" are unknown, never a number.
5. Memory of version 2 counts the driver's own share apart; version 1, for old drivers, has it in `used`.
6. A card that is out answers well only after the library was initialised anew (`Driver.renew`), which needs all calls
   of the process to have returned.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
import pynvml
from pynvml import NVMLError

from core.hostbudget import HostReading
from runners.devices import questions
from runners.devices.base import MigPlace, Reading, XidSeen
from runners.devices.codes import meaning
from runners.devices.host import observe_host
from runners.devices.processes import share
from runners.devices.standing import Judgement, Standing
from runners.devices.unified import is_unified
from runners.devices.xidwatch import XidWatch

_STUCK_S: Final = 3.0


class Driver:
    """This process's session with NVML, for all its threads."""

    def __init__(
        self,
        *,
        said_unified: Mapping[str, bool] | None = None,
        ours: Callable[[int], bool] | None = None,
        host: Callable[[], HostReading] = observe_host,
    ) -> None:
        self.said_unified = said_unified or {}
        """By the beginning of a UUID: the operator's word on whether a device uses the host's memory."""
        self.ours = ours
        """Whether a pid is of this service; None where the driver's pids mean nothing, and are then not told."""
        self.host = host
        self.version: str | None = None
        self.code: int | None = 1
        """Why there is no session, as a return code; None while there is one."""
        self.generation = 0
        self.watches: set[XidWatch] = set()
        self._turn = threading.Condition()
        self._inside: dict[int, float] = {}
        self._renewing = False

    def open(self) -> None:
        """Begin, unless begun; raises `NVMLError`."""
        if self.code is None:
            return
        try:
            pynvml.nvmlInit()
        except NVMLError as error:
            self.code = error.value
            raise
        self.code = None
        self.generation += 1
        with suppress(NVMLError):
            self.version = questions.text(pynvml.nvmlSystemGetDriverVersion())

    @contextmanager
    def use(self) -> Iterator[int]:
        """Around a group of calls; answers the generation of handles that hold meanwhile."""
        me = threading.get_ident()
        with self._turn:
            self._turn.wait_for(lambda: not self._renewing)
            self._inside[me] = time.monotonic()
        try:
            yield self.generation
        finally:
            with self._turn:
                del self._inside[me]
                self._turn.notify_all()

    def renew(self) -> bool:
        """Initialise the library anew; False when a call that hangs forbids it. Raises `NVMLError` as `open`."""
        if not self._alone(_STUCK_S):
            return False
        try:
            self._shut()
            self.open()
        finally:
            self._go_on()
        return True

    def close(self, patience_s: float) -> None:
        """At the end: let the driver go, unless a call hangs. Whoever calls after that waits for ever."""
        if self._alone(patience_s):
            self._shut()

    def _alone(self, patience_s: float) -> bool:
        """Let nobody in, and wait until nobody is inside."""
        with self._turn:
            if self._renewing or any(time.monotonic() - since > _STUCK_S for since in self._inside.values()):
                return False
            self._renewing = True
            if self._turn.wait_for(lambda: not self._inside, patience_s):
                return True
        self._go_on()
        return False

    def _go_on(self) -> None:
        with self._turn:
            self._renewing = False
            self._turn.notify_all()

    def _shut(self) -> None:
        for watch in self.watches:
            watch.close()
        if self.code is None:
            with suppress(NVMLError):
                pynvml.nvmlShutdown()
            self.code = 1

    def cards(self) -> list["Card"]:
        """Every card that tells its identity; raises `NVMLError` when the driver does not even count them."""
        found = []
        with self.use():
            for index in range(pynvml.nvmlDeviceGetCount()):
                with suppress(NVMLError):  # a card that is gone has no handle; whoever knew it asks by its UUID
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    found.append(
                        Card(
                            self,
                            questions.text(pynvml.nvmlDeviceGetUUID(handle)),
                            questions.text(pynvml.nvmlDeviceGetName(handle)),
                            questions.text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
                        )
                    )
        return found


class Card:
    """One physical card. All of it is used by one thread."""

    def __init__(self, driver: Driver, uuid: str, name: str, pci: str) -> None:
        self.uuid = uuid
        self.name = name
        self.pci = pci
        self._driver = driver
        self._standing = Standing()
        self._generation = 0
        self._handle: Any = None
        self._watch = XidWatch()
        self._slices: dict[str, MigPlace] = {}
        self.troubled = False
        """Whether the last look found it out, or not answering."""

    def look(self) -> dict[str, Reading]:
        """Readings by UUID: of the card, or of its slices. Never raises."""
        with self._driver.use() as generation:
            if generation != self._generation:
                self._begin(generation)
            code, recovery = self._driver.code, None
            seen: dict[str, Reading] = {}
            if code is None:
                try:
                    self._handle = self._handle or pynvml.nvmlDeviceGetHandleByUUID(self.uuid.encode())
                    self._watch.attach(self._handle)
                    recovery = questions.recovery_action(self._handle)
                    seen = self._read(self._handle)
                except NVMLError as error:
                    code = error.value
                    self._handle = None
        judgement = self._standing.judge(code, recovery)
        self.troubled = judgement.state != "ok"
        return self._judged(seen, judgement, recovery)

    def wait(self, seconds: float) -> None:
        """Until the next event of this card, or that long."""
        began = time.monotonic()
        with self._driver.use():
            heard = self._watch.wait(seconds) if self._driver.code is None else None
        for xid in heard or ():
            self._standing.noted(xid)
        if heard is None:
            time.sleep(max(0.0, began + seconds - time.monotonic()))

    def _begin(self, generation: int) -> None:
        """New handles: the library was initialised anew."""
        if self._generation:
            self._standing.renewed()
        self._generation = generation
        self._handle = None
        self._driver.watches.add(self._watch)

    def _read(self, handle: Any) -> dict[str, Reading]:
        places = questions.slices(handle, self.uuid)
        if places is None:
            self._slices = {}
            return {self.uuid: self._whole(handle)}
        seen: dict[str, Reading] = {}
        for uuid in self._slices.keys() - places.keys():
            told = meaning(28)
            seen[uuid] = Reading("lost", reason="this MIG slice was taken away", code=28, advice=told.advice)
        self._slices |= {uuid: place for uuid, (_, place) in places.items()}
        for uuid, (part, place) in places.items():
            reading = self._memory_reading(part, questions.memory(part))
            seen[uuid] = msgspec.structs.replace(reading, mig=place, name=questions.name(part))
        if not seen:
            seen[self.uuid] = Reading(
                "blind",
                reason="the card is in MIG mode and has no slice to compute on",
                advice="Make a slice (nvidia-smi mig -cgi PROFILE -C), or leave MIG mode (nvidia-smi -mig 0).",
            )
        return seen

    def _whole(self, handle: Any) -> Reading:
        memory = questions.memory(handle)
        host = self._driver.host()
        said = next((word for start, word in self._driver.said_unified.items() if self.uuid.startswith(start)), None)
        if is_unified(
            self.name, total=memory.total, aperture=questions.aperture(handle), host_total=host.total, said=said
        ):
            processes = questions.processes(handle) if self._driver.ours is not None else None
            ours, _ = share(None, processes, self._driver.ours)
            used = max(0, host.total - host.available)
            return Reading("ok", host.total, used, ours, free=host.available, processes=processes, unified=True)
        return self._memory_reading(handle, memory)

    def _memory_reading(self, handle: Any, memory: questions.Memory) -> Reading:
        processes = questions.processes(handle) if self._driver.ours is not None else None
        ours, foreign = share(memory.used, processes, self._driver.ours)
        reading = Reading(
            "ok",
            memory.total,
            memory.used,
            ours,
            foreign,
            free=memory.free,
            reserved=memory.reserved,
            processes=processes,
        )
        if memory.total is None or memory.used is None:
            told = meaning(3)
            reading = msgspec.structs.replace(reading, state=told.state, reason=told.words, advice=told.advice)
        return reading

    def _judged(self, seen: dict[str, Reading], judgement: Judgement, recovery: int | None) -> dict[str, Reading]:
        """What was read, under how the card stands. Nothing was read: every identity it has stands so."""
        if not seen:
            seen = {uuid: Reading("ok", mig=place) for uuid, place in self._slices.items()} or {
                self.uuid: Reading("ok")
            }
        told: dict[str, Any] = {
            "pci": self.pci,
            "driver": self._driver.version,
            "recovery": recovery,
        }
        if judgement.state != "ok" or judgement.reason:
            told |= msgspec.structs.asdict(judgement)
        return {
            uuid: msgspec.structs.replace(
                reading, **_kept(reading, told), name=reading.name or self.name, xids=self._heard(reading.mig)
            )
            for uuid, reading in seen.items()
        }

    def _heard(self, place: MigPlace | None) -> tuple[XidSeen, ...]:
        """What concerns the whole card, or this slice: a program's failure on one slice is not another's."""
        if place is None or place.gpu_instance is None:
            return self._watch.seen
        return tuple(
            xid
            for xid in self._watch.seen
            if xid.kind != "app" or xid.gpu_instance is None or xid.gpu_instance == place.gpu_instance
        )


def _kept(reading: Reading, told: dict[str, Any]) -> dict[str, Any]:
    """A slice that was taken away, or a memory that cannot be read, is not made better by a card that is well."""
    if reading.state != "ok" and told.get("state", "ok") == "ok":
        return {key: value for key, value in told.items() if key not in {"state", "reason", "advice", "code"}}
    return told


def main() -> int:
    """Print what the driver shows: `driver` and `devices`, or `problem`, `code` and `advice` with exit status 1."""
    driver = Driver()
    try:
        driver.open()
        readings = {uuid: reading for card in driver.cards() for uuid, reading in card.look().items()}
    except NVMLError as error:
        told = meaning(error.value)
        found: dict[str, Any] = {"problem": told.words, "code": error.value, "advice": told.advice}
    else:
        devices = [{"id": uuid} | msgspec.to_builtins(reading) for uuid, reading in readings.items()]
        found = {"driver": driver.version, "devices": devices}
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 1 if "problem" in found else 0


if __name__ == "__main__":
    sys.exit(main())
