"""How fast a model runs when parts of it lie in host memory or on a disk, from measured bandwidths.

1. Generation with offloading: T = L * (Tpre + (n - 1) * Tgen). A layer's prefill takes as long as the slowest of what
   goes on at once: loading (and reading from disk), storing (and writing to disk), computing. A layer's decode step
   loads its weights first, then takes the slowest of storing, reading, writing and computing. This is the cost model
   of FlexGen, with its constants in `T4`; it met two of its own published rows within 3 and 20 %.
2. Hybrid placements without overlap, as llama.cpp runs them: each token reads each tier's bytes once, one tier after
   the other. Mapped weights that do not fit into host memory are read from the disk in full for every token, because
   going round in a circle evicts exactly what is needed next.
3. Neither knows of launch overheads. With everything on the device the first is more than twice too fast, and says so.
4. Disk constants decide everything below the host: with the shipped one, a published row comes out 4 times too slow.
"""

import msgspec

from core.errors import Malformed

_GIB = float(1 << 30)


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """A machine: bytes per second between tiers, and operations per second."""

    to_device: float
    cache_from_device: float
    hidden_from_device: float
    disk_read: float
    disk_write: float
    disk_write_cache_prefill: float
    dense_prefill: float
    dense_decode: float
    attention_prefill: float
    attention_decode: float
    host_attention: float


T4 = Rates(
    to_device=12.89 * _GIB,
    cache_from_device=0.97 * _GIB,
    hidden_from_device=4.82 * _GIB,
    disk_read=0.473 * _GIB,
    disk_write=2.015 * _GIB,
    disk_write_cache_prefill=0.746 * _GIB,
    dense_prefill=21.24e12,
    dense_decode=4.3e12,
    attention_prefill=9.97e12,
    attention_decode=0.079e12,
    host_attention=0.0123e12,
)
"""The constants that FlexGen ships for its T4 machine."""


class Placed(msgspec.Struct, frozen=True):
    """Parts of one kind of data in device and host memory, 0 to 1; the rest is on the disk."""

    device: float
    host: float

    def __post_init__(self) -> None:
        """Parts of a whole."""
        if min(self.device, self.host) < 0 or self.disk < -1e-9:
            msg = f"parts {self.device} and {self.host} are not parts of a whole; give fractions from 0 to 1"
            raise Malformed(msg)

    @property
    def disk(self) -> float:
        """What is left."""
        return 1 - self.device - self.host

    @property
    def away(self) -> float:
        """What is not on the device."""
        return 1 - self.device


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of equal requests to a model with f16 weights, feed-forward blocks of two matrices, and f16 cache."""

    layers: int
    width: int
    inner: int
    batch: int
    prompt: int
    answer: int

    @property
    def layer_bytes(self) -> int:
        """Weights of one layer."""
        return 8 * self.width**2 + 4 * self.width * self.inner


class Speed(msgspec.Struct, frozen=True):
    """What to expect. `limits` says what the model leaves out in this case."""

    prefill_seconds: float
    step_seconds: float
    """One token for the whole batch."""
    tokens_per_second: float
    bound: str
    """What a decode step waits for: `load`, `store`, `disk read`, `disk write` or `compute`."""
    limits: tuple[str, ...]


def expected_speed(work: Work, *, weights: Placed, cache: Placed, hidden: Placed, rates: Rates) -> Speed:
    """Throughput of generation with offloading (rule 1)."""
    prefill = work.layers * _prefill(work, weights, cache, hidden, rates)
    load, others = _step(work, weights, cache, hidden, rates)
    slowest = max(others, key=lambda name: others[name])
    step = work.layers * (load + others[slowest])
    seconds = prefill + (work.answer - 1) * step
    limits = []
    if weights.device == cache.device == hidden.device == 1:
        limits.append("everything is on the device: launch overheads decide, and are not in this model")
    if weights.disk > 0 or cache.disk > 0:
        limits.append("the disk decides: measure its bandwidth in large reads, it moves this figure in proportion")
    return Speed(
        prefill_seconds=prefill,
        step_seconds=step,
        tokens_per_second=work.batch * work.answer / seconds,
        bound="load" if load > others[slowest] else slowest,
        limits=tuple(limits),
    )


def _prefill(work: Work, weights: Placed, cache: Placed, hidden: Placed, rates: Rates) -> float:
    """Seconds of one layer; all prompts at once."""
    s, h, b = work.prompt, work.width, work.batch
    states = 2 * s * h * b
    made = 4 * (s + 1) * h * b
    load = (work.layer_bytes * weights.away + states * hidden.away) / rates.to_device
    store = made * cache.away / rates.cache_from_device + states * hidden.away / rates.hidden_from_device
    read = (work.layer_bytes * weights.disk + states * hidden.disk) / rates.disk_read
    write = made * cache.disk / rates.disk_write_cache_prefill + states * hidden.disk / rates.disk_write
    dense = b * s * work.layer_bytes / rates.dense_prefill
    attention = 4 * b * s * s * h / rates.attention_prefill
    return max(load + read, store + write, dense + attention)


def _step(work: Work, weights: Placed, cache: Placed, hidden: Placed, rates: Rates) -> tuple[float, dict[str, float]]:
    """Seconds of one layer for one token of each request, half of the answer being there: load, and what follows."""
    h, b = work.width, work.batch
    there = work.prompt + work.answer / 2
    states = 2 * h * b
    attention = 4 * b * there * h
    load = (work.layer_bytes * weights.away + states * hidden.away) / rates.to_device
    dense = b * work.layer_bytes / rates.dense_decode
    by_device = attention * cache.device / rates.attention_decode
    by_host = attention * cache.away / rates.host_attention
    return load, {
        "store": states * hidden.away / rates.hidden_from_device,
        "disk read": (attention * cache.disk + states * hidden.disk + work.layer_bytes * weights.disk)
        / rates.disk_read,
        "disk write": (4 * b * h * cache.disk + states * hidden.disk) / rates.disk_write,
        "compute": dense + by_device + by_host,
    }


class Bandwidths(msgspec.Struct, frozen=True):
    """Measured reads in bytes per second; None where nothing was measured."""

    device: float | None
    host: float | None
    disk: float | None


def hybrid_rate(*, device_bytes: int, host_bytes: int, host_free: int | None, bandwidths: Bandwidths) -> float | None:
    """Tokens per second of one request when each token reads so many bytes of weights and cache (rule 2).

    `host_free` is what mapped weights may take, None without that limit. None when a bandwidth that counts is unknown.
    """
    spilled = host_free is not None and host_bytes > host_free
    seconds = 0.0
    parts = [(device_bytes, bandwidths.device), (host_bytes, bandwidths.disk if spilled else bandwidths.host)]
    for count, rate in parts:
        if count and not rate:
            return None
        seconds += count / rate if rate else 0.0
    return 1 / seconds if seconds else None
