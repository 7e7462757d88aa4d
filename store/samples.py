"""The last quarter of an hour of each device's use: a ring of samples beside the latest reading.

1. One sample for each step of `STEP_US`, the highest use that was read in it: a peak is what pressure is about.
2. A place in the ring is the step's number modulo `PLACES`, so a new sample takes the place of the one that is too old,
   and nothing has to be swept while a device is read. Devices that are read no more are swept when a run begins.
3. Use that cannot be read is kept as unknown, never as zero; a step nobody read in has no sample.
"""

from typing import Final

import msgspec

from store.journal import Sees, Tx

STEP_US: Final = 5_000_000
SPAN_US: Final = 15 * 60 * 1_000_000
PLACES: Final = SPAN_US // STEP_US


class Sample(msgspec.Struct, frozen=True):
    """The highest use read in the step that began at `at_us`. Bytes; None is unknown."""

    at_us: int
    used: int | None
    ours: int | None
    total: int | None


class _Read(msgspec.Struct, frozen=True):
    """What is taken of a reading: of an accelerator, or of the host."""

    used: int | None = None
    ours: int | None = None
    total: int | None = None
    available: int | None = None


_read: Final = msgspec.json.Decoder(_Read).decode


def keep(tx: Tx, device: str, at_us: int, document: str) -> None:
    """Keep of a reading what the ring shows."""
    seen = _read(document)
    used = seen.used
    if used is None and seen.available is not None and seen.total is not None:
        used = max(0, seen.total - seen.available)
    step = at_us // STEP_US
    tx.execute(
        "INSERT INTO samples (device, place, at_us, used, ours, total) VALUES (?,?,?,?,?,?) "
        "ON CONFLICT (device, place) DO UPDATE SET at_us=excluded.at_us, used=excluded.used, ours=excluded.ours, "
        "total=excluded.total "
        "WHERE excluded.at_us<>samples.at_us OR samples.used IS NULL OR excluded.used>samples.used",
        (device, step % PLACES, step * STEP_US, used, seen.ours, seen.total),
    )


def sweep(tx: Tx) -> None:
    """Drop what is too old to be shown."""
    tx.execute("DELETE FROM samples WHERE at_us<?", (tx.now_us - SPAN_US,))


def recent(look: Sees) -> dict[str, list[Sample]]:
    """By device, oldest first, the samples of the last quarter of an hour."""
    found: dict[str, list[Sample]] = {}
    for device, *sample in look.execute(
        "SELECT device, at_us, used, ours, total FROM samples WHERE at_us>? AND at_us<=? ORDER BY device, at_us",
        (look.now_us - SPAN_US, look.now_us),
    ).fetchall():
        found.setdefault(device, []).append(Sample(*sample))
    return found
