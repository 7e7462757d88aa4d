"""Past-tense facts. What happened to a request, a runner, a device; never what should happen.

1. An event is a frozen value without identity: the journal adds seq, version, time, actor, attempt and cause.
2. No prompt, output or other content is in an event: only keyed digests of it. Contents can be erased, events not.
3. Every change of a type's meaning raises its number in `SCHEMAS`; readers upcast in `decode`.
"""

from typing import Final, Literal

import msgspec

from core.decision import Decision
from core.words import Failover, FaultClass, FinishReason, Lane, PairClass, Priority


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Root of all events; the class name is the type stored in the journal."""


# ---- request streams -------------------------------------------------------------------------------------


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
    """The engine's state after `tokens` tokens (prompt, and `units` of the answer) is in a file, on the disk."""

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
    evidence: dict[str, str | int | float] = {}


class Requeued(Event, frozen=True):
    """Back in the queue of the lane it was on."""

    decision: Decision


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


class ContentErased(Event, frozen=True):
    """Prompt and output were erased; digests remain but can no longer be checked against guesses."""

    reason: str = "asked"


# ---- other streams ---------------------------------------------------------------------------------------


class DeviceFound(Event, frozen=True):
    """A device is known from here on. `simulated` is shown wherever the device is."""

    name: str
    simulated: bool
    total_bytes: int | None


class DeviceLost(Event, frozen=True):
    """Trust in the device ended; `epoch` is the new one, and older checkpoints are refused from here on."""

    reason: str
    epoch: int
    evidence: dict[str, str | int | float] = {}


class DeviceBack(Event, frozen=True):
    """The device answers again."""

    reason: str
    epoch: int


class LaneOut(Event, frozen=True):
    """The lane takes no new work, though its device may be fine."""

    lane: Lane
    reason: str
    evidence: dict[str, str | int | float] = {}


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
    evidence: dict[str, str | int | float] = {}


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
    divergence: float
    """Mean Kullback-Leibler divergence in nats of the two distributions over the tokens both told of."""
    first_difference: tuple[int, ...] = ()
    """For each answer that was not equal, the first unit that differs."""


class ServiceStarted(Event, frozen=True):
    """One run of the service begins."""

    version: str
    pid: int
    sqlite: str


class ServiceStopped(Event, frozen=True):
    """The service ended in an orderly way."""

    reason: str


REQUEST_EVENTS: Final[tuple[type[Event], ...]] = (
    Admitted,
    Refused,
    Replanned,
    Started,
    Checkpointed,
    Preempted,
    FaultSeen,
    Requeued,
    Rerouted,
    Returned,
    Completed,
    Failed,
    Resumed,
    CancelAsked,
    Cancelled,
    Expired,
    LateWriteRejected,
    EffectDelivered,
    ContentErased,
    SnapshotSaved,
    SnapshotRejected,
    PrefixReady,
)
OTHER_EVENTS: Final[tuple[type[Event], ...]] = (
    DeviceFound,
    DeviceLost,
    DeviceBack,
    LaneOut,
    LaneIn,
    RunnerStarted,
    RunnerLoaded,
    LoadPlanned,
    EvictAsked,
    Evicted,
    FootprintLearned,
    LeakSuspected,
    PressureRose,
    PressureFell,
    RunnerExited,
    EquivalenceProved,
    ServiceStarted,
    ServiceStopped,
)
TYPES: Final[dict[str, type[Event]]] = {cls.__name__: cls for cls in REQUEST_EVENTS + OTHER_EVENTS}
SCHEMAS: Final[dict[str, int]] = dict.fromkeys(TYPES, 1)

_DECODERS: Final = {name: msgspec.json.Decoder(cls) for name, cls in TYPES.items()}
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def encode(event: Event) -> str:
    """The exact JSON text that is stored and hashed."""
    return _ENCODER.encode(event).decode()


def decode(type_: str, schema: int, data: str) -> Event:
    """An event from its stored text. Raises `ValueError` for a type or schema this build does not know."""
    if type_ not in _DECODERS or schema > SCHEMAS[type_]:
        raise ValueError(f"event {type_} with schema {schema} is unknown to this version; update failsoft")
    return _DECODERS[type_].decode(data)


class Recorded(msgspec.Struct, frozen=True):
    """An event with what the journal adds to it."""

    seq: int
    event_id: str
    stream: str
    version: int
    type: str
    at_us: int
    actor: str
    attempt: int | None
    cause_seq: int | None
    event: Event
