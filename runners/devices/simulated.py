"""A simulated accelerator: memory by process, trouble on demand; labelled *simulated* wherever shown.

1. Its state is one JSON file, shared by all processes of the service and by `failsoft sim`, changed under a lock.
2. A holder is a pid with its start time. What a dead holder held comes back by itself, as a driver would reap it; with
   a lag set, that long after its death was seen. Meanwhile it is used by nobody.
3. It computes nothing: the engine runs on the host's cores, so its answers are those of the CPU lane, bit for bit. It
   can be slow, though: a pulse then takes longer by a factor. And it can compute garbage, with everything else green.
4. What it shows is what NVML would show: size, used, reserved, bytes by process, state and code. What is only
   ordered (the largest free block, the next failures) is not in a reading; whoever needs it finds out by failing.
5. Orders stay until they are taken back: peaks, lag, fragmentation, leak, foreign use over time, slowness, garbage.
   Losing it takes all memory from all holders; `restore` brings it back empty, with the orders that stand.

Times inside the file are those of the boot's monotonic clock, in microseconds.
"""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from core.errors import AllocationFailed, DeviceFault
from runners.devices.base import Reading
from store.clock import Clock, start_ticks

_LONGEST_STEP_S: Final = 0.5
"""Time between two pulses beyond which there was no work in between."""
_LOST: Final = 15
_RESET_REQUIRED: Final = 16
_HEAL: Final = "Bring the simulated card back: failsoft sim restore."


class Timed(msgspec.Struct, frozen=True):
    """Bytes that are held until a time."""

    until_us: int
    size: int


class Step(msgspec.Struct, frozen=True):
    """From so many seconds after the order on, a neighbour holds so many bytes."""

    after_s: float
    size: int


class SimulatedState(msgspec.Struct, omit_defaults=True):
    """What the file holds; sizes in bytes."""

    total: int
    lost: str | None = None
    """Why it is lost, or None."""
    reset_required: str | None = None
    """Why it must be reset, or None."""
    reserved: int = 0
    """What a driver would keep for itself."""
    fail_allocations: int = 0
    """How many of the next allocations fail whatever is free."""
    fail_above: int | None = None
    """Allocations of more than this fail whatever is free."""
    largest_block: int | None = None
    """Fragmentation: no allocation beyond this succeeds, however much is free in all."""
    foreign: tuple[Step, ...] = ()
    """Bytes a neighbour is pretended to hold, over time."""
    foreign_since_us: int = 0
    peak: int = 0
    """Bytes by which each allocation is larger at first."""
    peak_s: float = 0.0
    lag_s: float = 0.0
    """How long released bytes stay in use."""
    leak: int = 0
    """Bytes that stay with a process after each of its releases, until it ends."""
    slow: float = 1.0
    """How many times longer each pulse takes."""
    garbage: bool = False
    """What is computed there is garbage."""
    holders: dict[str, int] = {}
    """Bytes by `pid:start`."""
    peaks: dict[str, Timed] = {}
    """What each holder has beyond that for now."""
    leaks: dict[str, int] = {}
    """How much of what each holder has was left behind by its releases."""
    lingering: tuple[Timed, ...] = ()
    """Released bytes that have not come back yet."""


class _Seen(msgspec.Struct, frozen=True):
    """What a pulse must know of the file, and when that was written."""

    at_ns: int = 0
    trouble: str | None = None
    slow: float = 1.0
    garbage: bool = False


