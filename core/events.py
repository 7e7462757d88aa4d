"""Past-tense facts. What happened to a request, a runner, a device; never what should happen.

1. An event is a frozen value without identity: the journal adds seq, version, time, actor, attempt and cause.
2. No prompt, output or other content is in an event: only keyed digests of it. Contents can be erased, events not.
3. Every change of a type's meaning raises its number in `SCHEMAS`; readers upcast in `decode`.
"""

from typing import Final

import msgspec

from core.event import Event
from core.house_events import (
    BreakerClosed,
    BreakerHalfOpened,
    BreakerOpened,
    CanaryAnswered,
    DeviceBack,
    DeviceFound,
    DeviceLost,
    DrainAsked,
    EquivalenceProved,
    EvictAsked,
    Evicted,
    FaultCounted,
    FootprintLearned,
    HostResumed,
    LaneIn,
    LaneOut,
    LeakSuspected,
    LoadPlanned,
    PressureFell,
    PressureRose,
    RunnerExited,
    RunnerLoaded,
    RunnerStarted,
    ServiceStarted,
    ServiceStopped,
)
from core.request_events import (
    Admitted,
    CancelAsked,
    Cancelled,
    Checkpointed,
    Completed,
    ContentErased,
    EffectDelivered,
    Expired,
    Failed,
    FaultSeen,
    LateWriteRejected,
    Preempted,
    PrefixReady,
    Refused,
    Replanned,
    Requeued,
    Rerouted,
    Resumed,
    Returned,
    SnapshotRejected,
    SnapshotSaved,
    Started,
)

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
    FaultCounted,
    BreakerOpened,
    BreakerHalfOpened,
    CanaryAnswered,
    BreakerClosed,
    HostResumed,
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
    DrainAsked,
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


__all__ = [
    "OTHER_EVENTS",
    "REQUEST_EVENTS",
    "SCHEMAS",
    "TYPES",
    "Admitted",
    "BreakerClosed",
    "BreakerHalfOpened",
    "BreakerOpened",
    "CanaryAnswered",
    "CancelAsked",
    "Cancelled",
    "Checkpointed",
    "Completed",
    "ContentErased",
    "DeviceBack",
    "DeviceFound",
    "DeviceLost",
    "DrainAsked",
    "EffectDelivered",
    "EquivalenceProved",
    "Event",
    "EvictAsked",
    "Evicted",
    "Expired",
    "Failed",
    "FaultCounted",
    "FaultSeen",
    "FootprintLearned",
    "HostResumed",
    "LaneIn",
    "LaneOut",
    "LateWriteRejected",
    "LeakSuspected",
    "LoadPlanned",
    "Preempted",
    "PrefixReady",
    "PressureFell",
    "PressureRose",
    "Recorded",
    "Refused",
    "Replanned",
    "Requeued",
    "Rerouted",
    "Resumed",
    "Returned",
    "RunnerExited",
    "RunnerLoaded",
    "RunnerStarted",
    "ServiceStarted",
    "ServiceStopped",
    "SnapshotRejected",
    "SnapshotSaved",
    "Started",
    "decode",
    "encode",
]
