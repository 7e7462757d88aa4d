"""The host as a device: its memory, as far as this process may use it.

1. What is available is the least of the kernel's `MemAvailable` and of what each cgroup above this process leaves: its
   limit, less what it uses and cannot take back from cached files. All levels count, of cgroup v2 and of v1.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from core.hostbudget import HostReading
from runners.cgroups import ROOT, counts, own_levels

_V1: Final = ROOT / "memory"


def observe_host() -> HostReading:
    """What there is, and what of it is left."""
    info = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        info[name] = int(rest.split()[0]) * 1024
    total, available, limited_by = info["MemTotal"], info["MemAvailable"], "memory"
    for level in (*own_levels(), *_v1_levels()):
        found = left_in(level)
        if found is None:
            continue
        most, left = found
        total = min(total, most)
        if left < available:
            available, limited_by = max(0, left), str(level)
    return HostReading(total, available, limited_by)


def left_in(level: Path) -> tuple[int, int] | None:
    """A cgroup's limit, and what it still leaves to those in it, cached files counted as left; None: it sets none."""
    for limit, usage, files in (
        ("memory.max", "memory.current", ("active_file", "inactive_file")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
    ):
        try:
            most = (level / limit).read_text().strip()
            used = int((level / usage).read_text())
        except (OSError, ValueError):
            continue
        if most == "max":
            return None
        stat = counts(level / "memory.stat")
        return int(most), int(most) - used + sum(stat.get(name, 0) for name in files)
    return None


def _v1_levels() -> Iterator[Path]:
    """This process's memory groups of cgroup v1, where they are mounted; in a container its own may be the root."""
    if not _V1.is_dir():
        return
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    inside = next((line.split(":", 2)[2] for line in lines if "memory" in line.split(":", 2)[1].split(",")), "/")
    folder = _V1 / inside.lstrip("/")
    yield from (level for level in (folder, *folder.parents) if level == _V1 or _V1 in level.parents)
