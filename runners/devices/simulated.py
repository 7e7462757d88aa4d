"""A simulated accelerator: capacity, allocations by process, faults on demand; labelled *simulated* wherever shown.

1. Its state is one JSON file, shared by all processes of the service and by `failsoft sim`, changed under a lock.
2. A holder is a pid with its start time; what a dead holder held comes back by itself, as a driver would reap it.
3. It computes nothing: the engine runs on the host's cores, so its answers are those of the CPU lane, bit for bit.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from core.errors import AllocationFailed, DeviceFault
from runners.devices.base import Reading
from store.clock import start_ticks


class SimulatedState(msgspec.Struct):
    """What the file holds; sizes in bytes."""

    total: int
    lost: str | None = None
    """Why it is lost, or None."""
    fail_allocations: int = 0
    """How many of the next allocations fail whatever is free."""
    foreign: int = 0
    """Bytes a neighbour is pretended to hold."""
    holders: dict[str, int] = {}
    """Bytes by `pid:start`."""


class SimulatedDevice:
    """One simulated card; `path` names its state file."""

    simulated = True

    def __init__(self, path: Path, total: int | None = None) -> None:
        self.id = path.stem
        self.name = "Simulated accelerator"
        self._path = path
        self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._seen = (0, False)
        if total is not None:
            with self._change(SimulatedState(total)) as state:
                state.total = total

    @contextmanager
    def _change(self, fresh: SimulatedState | None = None) -> Iterator[SimulatedState]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            state = self._load() if self._path.exists() or fresh is None else fresh
            state.holders = {key: size for key, size in state.holders.items() if _alive(key)}
            yield state
            draft = self._path.with_suffix(".new")
            draft.write_bytes(msgspec.json.encode(state))
            draft.replace(self._path)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _load(self) -> SimulatedState:
        return msgspec.json.decode(self._path.read_bytes(), type=SimulatedState)

    def allocate(self, size: int) -> None:
        """Take `size` bytes for this process, in addition to what it has."""
        with self._change() as state:
            refused = _refusal(self.id, state, size)
            if refused is None:
                state.holders[_me()] = state.holders.get(_me(), 0) + size
        if refused is not None:
            raise refused

    def release(self) -> None:
        """Give back what this process holds."""
        with self._change() as state:
            state.holders.pop(_me(), None)

    def check(self) -> None:
        """One `stat` unless the file has changed since the last look."""
        changed = self._path.stat().st_mtime_ns
        if changed != self._seen[0]:
            self._seen = (changed, self._load().lost is not None)
        if self._seen[1]:
            raise DeviceFault(f"{self.id} is lost: {self._load().lost}")

    def observe(self) -> Reading:
        """The card as NVML would show it: whole numbers while it answers, nothing when it is lost."""
        with self._change() as state:
            if state.lost is not None:
                return Reading("lost", reason=state.lost, simulated=True)
            ours = sum(state.holders.values())
            return Reading("ok", state.total, ours + state.foreign, ours, state.foreign, simulated=True)

    def lose(self, reason: str) -> None:
        """Make it fall off the bus."""
        with self._change() as state:
            state.lost = reason
            state.holders = {}

    def restore(self) -> None:
        """Bring it back."""
        with self._change() as state:
            state.lost = None

    def fail_allocations(self, count: int) -> None:
        """Let the next `count` allocations fail."""
        with self._change() as state:
            state.fail_allocations = count

    def set_foreign(self, size: int) -> None:
        """Let a neighbour hold `size` bytes."""
        with self._change() as state:
            state.foreign = size


def _refusal(device: str, state: SimulatedState, size: int) -> DeviceFault | AllocationFailed | None:
    """Why the card does not give `size` bytes; a planned failure is used up by it."""
    if state.lost is not None:
        return DeviceFault(f"{device} is lost: {state.lost}")
    free = state.total - state.foreign - sum(state.holders.values())
    if state.fail_allocations > 0:
        state.fail_allocations -= 1
        return AllocationFailed(f"{device} refused {size} bytes by plan", need=size, free=free)
    if size > free:
        return AllocationFailed(f"{device} cannot give {size} bytes: {free} are free", need=size, free=free)
    return None


def _me() -> str:
    return f"{os.getpid()}:{start_ticks(os.getpid())}"


def _alive(key: str) -> bool:
    pid, _, ticks = key.partition(":")
    return start_ticks(int(pid)) == int(ticks)
