"""Time as the store uses it: wall clock for the record, boot-relative monotonic clock for leases."""

import time
from functools import cache
from pathlib import Path


class Clock:
    """UTC microseconds for records; microseconds since boot (not counting suspend) for leases and pulses."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01T00:00:00Z."""
        return time.time_ns() // 1000

    def mono_us(self) -> int:
        """Microseconds of `CLOCK_MONOTONIC`: comparable between processes of one boot."""
        return time.monotonic_ns() // 1000

    def boot_us(self) -> int:
        """Microseconds of `CLOCK_BOOTTIME`: as `mono_us`, and time in which the machine slept counts."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


@cache
def boot_id() -> str:
    """Identity of this boot; monotonic times of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, or None when there is no such process.

    A pid together with its start time names a process for good, while pids are used again. Source: proc(5), stat,
    field 22.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = stat.rpartition(")")[2].split()
    return None if after_name[0] == "Z" else int(after_name[19])
