r"""An engine without a model: its answer is arithmetic, its speed and its death can be ordered.

It decides what unit i of an answer is, from the prompt alone. Vocabulary: ids 0 to 255 are single bytes, 256 ends
the answer. Sampling is ignored, so that every path gives the same answer by definition.

1. D is the 32-byte BLAKE2b digest of the prompt ids as little-endian 32-bit words; block b is the 64-byte digest of
   D followed by b as eight little-endian bytes. Unit i is letter x of `ALPHABET`, where x is byte i mod 64 of
   block i div 64, modulo 64.
2. `[[emit=TEXT]]` in the prompt makes the answer exactly those bytes, then 256. `\xNN` in TEXT is one byte; TEXT
   ends at the first `]]`.
3. `[[tps=200]]` sets the speed of this request in units a second; 0 is as fast as possible. The environment's
   FAILSOFT_NULL_TPS sets that of all others (0 when unset). Each chunk keeps its own time, as a real engine does;
   what the host does at a pulse comes on top.
4. `[[crash=11@5]]` sends itself signal 11 before unit 5 is computed, `[[exit=3@5]]` ends the process with status 3,
   `[[hang@5]]` stops and pulses no more. Each happens again on every attempt that gets there.
   `[[grow=8@5]]` takes 8 MiB more of the host with each unit from unit 5 on, and never gives them back.
5. The last order of a kind counts: in a conversation that is the newest message. What is not exactly one of these
   orders is ordinary text.
6. It pulses after each unit; at full speed after each block of at most 64.
7. Its prompts take no time, unless the environment's FAILSOFT_NULL_PREFILL_TPS sets a speed: then each token that is
   evaluated before the first new unit takes its share.
8. Its snapshots are the ids that were evaluated, as little-endian 32-bit words. One that holds other ids than the work
   says is `RestoreFailed`, where a real engine would not even notice.
"""

import os
import re
import signal
import struct
import time
from collections.abc import Callable, Generator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import NoReturn

import msgspec

from core.errors import EngineFault, RestoreFailed
from runners.engines.base import (
    Capabilities,
    Chunk,
    EndReason,
    GenerateWork,
    Host,
    Loaded,
    LoadPlan,
    Ready,
    Sequence,
    Snapshot,
    Way,
)
from runners.engines.checks import check_work

END = 256
"""The id that ends an answer."""

ALPHABET = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" + b" " * 12

_BLOCK = 64
_LETTERS = bytes(ALPHABET[byte % 64] for byte in range(256))
_HEX = re.compile(rb"\\x([0-9a-fA-F]{2})")
_EMIT = re.compile(rb"\[\[emit=(.*?)\]\]", re.DOTALL)
_TPS = re.compile(rb"\[\[tps=(\d+(?:\.\d+)?)\]\]")
_GROW = re.compile(rb"\[\[grow=(\d{1,5})@(\d{1,9})\]\]")
_STRIKE = re.compile(rb"\[\[(?:(crash|exit)=(\d{1,3})|(hang))@(\d{1,9})\]\]")


class NullEngine:
    """Answers at once from any file or none, for drills, benchmarks and tests of everything around an engine."""

    name = "null"
    version = "1"
    capabilities = Capabilities(workloads=("generate",), resume="token", slots=16)

    def load(self, model: Path, plan: LoadPlan) -> Loaded:  # noqa: ARG002 - it has no model to read
        """Ready at once; raises `EngineFault` when FAILSOFT_NULL_TPS is not a speed."""
        return _Loaded(plan, _speed("FAILSOFT_NULL_TPS"), _speed("FAILSOFT_NULL_PREFILL_TPS"))


def _speed(name: str) -> float:
    given = os.environ.get(name, "0")
    try:
        speed = float(given)
    except ValueError:
        speed = -1.0
    if not 0 <= speed < float("inf"):
        raise EngineFault(f"{name}={given!r} is no speed. Give units per second, or 0 for full speed.")
    return speed


class _Orders(msgspec.Struct, frozen=True):
    """What the prompt asks of this engine, other than an answer."""

    speed: float
    script: bytes | None = None
    strike: Callable[[], None] | None = None
    strike_at: int = -1
    grow: Callable[[int], None] | None = None
    """Called with the index of each unit, and takes memory."""


class _Loaded:
    def __init__(self, plan: LoadPlan, speed: float, prefill: float) -> None:
        self._plan = plan
        self._speed = speed
        self._prefill = prefill
        self._grown: list[bytes] = []
        self.kv_format = f"null/{NullEngine.version}" if plan.snapshots is not None else ""

    def begin(self, work: GenerateWork, host: Host) -> Sequence:
        """Check the work as a real engine must, then hand out its chunks."""
        check_work(work, context=self._plan.context)
        return _Sequence(work, host, _read_orders(work.prompt, self._speed, self._grown), self._prefill)

    def at_rest(self, sequence: Sequence) -> bool:  # noqa: ARG002 -- the same for all
        """It computes only while it is asked for a chunk."""
        return True

    def save(self, sequence: Sequence, into: Path) -> int:
        """Write the ids that a real engine would hold the state of: all but the newest unit."""
        assert isinstance(sequence, _Sequence)
        ids = sequence.evaluated()
        into.write_bytes(struct.pack(f"<{len(ids)}I", *ids))
        return len(ids)

    def check(self) -> None:
        """It can always work."""

    def close(self) -> None:
        """Nothing to give back."""


