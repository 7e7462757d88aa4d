"""The host as a device: its memory, as far as this process may use it."""

from pathlib import Path

import msgspec


class HostReading(msgspec.Struct, frozen=True):
    """Bytes. `available` is what may still be used here: the smaller of the kernel's and the cgroups' answer."""

    total: int
    available: int
    limited_by: str
    """`memory` or the cgroup whose limit is nearest."""


def observe_host() -> HostReading:
    """MemAvailable, and every ancestor cgroup's `memory.max` less what it uses and cannot reclaim."""
    info = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        info[name] = int(rest.split()[0]) * 1024
    available, limited_by = info["MemAvailable"], "memory"
    for folder in _cgroups():
        limit = folder / "memory.max"
        if not limit.is_file() or (text := limit.read_text().strip()) == "max":
            continue
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        reclaimable = int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
        left = int(text) - (int((folder / "memory.current").read_text()) - reclaimable)
        if left < available:
            available, limited_by = max(0, left), str(folder)
    return HostReading(info["MemTotal"], available, limited_by)


def _cgroups() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    group = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = root / group.lstrip("/")
    return [level for level in (folder, *folder.parents) if level == root or root in level.parents]
