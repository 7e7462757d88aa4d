"""What is known of a request after its events so far: the fold's accumulator."""

import msgspec

from core.words import Failover, FinishReason, Lane, Priority, State


class FailoverMark(msgspec.Struct, frozen=True):
    """One move between lanes, with the version of the event that tells it."""

    version: int
    at_us: int
    from_lane: Lane | None
    to_lane: Lane
    rule: str
    reason: str


class DegradedMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request is not getting the service it asked for, since when and why."""

    since_us: int
    version: int
    reason: str
    rule: str
    lane: Lane
    model: str
    waits: bool = False
    """It waits in its place because its lane is out; that is over when it starts there."""
    before: "DegradedMark | None" = None
    """Of one that waits: in what way it was served less well before."""


class FailureMark(msgspec.Struct, frozen=True):
    """Why it rests as a resumable error."""

    version: int
    reason: str
    rule: str


class RequestState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. `lane` is where it is or waits; `running` means a runner holds its lease by the record."""

    id: str
    owner: str
    workload: str
    model: str
    served_model: str
    state: State
    version: int
    created_us: int
    updated_us: int
    engine: str = ""
    contract: str = ""
    lane: Lane | None = None
    running: bool = False
    runner: str | None = None
    device: str | None = None
    units: int = 0
    max_units: int = 0
    asked_model: str | None = None
    """What was asked for, where a smaller model serves; `model` is the one whose lanes it is on."""
    asked_units: int | None = None
    """What was asked for, where `max_units` is less."""
    shorter: str | None = None
    """The rule by which it is less."""
    waits_for: str | None = None
    """The rule that keeps it waiting although its lane serves."""
    prompt_tokens: int = 0
    chunk_cap: int = 8
    whole: bool = False
    """The answer is one chunk, since it is held to a grammar."""
    visible_upto: int = 0
    output_epoch: int = 0
    attempt: int = 0
    priority: Priority = "interactive"
    failover: Failover = "auto"
    not_before_us: int | None = None
    deadline_us: int | None = None
    waiting_since_us: int | None = None
    started_us: int | None = None
    settled_us: int | None = None
    cancel_asked: bool = False
    deaths: int = 0
    """Deaths attributable to the input since the last checkpoint."""
    losses: int = 0
    """Workers that are gone since the last checkpoint, whatever ended them."""
    preemptions: int = 0
    """How often it gave its place to another."""
    failovers: tuple[FailoverMark, ...] = ()
    degraded: DegradedMark | None = None
    failure: FailureMark | None = None
    resumed_version: int | None = None
    """Version of the `Resumed` that answers repeats until the next failure."""
    finish_reason: FinishReason | None = None
    ended_by: str | None = None
    """Reason of a cancellation, an expiry or a refusal."""
    retry_after_s: int | None = None
    erased: bool = False
    fault_device: str | None = None

    @property
    def suspect(self) -> bool:
        """Whether it may be what ends its workers: it is worked on alone, so that the next end is nobody else's."""
        return self.deaths > 0 or self.losses > 1
