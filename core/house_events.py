"""What happened around requests: to devices, lanes, runners, models, pairs of paths, and the service itself."""

from typing import Literal

import msgspec

from core.decision import Decision
from core.event import Event
from core.words import FaultClass, Lane, PairClass


class DeviceFound(Event, frozen=True):
    """A device is known from here on. `simulated` is shown wherever the device is."""

    name: str
    simulated: bool
    total_bytes: int | None


class DeviceLost(Event, frozen=True):
    """Trust in the device ended; `epoch` is the new one, and older checkpoints are refused from here on."""

    reason: str
    epoch: int
    evidence: dict[str, str | int | float] = msgspec.field(default_factory=dict)


class DeviceBack(Event, frozen=True):
    """The device answers again."""

    reason: str
    epoch: int


class FaultCounted(Event, frozen=True):
    """A fault that speaks against the device."""

    fault: FaultClass
    kind: str
    runner: str
    evidence: dict[str, str | int | float] = msgspec.field(default_factory=dict)


class BreakerOpened(Event, frozen=True):
    """Nothing new begins on the device: for `cooldown_us`, or, when `held`, until it was found anew."""

    reason: str
    """The kind of the fault that did it."""
    decision: Decision
    cooldown_us: int
    held: bool = False


class BreakerHalfOpened(Event, frozen=True):
    """The device is tried with canaries: its cooldown is over, it was found anew, or somebody asked for it."""

    reason: str


class CanaryAnswered(Event, frozen=True):
    """A short prompt was answered on the device. `recorded`: there was nothing to compare the answer with yet.

    `slow`: it was right, and took far longer than the recorded one.
    """

    verdict: Literal["recorded", "right", "wrong", "slow"]
    path: str
    """What answered, as `store.canaries.known_as` spells it."""
    units: tuple[int, ...]
    took_us: int
    runner: str = ""
    note: str = ""
    """What was wrong with it."""


class BreakerClosed(Event, frozen=True):
    """The device takes work again."""

    reason: str
    decision: Decision | None = None


class HostResumed(Event, frozen=True):
    """The machine slept; what had been promised on its devices may be gone, and clocks have jumped."""

    slept_us: int


class LaneOut(Event, frozen=True):
    """The lane takes no new work, though its device may be fine."""

    lane: Lane
    reason: str
    evidence: dict[str, str | int | float] = msgspec.field(default_factory=dict)


class LaneIn(Event, frozen=True):
    """The lane takes work again."""

    lane: Lane


class RunnerStarted(Event, frozen=True):
    """A runner process exists."""

    lane: Lane
    device: str
    pid: int
    engine: str
    model: str


class RunnerLoaded(Event, frozen=True):
    """Its model is in memory."""

    took_us: int
    bytes_held: int
    model: str = ""
    device: str = ""
    before: int | None = None
    """Bytes of the device that were in use by nobody of ours before it took its own; None: not told."""


class LoadPlanned(Event, frozen=True):
    """The residency plan brings a model onto the device."""

    model: str
    device: str
    rule: str
    why: str


class EvictAsked(Event, frozen=True):
    """The residency plan takes an idle model off the device, to make room."""

    model: str
    device: str
    rule: str
    why: str


class Evicted(Event, frozen=True):
    """Its process is gone and its promise with it; `not_reclaimed` bytes were not seen to come back in time."""

    model: str
    device: str
    bytes_promised: int
    not_reclaimed: int = 0


class FootprintLearned(Event, frozen=True):
    """What a load was really seen to take, beside what the formula said; the next decision uses `value`."""

    model: str
    formula: int
    seen: int
    value: int


class LeakSuspected(Event, frozen=True):
    """Each of a model's last loads found more of the device in use by nobody of ours than the load before it."""

    model: str
    baselines: tuple[int, ...]
    """Bytes, oldest first."""


class PressureRose(Event, frozen=True):
    """So much of the device is in use that new work spills to the CPU lane."""

    used: int
    total: int


class PressureFell(Event, frozen=True):
    """Use has been low for long enough; new work returns."""

    used: int
    total: int


class RunnerExited(Event, frozen=True):
    """A runner process is gone; by signal, by code, or killed by us for `killed_for`."""

    signal: int | None
    code: int | None
    killed_for: str | None = None
    evidence: dict[str, str | int | float] = msgspec.field(default_factory=dict)


class EquivalenceProved(Event, frozen=True):
    """Two paths were asked the same: how alike they answered, and so what a request may do between them."""

    source: str
    target: str
    """Paths, as `core.contract.PathFacts.name` spells them."""
    contract: str
    pair: PairClass
    prompts: int
    free_same: int
    """Answers that were equal token for token."""
    tokens: int
    """Tokens compared with the same text before them."""
    agreed: int
    """Of these, how many were the same."""
    divergence: float | None
    """Mean Kullback-Leibler divergence in nats of the two distributions over the tokens both told of, all others
    counted as one; None when a path does not tell."""
    first_difference: tuple[int, ...] = ()
    """For each answer that was not equal, the first unit that differs."""


class ServiceStarted(Event, frozen=True):
    """One run of the service begins."""

    version: str
    pid: int
    sqlite: str


class DrainAsked(Event, frozen=True):
    """Somebody wants everything safe: nothing new is accepted, and running work stops at its next checkpoint."""

    reason: str


class ServiceStopped(Event, frozen=True):
    """The service ended in an orderly way."""

    reason: str
