"""How much of the host's memory the workers of the CPU lane may hold together.

1. What the host has available, mapped files of ours counted as needed, less the floor; or a fixed budget, of which a
   tenth is the reserve. Nothing is promised or taken up beyond that: the soft limit.
2. The hard limit is the whole of a fixed budget, or half of the floor.
3. Beyond the soft limit the lane takes nothing more (`takes`), until it was calm for `CALM_S`.
4. Beyond the hard limit the largest worker is ended (`ends`), one at a time, and none that holds nothing to speak of:
   where others have taken the host's memory, that would help nobody.
5. A worker at rest that holds far more than after loading begins anew (`begins_anew`): it does not give back. While the
   lane takes nothing more, a little more is enough; and when that lasts, the largest does whatever it holds.

Not here: what holds them to it (`runners.hostbudget`), and who carries this out (`runners.memwatch`).
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from core.memory import WORKER_BYTES
from core.policy import Policy

CALM_S: Final = 2.0
"""How long the workers must hold less than the soft limit before the lane takes work again."""
STUCK_S: Final = 10.0
"""How long the lane takes nothing before a worker at rest is started anew for that alone."""
A_LITTLE: Final = 32 << 20


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


class Worker(msgspec.Struct, frozen=True):
    """What is seen of one worker and of all that it has started. Bytes."""

    resident: int
    own: int
    """Of these: what is no file."""
    after_loading: int | None = None
    """What was its own when it had just loaded; None: it was not seen then."""
    at_rest: bool = False
    ending: bool = False
    """It was told to end already."""


def takes(before: bool, used: int, limits_now: Limits, calm_s: float) -> bool:
    """Whether the lane takes work, where it did so `before`, and `used` has not passed the soft limit for `calm_s`."""
    if used > limits_now.soft:
        return False
    return before or calm_s >= CALM_S


def largest(workers: Mapping[str, Worker]) -> str | None:
    """The model whose worker holds most; the first of those that hold the same. None: there is no worker."""
    return max(workers, key=lambda model: workers[model].resident, default=None)


def ends(used: int, limits_now: Limits, workers: Mapping[str, Worker]) -> str | None:
    """The model whose worker is to be ended now; None: nobody's."""
    model = largest(workers)
    if used <= limits_now.hard or model is None:
        return None
    worker = workers[model]
    return None if worker.ending or worker.resident <= WORKER_BYTES else model


def begins_anew(
    policy: Policy, model: str, workers: Mapping[str, Worker], *, taking: bool, stopped_s: float
) -> Literal["stuck", "grown"] | None:
    """Why a worker at rest is to begin anew, where the lane takes nothing for `stopped_s` already unless `taking`."""
    worker = workers[model]
    if not worker.at_rest or worker.ending:
        return None
    if not taking and stopped_s >= STUCK_S and largest(workers) == model:
        return "stuck"
    allowed = policy.cpu_growth_bytes or float("inf")
    if not taking:
        allowed = min(allowed, A_LITTLE)
    grown = worker.after_loading is not None and worker.own - worker.after_loading > allowed
    return "grown" if grown else None
