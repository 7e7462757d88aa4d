"""What a long record costs: the same lives appended to a store with many events and to an empty one, in turns."""

import statistics
import time

from bench.acts import CHUNKS, alone
from bench.filled import fill
from bench.numbers import Figure
from bench.parts import directory, prepared_store, settings
from store.database import checkpoint, write_engine
from store.gate import Gate

A_ROUND = 320


def measure(*, quick: bool) -> list[Figure]:
    """Microseconds an event, fsync included, as medians over the rounds."""
    wanted, rounds = (100_000, 4) if quick else (1_000_000, 12)
    took: dict[str, list[float]] = {"empty": [], "full": []}
    with directory() as small, directory() as large:
        writers = {"empty": prepared_store(small, settings()), "full": prepared_store(large, settings())}
        fill(large, wanted)
        doors = {name: (Gate(paths.gate), write_engine(paths)) for name, paths in (("empty", small), ("full", large))}
        for number in range(-1, rounds):
            for name, writer in writers.items():
                began = time.perf_counter()
                alone(writer, A_ROUND)
                seconds = time.perf_counter() - began
                if number >= 0:
                    took[name].append(seconds / A_ROUND / (2 + len(CHUNKS)) * 1e6)
                checkpoint(*doors[name])
        for gate, engine in doors.values():
            engine.dispose()
            gate.close()
        for writer in writers.values():
            writer.close()
    ratio = statistics.median(a / b for a, b in zip(took["empty"], took["full"], strict=True))
    empty, full = (statistics.median(took[name]) for name in ("empty", "full"))
    return [
        Figure(
            f"append with {wanted:,} events in the store, 16 units a commit",
            f"{full:,.0f} µs an event",
            f"empty store {empty:,.0f} µs",
            f"{ratio:.2f} of the speed when empty",
            "≥ 0.90",
            met=ratio >= 0.9,
        )
    ]