class SimulatedDevice:
    """One simulated card; `path` names its state file. With `total`, it is made, or given that size."""

    simulated = True

    def __init__(self, path: Path, total: int | None = None, clock: Clock | None = None) -> None:
        self.id = path.stem
        self.name = "Simulated accelerator"
        self._path = path
        self._clock = clock or Clock()
        self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._seen = _Seen()
        self._last = threading.local()
        self._here = threading.Lock()
        if total is not None:
            with self._change(SimulatedState(total)) as state:
                state.total = total

    # ---- as its users see it ------------------------------------------------------------------------------

    def allocate(self, size: int) -> None:
        """Take `size` bytes for this process, in addition to what it has; for a while more, if peaks are ordered."""
        with self._change() as state:
            refused = self._refusal(state, size + state.peak)
            if refused is None:
                me = _me()
                state.holders[me] = state.holders.get(me, 0) + size
                if state.peak:
                    more = state.peaks.get(me, Timed(0, 0)).size + state.peak
                    state.peaks[me] = Timed(self._clock.mono_us() + int(state.peak_s * 1e6), more)
        if refused is not None:
            raise refused

    def give_back(self, size: int) -> None:
        """Give back `size` bytes of what this process holds."""
        with self._change() as state:
            me = _me()
            back = min(size, state.holders.get(me, 0))
            if back:
                state.holders[me] -= back
                if state.lag_s > 0:
                    until = self._clock.mono_us() + int(state.lag_s * 1e6)
                    state.lingering = (*state.lingering, Timed(until, back))

    def release(self) -> None:
        """Give back what this process holds, less what it leaks."""
        with self._change() as state:
            me = _me()
            kept = min(_held(state, me), state.leaks.get(me, 0) + state.leak)
            self._give_back(state, me, kept)
            if kept:
                state.holders[me] = state.leaks[me] = kept

    def check(self) -> None:
        """One `stat` unless the file has changed since the last look; a slow device takes its time here."""
        changed = self._path.stat().st_mtime_ns
        if changed != self._seen.at_ns:
            state = self._load()
            self._seen = _Seen(changed, _trouble(self.id, state), state.slow, state.garbage)
        seen = self._seen
        if seen.trouble is not None:
            raise DeviceFault(seen.trouble)
        if seen.slow > 1:
            now = time.monotonic()
            step = now - getattr(self._last, "at", now)
            time.sleep(min(step, _LONGEST_STEP_S) * (seen.slow - 1))
        self._last.at = time.monotonic()

    def garbles(self) -> bool:
        """Whether what was computed up to the last `check` is garbage."""
        return self._seen.garbage

    def observe(self) -> Reading:
        """The card as NVML would show it: whole numbers while it answers, nothing when it is out."""
        with self._change(look=True) as state:
            if state.lost is not None:
                return Reading("lost", reason=state.lost, simulated=True, code=_LOST, advice=_HEAL)
            if state.reset_required is not None:
                return Reading(
                    "reset-required",
                    reason=state.reset_required,
                    simulated=True,
                    code=_RESET_REQUIRED,
                    advice=_HEAL,
                )
            processes: dict[int, int | None] = {int(key.partition(":")[0]): _held(state, key) for key in state.holders}
            used, ours = self._used(state), sum(size or 0 for size in processes.values())
            return Reading(
                "ok",
                state.total,
                used,
                ours,
                used - ours,
                simulated=True,
                free=max(0, state.total - state.reserved - used),
                reserved=state.reserved,
                processes=processes,
                name=self.name,
            )

    def state(self) -> SimulatedState:
        """Everything that is ordered and held now."""
        with self._change() as state:
            return state

    # ---- trouble ------------------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """Make it fall off the bus."""
        with self._change() as state:
            state.lost = reason
            _empty(state)

    def require_reset(self, reason: str) -> None:
        """Make it refuse all work until it is reset (`restore`)."""
        with self._change() as state:
            state.reset_required = reason
            _empty(state)

    def restore(self) -> None:
        """Bring it back."""
        with self._change() as state:
            state.lost = state.reset_required = None

    def fail_allocations(self, count: int) -> None:
        """Let the next `count` allocations fail."""
        with self._change() as state:
            state.fail_allocations = count

    def fail_above(self, size: int | None) -> None:
        """Let every allocation of more than `size` bytes fail; None: no more."""
        with self._change() as state:
            state.fail_above = size

    def fragment(self, largest: int | None) -> None:
        """Let the largest free block be at most `largest` bytes; None: all that is free is one block."""
        with self._change() as state:
            state.largest_block = largest

    def set_foreign(self, size: int) -> None:
        """Let a neighbour hold `size` bytes from now on."""
        self.script_foreign([(0.0, size)])

    def script_foreign(self, steps: Sequence[tuple[float, int]]) -> None:
        """Let a neighbour hold bytes over time: (seconds from now, bytes from then on), in order of time."""
        with self._change() as state:
            state.foreign = tuple(sorted((Step(*step) for step in steps), key=lambda step: step.after_s))
            state.foreign_since_us = self._clock.mono_us()

    def set_peak(self, size: int, seconds: float) -> None:
        """Let each allocation take `size` bytes more than asked for, for so long."""
        with self._change() as state:
            state.peak, state.peak_s = size, seconds

    def set_lag(self, seconds: float) -> None:
        """Let released bytes come back only after so long."""
        with self._change() as state:
            state.lag_s = seconds

    def set_leak(self, size: int) -> None:
        """Let each release leave `size` bytes behind, until the process ends."""
        with self._change() as state:
            state.leak = size

    def set_slow(self, factor: float) -> None:
        """Let every pulse take `factor` times as long; 1 is full speed."""
        with self._change() as state:
            state.slow = max(1.0, factor)

    def set_garbage(self, garbage: bool) -> None:
        """Let it compute garbage."""
        with self._change() as state:
            state.garbage = garbage

    def reserve(self, size: int) -> None:
        """Let the driver keep `size` bytes for itself."""
        with self._change() as state:
            state.reserved = size

    # ---- the file -----------------------------------------------------------------------------------------

    @contextmanager
    def _change(self, fresh: SimulatedState | None = None, *, look: bool = False) -> Iterator[SimulatedState]:
        with self._here:  # the file lock is the process's; this one is between its threads
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                yield from self._changed(fresh, look=look)
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _changed(self, fresh: SimulatedState | None, *, look: bool) -> Iterator[SimulatedState]:
        before = self._path.read_bytes() if self._path.exists() or fresh is None else b""
        state = msgspec.json.decode(before, type=SimulatedState) if before else fresh
        assert state is not None
        self._age(state)
        yield state
        after = msgspec.json.encode(state)
        if after != before:
            draft = self._path.with_suffix(".new")
            # A look tells what it sees on a full disk too; what time has brought is then kept by the next change.
            with contextlib.suppress(OSError) if look else contextlib.nullcontext():
                draft.write_bytes(after)
                draft.replace(self._path)

    def _load(self) -> SimulatedState:
        return msgspec.json.decode(self._path.read_bytes(), type=SimulatedState)

    def _age(self, state: SimulatedState) -> None:
        """What time and deaths have brought since the last change."""
        now = self._clock.mono_us()
        for key in [key for key in state.holders if not _alive(key)]:
            self._give_back(state, key)
        state.peaks = {key: peak for key, peak in state.peaks.items() if peak.until_us > now and key in state.holders}
        state.lingering = tuple(bytes_ for bytes_ in state.lingering if bytes_.until_us > now)

    def _give_back(self, state: SimulatedState, key: str, kept: int = 0) -> None:
        size = _held(state, key) - kept
        for book in (state.holders, state.peaks, state.leaks):
            book.pop(key, None)
        if state.lag_s > 0 and size > 0:
            until = self._clock.mono_us() + int(state.lag_s * 1e6)
            state.lingering = (*state.lingering, Timed(until, size))

    def _foreign(self, state: SimulatedState) -> int:
        passed = (self._clock.mono_us() - state.foreign_since_us) / 1e6
        return next((step.size for step in reversed(state.foreign) if step.after_s <= passed), 0)

    def _used(self, state: SimulatedState) -> int:
        ours = sum(_held(state, key) for key in state.holders)
        return ours + self._foreign(state) + sum(bytes_.size for bytes_ in state.lingering)

    def _refusal(self, state: SimulatedState, size: int) -> DeviceFault | AllocationFailed | None:
        """Why the card does not give `size` bytes; a planned failure is used up by it."""
        if (trouble := _trouble(self.id, state)) is not None:
            return DeviceFault(trouble)
        free = state.total - state.reserved - self._used(state)
        if state.fail_allocations > 0:
            state.fail_allocations -= 1
            return AllocationFailed(f"{self.id} refused {size} bytes by plan", need=size, free=free)
        if state.fail_above is not None and size > state.fail_above:
            limit = state.fail_above
            return AllocationFailed(f"{self.id} refused {size} bytes by plan: over {limit}", need=size, free=free)
        if size > free:
            return AllocationFailed(f"{self.id} cannot give {size} bytes: {free} are free", need=size, free=free)
        if state.largest_block is not None and size > state.largest_block:
            block = min(free, state.largest_block)
            text = f"{self.id} cannot give {size} bytes: {free} are free, in blocks of at most {block}"
            return AllocationFailed(text, need=size, free=free)
        return None


def _held(state: SimulatedState, key: str) -> int:
    return state.holders.get(key, 0) + (state.peaks[key].size if key in state.peaks else 0)


def _trouble(device: str, state: SimulatedState) -> str | None:
    if state.lost is not None:
        return f"{device} is lost: {state.lost}"
    return f"{device} must be reset: {state.reset_required}" if state.reset_required is not None else None


def _empty(state: SimulatedState) -> None:
    state.holders, state.peaks, state.leaks, state.lingering = {}, {}, {}, ()


def _me() -> str:
    return f"{os.getpid()}:{start_ticks(os.getpid())}"


def _alive(key: str) -> bool:
    pid, _, ticks = key.partition(":")
    return start_ticks(int(pid)) == int(ticks)