class _Sequence:
    def __init__(self, work: GenerateWork, host: Host, orders: _Orders, prefill: float) -> None:
        self._work = work
        self._units = list(work.done)
        self._chunks = _chunks(work, host, orders, prefill)

    def __iter__(self) -> "_Sequence":
        return self

    def __next__(self) -> Chunk:
        chunk = next(self._chunks)
        self._units += chunk.units
        return chunk

    def close(self) -> None:
        self._chunks.close()

    def evaluated(self) -> tuple[int, ...]:
        """What is known, without the newest unit, whose successor is not computed yet."""
        return (*self._work.prompt, *self._units[:-1])


def _chunks(work: GenerateWork, host: Host, orders: _Orders, prefill: float) -> Generator[Chunk, None, None]:
    done = len(work.done)
    if done == work.max_units:
        yield Chunk((), "length")
        return
    host.threads()
    _get_ready(work, host, prefill)
    answer = _scripted(orders.script) if orders.script is not None else _hashed(work.prompt)
    eos = {END, *work.eos}
    end: EndReason | None = None
    while end is None:
        host.threads()
        wanted = min(max(host.chunk_size(done), 1), work.max_units - done)
        units = answer(done, wanted)
        cut = next((index for index, unit in enumerate(units) if unit in eos), None)
        if cut is not None:
            units, end = units[:cut], "eos"
        _spend(done, len(units), orders, host)
        if cut is not None and orders.strike is not None and orders.strike_at == done + cut:
            orders.strike()
        done += len(units)
        if end is None and done == work.max_units:
            end = "length"
        yield Chunk(units, end)


def _get_ready(work: GenerateWork, host: Host, prefill: float) -> None:
    known = (*work.prompt, *work.done)
    restored = _restored(work.snapshot, known) if work.snapshot is not None else 0
    evaluate = max(0, len(known) - (1 if work.done else 0) - restored)
    step = _BLOCK if prefill > 0 else max(1, evaluate)
    for first in range(0, evaluate, step):
        size = min(step, evaluate - first)
        if prefill > 0:
            time.sleep(size / prefill)
        host.pulse(size)
    way: Way = "snapshot" if restored else "recomputed" if work.done else "computed"
    host.ready(Ready(way, restored, evaluate))


def _restored(snapshot: Snapshot, known: tuple[int, ...]) -> int:
    try:
        words = snapshot.path.read_bytes()
    except OSError as error:
        raise RestoreFailed(f"The snapshot {snapshot.path.name} cannot be read: {error.strerror}.") from error
    held = struct.unpack(f"<{len(words) // 4}I", words[: len(words) // 4 * 4])
    if len(held) != snapshot.tokens or held != known[: len(held)]:
        raise RestoreFailed(f"The snapshot {snapshot.path.name} does not hold what it should.")
    return len(held)


def _spend(first: int, count: int, orders: _Orders, host: Host) -> None:
    """Take the time that `count` units from `first` on take, pulse for them, and strike where ordered."""
    step = 1 if orders.speed > 0 else _BLOCK
    begun = time.monotonic()
    spent = 0
    while spent < count:
        if orders.strike is not None and orders.strike_at == first + spent:
            orders.strike()
        size = min(step, count - spent)
        if spent < orders.strike_at - first < spent + size:
            size = orders.strike_at - first - spent
        if orders.grow is not None:
            for unit in range(first + spent, first + spent + size):
                orders.grow(unit)
        spent += size
        if orders.speed > 0:
            time.sleep(max(0.0, begun + spent / orders.speed - time.monotonic()))
        told = time.monotonic()
        host.pulse(size)
        begun += time.monotonic() - told


def _hashed(prompt: tuple[int, ...]) -> Callable[[int, int], tuple[int, ...]]:
    seed = blake2b(struct.pack(f"<{len(prompt)}I", *prompt), digest_size=32).digest()

    def answer(first: int, count: int) -> tuple[int, ...]:
        start = first // _BLOCK
        stop = (first + count - 1) // _BLOCK + 1
        blocks = b"".join(blake2b(seed + block.to_bytes(8, "little")).digest() for block in range(start, stop))
        offset = first - start * _BLOCK
        return tuple(blocks[offset : offset + count].translate(_LETTERS))

    return answer


def _scripted(script: bytes) -> Callable[[int, int], tuple[int, ...]]:
    units = (*script, END)

    def answer(first: int, count: int) -> tuple[int, ...]:
        return units[first : first + count] or (END,)

    return answer


def _read_orders(prompt: tuple[int, ...], speed: float, grown: list[bytes]) -> _Orders:
    text = bytes(unit for unit in prompt if unit < 256)
    if b"[[" not in text:
        return _Orders(speed)
    script = None
    for found in _EMIT.finditer(text):
        script = _HEX.sub(lambda code: bytes.fromhex(code[1].decode()), found[1])
    for found in _TPS.finditer(text):
        speed = float(found[1])
    grow: Callable[[int], None] | None = None
    for found in _GROW.finditer(text):
        grow = partial(_grow, grown, int(found[1]) << 20, int(found[2]))
    strike: Callable[[], None] | None = None
    strike_at = -1
    for found in _STRIKE.finditer(text):
        strike_at = int(found[4])
        if found[1] == b"crash":
            strike = partial(_crash, int(found[2]))
        elif found[1] == b"exit":
            strike = partial(os._exit, int(found[2]))
        else:
            strike = _hang
    return _Orders(speed, script, strike, strike_at, grow)


def _grow(grown: list[bytes], size: int, first: int, unit: int) -> None:
    if unit >= first:
        grown.append(b"\1" * size)  # the kernel counts what was written to


def _crash(number: int) -> None:
    if number not in signal.valid_signals():
        raise EngineFault(f"There is no signal {number} to crash with.")
    os.kill(os.getpid(), number)


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)
