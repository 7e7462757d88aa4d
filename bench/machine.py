"""The machine that figures were measured on, and what one fsync costs on its disk."""

import os
import platform
import sys
import time
from pathlib import Path

from bench.numbers import percentile
from bench.parts import directory
from store.database import filesystem_of, sqlite_version


def fsync_ms(root: Path, count: int = 200) -> tuple[float, float]:
    """p50 and p99 in milliseconds of appending 4 KiB to a file and syncing it."""
    took = []
    descriptor = os.open(root / "fsync", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for _ in range(count):
            began = time.perf_counter()
            os.write(descriptor, b"x" * 4096)
            os.fsync(descriptor)
            took.append((time.perf_counter() - began) * 1e3)
    finally:
        os.close(descriptor)
    return percentile(took, 50), percentile(took, 99)


def describe() -> str:
    """A few lines of Markdown."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in facts if line.startswith("model name")), platform.machine())
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    with directory() as paths:
        p50, p99 = fsync_ms(paths.root)
        kind = filesystem_of(paths.root)
    return "\n".join(
        [
            f"- {len(os.sched_getaffinity(0))} cores of {name}, {memory:.0f} GiB of memory, Linux {platform.release()}",
            f"- disk: {kind}, fsync of 4 KiB p50 {p50:.2f} ms, p99 {p99:.2f} ms",
            f"- Python {sys.version.split()[0]}, SQLite {sqlite_version()}, synchronous=FULL throughout",
            f"- load average at the start {os.getloadavg()[0]:.1f}",
        ]
    )
