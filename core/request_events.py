"""What happened to a request."""

from typing import Literal

import msgspec

from core.decision import Decision
from core.event import Event
from core.words import Failover, FaultClass, FinishReason, Lane, Priority


class Admitted(Event, frozen=True):
    """Accepted: from here on the request must reach a terminal state."""

    owner: str
    workload: str
    model: str
    served_model: str
    engine: str
    contract: str
    prompt_tokens: int
    max_units: int
    chunk_cap: int
    failover: Failover
    priority: Priority
    deadline_us: int | None
    spec_digest: str
    """Keyed digest of the submission (prompt, token ids, stop strings), which is kept in the contents."""
    decision: Decision
    asked_units: int | None = None
    """The answer length that was asked for, where a shorter one was granted."""
    whole: bool = False
    """The answer is one chunk, since it is held to a grammar."""
    instead: Decision | None = None
    """The refusal of `model`, where the caller allowed a smaller one to serve instead: `served_model`."""
    shorter: str | None = None
    """The rule by which a shorter answer was granted than asked for; that stays so wherever the request goes."""


class Refused(Event, frozen=True):
    """Not accepted, for a typed reason. `retry_after_s` is None when trying again cannot help."""

    owner: str
    workload: str
    model: str
    reason: str
    retry_after_s: int | None
    decision: Decision


class Replanned(Event, frozen=True):
    """Looked at again and left where it is, with a reason."""

    reason: str
    decision: Decision | None = None
    not_before_us: int | None = None
    lane_out: bool = False
    """Its lane is out: it waits, and that is less than it asked for."""


class Started(Event, frozen=True):
    """A runner owns the request from here on; attempt and lease token are in the record."""

    lane: Lane
    runner: str
    device: str
    engine: str
    resume_from: int


class Checkpointed(Event, frozen=True):
    """Units up to `units` are durable. `visible_upto` counts characters of the text that may be shown."""

    units: int
    visible_upto: int
    digest: str
    took_us: int = 0


class Preempted(Event, frozen=True):
    """Gave its place to another request, by rule; never counts as a fault."""

    decision: Decision


class SnapshotSaved(Event, frozen=True):
    """The engine's state after `tokens` tokens (prompt, and `units` of the answer) is in a file."""

    tokens: int
    units: int
    bytes: int
    digest: str
    """SHA-256 of the file in hex."""
    kv_format: str
    """What an engine must agree to before it may take the file."""
    took_us: int
    """Time that the work stood still for it."""


class SnapshotRejected(Event, frozen=True):
    """A snapshot was not used, and never will be: it is damaged, gone, of another kind, or did not do what it said."""

    units: int
    reason: str


class PrefixReady(Event, frozen=True):
    """The answer can go on after a takeover: which way was taken, and what it cost."""

    way: Literal["computed", "snapshot", "recomputed", "text"]
    restored: int
    """Tokens that came out of a snapshot."""
    computed: int
    """Tokens that were evaluated again."""
    took_us: int
    note: str = ""


class FaultSeen(Event, frozen=True):
    """Evidence of a fault. The event that follows from it names it as its cause."""

    fault: FaultClass
    kind: str
    """`killed`, `crashed`, `exited`, `hung`, `lease-expired`, `service-stopped`, `device-lost`, …"""
    lane: Lane
    runner: str
    device: str
    blames_input: bool = False
    """This death may be the input's doing, and counts towards the poison limit."""
    evidence: dict[str, str | int | float] = msgspec.field(default_factory=dict)
    ended_worker: bool = False
    """Its worker is gone, whatever ended it; so many in a row without progress end the request too."""


class Requeued(Event, frozen=True):
    """Back in the queue of the lane it was on."""

    decision: Decision
    waits_for: str | None = None
    """Why it waits there although it should not have to; None: it only waits for its turn."""


class Rerouted(Event, frozen=True):
    """Moved to the CPU lane; a degradation that every reader is told of."""

    from_lane: Lane | None
    resume_from: int
    reason: str
    decision: Decision


class Returned(Event, frozen=True):
    """Moved back to the GPU lane."""

    reason: str
    resume_from: int
    decision: Decision | None = None


class Completed(Event, frozen=True):
    """The answer is whole."""

    units: int
    visible_upto: int
    finish_reason: FinishReason
    digest: str
    took_us: int = 0


class Failed(Event, frozen=True):
    """Going on would not be faithful, so it stops honestly; it can be resumed by its id."""

    reason: str
    decision: Decision


class Resumed(Event, frozen=True):
    """Taken up again by request. `start` begins a new output epoch; the old one stays readable."""

    origin: Literal["checkpoint", "start"]
    lane: Lane
    deadline_us: int | None = None


class CancelAsked(Event, frozen=True):
    """Somebody wants it to stop."""

    reason: str = "asked"


class Cancelled(Event, frozen=True):
    """Stopped for good."""

    reason: str = "asked"


class Expired(Event, frozen=True):
    """Its time was up: `deadline` while active, `ttl` while it rested as a resumable error."""

    reason: Literal["deadline", "ttl"]


class LateWriteRejected(Event, frozen=True):
    """A former owner tried to write; nothing of it entered the record."""

    runner: str
    what: str
    units: int


class EffectDelivered(Event, frozen=True):
    """An effect reached its receiver under its stable key."""

    key: str
    effect: str
    of_output: bool = False
    """It is an effect of what the request said, such as a tool that was called; notices about it are none."""


class ContentErased(Event, frozen=True):
    """Prompt and output were erased; digests remain but can no longer be checked against guesses."""

    reason: str = "asked"
