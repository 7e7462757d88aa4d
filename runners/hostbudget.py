"""What holds the workers of the CPU lane to their share of the host's memory (`core.hostbudget`).

1. The hard limit holds by mechanism: the kernel does it, in a group of the workers' own (`runners.cgroups`); where
   there is none, the data segment of each process is limited, and `runners.memwatch` looks at all of them together.
2. Never the address space: engines map far more than they use.
"""

import hashlib
import logging
import resource
from typing import Final, Literal

from core.hostbudget import HostReading, Limits, limits
from core.policy import Policy
from runners.cgroups import Group, NoGroup
from runners.devices.host import observe_host
from store.database import Paths

log = logging.getLogger("failsoft")

SLACK: Final = 256 << 20
"""What a process may map beyond the hard limit and never touch: stacks, and what allocators keep in reserve."""


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
