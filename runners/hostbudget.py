"""What the workers of the CPU lane may hold of the host's memory together, and what holds them to it.

1. The budget is what the host has available, mapped files of ours counted as needed, less the floor; or a fixed one, of
   which a tenth is the reserve. Nothing is promised or taken up beyond that: the soft limit.
2. The hard limit is the whole of a fixed budget, or half of the floor. It holds by mechanism: the kernel does it, in a
   group of the workers' own (`runners.cgroups`); where there is none, the data segment of each process is limited, and
   `runners.memwatch` looks at all of them together.
3. Never the address space: engines map far more than they use.
"""

import hashlib
import logging
import resource
from typing import Final, Literal

import msgspec

from core.policy import Policy
from runners.cgroups import Group, NoGroup
from runners.devices.host import HostReading, observe_host
from store.database import Paths
from store.hostlane import promisable

log = logging.getLogger("failsoft")

SLACK: Final = 256 << 20
"""What a process may map beyond the hard limit and never touch: stacks, and what allocators keep in reserve."""


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


class HostBudget:
    """The mechanism of one run."""

    def __init__(self, paths: Paths, policy: Policy) -> None:
        self._policy = policy
        self._group: Group | None = None
        self.why = "this process's cgroup was handed to it"
        most = self.now(held=0, mapped=0)[1].hard
        try:
            self._group = Group.make(f"failsoft-{hashlib.sha256(str(paths.root).encode()).hexdigest()[:8]}", most)
        except NoGroup as reason:
            self.why = str(reason)
        self._most = most

    @property
    def by(self) -> Literal["cgroup", "watch"]:
        """What holds the budget."""
        return "cgroup" if self._group is not None else "watch"

    def now(self, held: int, mapped: int) -> tuple[HostReading, Limits]:
        """A look at the host, and the limits that follow."""
        reading = observe_host()
        return reading, limits(self._policy, reading, held, mapped)

    def follow(self, hard: int) -> None:
        """Let the mechanism have the new hard limit."""
        self._most = hard
        try:
            if self._group is not None:
                self._group.limit(hard)
        except OSError as error:
            log.warning("the limit of the CPU lane's cgroup cannot be set: %s", error.strerror)

    def hold(self, pid: int) -> None:
        """Hold a process that was just started, and whatever it starts, to the budget."""
        try:
            if self._group is not None:
                self._group.take(pid)
                return
        except OSError as error:
            log.warning("process %d cannot be put into the CPU lane's cgroup: %s", pid, error.strerror)
        most = self._most + SLACK
        try:
            resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))
        except (OSError, ValueError) as error:
            log.warning("the data segment of process %d cannot be limited: %s", pid, error)

    def kernel_ended_one(self) -> bool:
        """Whether the kernel has ended one of the workers' processes at the budget since this was asked last."""
        return self._group is not None and self._group.killed()

    def close(self) -> None:
        """At the end, when all workers are gone."""
        if self._group is not None:
            self._group.close()
