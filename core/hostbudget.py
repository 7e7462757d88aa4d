"""How much of the host's memory the workers of the CPU lane may hold together.

1. What the host has available, mapped files of ours counted as needed, less the floor; or a fixed budget, of which a
   tenth is the reserve. Nothing is promised or taken up beyond that: the soft limit.
2. The hard limit is the whole of a fixed budget, or half of the floor.

Not here: what holds them to it (`runners.hostbudget`).
"""

import msgspec

from core.policy import Policy


class HostReading(msgspec.Struct, frozen=True):
    """Bytes: what there is, and of it what may still be used; the smaller of the kernel's and the cgroups' answers."""

    total: int
    available: int
    limited_by: str
    """`memory` or the cgroup whose limit is nearest."""


class Limits(msgspec.Struct, frozen=True):
    """Bytes that the workers may hold together."""

    soft: int
    """Beyond it nothing is taken up."""
    hard: int
    """Beyond it a worker is ended."""
    limited_by: str


def limits(policy: Policy, reading: HostReading, held: int, mapped: int) -> Limits:
    """The limits now, where the workers hold `held` bytes already, `mapped` of them files."""
    floor = int(reading.total * policy.host_floor)
    room = held + reading.available - mapped
    soft, hard, by = room - floor, room - floor // 2, reading.limited_by
    if policy.cpu_budget_bytes and promisable(policy) < soft:
        soft, by = promisable(policy), "cpu_budget_bytes"
    if policy.cpu_budget_bytes:
        hard = min(hard, policy.cpu_budget_bytes)
    return Limits(max(0, soft), max(0, hard), by)


def promisable(policy: Policy) -> int:
    """Of a fixed budget, what may be promised and taken up: a tenth is kept in reserve. 0: it is not fixed."""
    return policy.cpu_budget_bytes * 9 // 10
