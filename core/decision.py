"""A decision: what a pure rule chose, over which facts, and what it rejected and why.

The facts are stored whole with the decision, so that the same function can be asked again years later
(`core.replay.decide_again`) and must answer the same.
"""

from typing import Literal

import msgspec

from core.ledger import DeviceFacts
from core.words import Failover, FaultClass, Lane, PairClass, Priority


class LaneFacts(msgspec.Struct, frozen=True):
    """A lane as the decider saw it inside the transaction."""

    present: bool
    """There is such a lane on this machine at all."""
    serving: bool
    """It takes new work: its device is in, its runner is up or expected back at once."""
    out_reason: str | None
    """Why it does not serve, in a word (`device-lost`, `load-failed`, `no-device`), or None."""
    waiting: int
    limit: int
    """How many may wait; meant for new admissions only."""
    context: int
    """Tokens, prompt and answer together, that the lane can hold for the model asked for."""
    longest: int = 0
    """Tokens of an answer that it gives a new request at most; 0: as many as it holds."""


class Part(msgspec.Struct, frozen=True):
    """A hybrid placement: so many of the model's layers on the device, the rest on the host."""

    layers: int
    load: int
    """Bytes of the device at the load peak."""
    rate: float | None
    """Tokens a second to be expected, from bytes over bandwidth; None: not known."""


class Need(msgspec.Struct, frozen=True):
    """What a request needs on the device, in bytes."""

    load: int
    """For the model's process, at its load peak; 0 when the model is resident."""
    token: int
    """For each token of prompt and answer; 0 where the engine's own pool, counted with the process, holds them."""
    basis: Literal["formula", "learned", "declared", "unknown"] = "formula"
    parts: tuple[Part, ...] = ()
    """How the model could be placed in part, most layers first; empty when it is resident or its engine cannot."""

    held: int = 0
    """What the model's process was promised already."""

    def bytes_for(self, tokens: int) -> int:
        """Bytes for the model, if it is not there yet, and so many tokens."""
        return self.load + self.token * tokens


class HostFacts(msgspec.Struct, frozen=True):
    """The host's memory as the CPU lane sees it, in bytes."""

    available: int | None
    floor: int
    """Never promised: the host must go on living."""
    need: int
    """What the request, and the model if it is not loaded yet, would take."""
    total: int | None = None
    mapped: int = 0
    """Of what is available, bytes of files that the CPU lane's workers have mapped: the kernel would give them away,
    and they are needed."""
    pending: int = 0
    """What other models of the CPU lane that are on their way have still to take."""
    budget: int = 0
    """Most that may be promised to the CPU lane in all; 0: whatever is available."""
    held: int = 0
    """What the CPU lane's workers hold now; compared with the budget."""

    promised: int = 0
    """On a device that uses the same memory: what was promised there and has not been taken yet."""

    def left(self) -> int | None:
        """Bytes that may still be used; None: not known."""
        rooms = [] if self.available is None else [self.available - self.mapped - self.floor - self.promised]
        rooms += [self.budget - self.held] if self.budget else []
        return max(0, min(rooms) - self.pending) if rooms else None


class AdmissionFacts(msgspec.Struct, frozen=True, tag="admission", tag_field="kind"):
    """Everything `core.admission.decide` may look at."""

    prompt_tokens: int
    max_units: int
    failover: Failover
    draining: bool
    gpu: LaneFacts
    cpu: LaneFacts
    device: DeviceFacts | None = None
    """The GPU lane's device; None where its memory is not accounted."""
    need: Need | None = None
    host: HostFacts | None = None
    allow_shrink: bool = False
    least_units: int = 1
    """An answer shorter than this is not worth shrinking to."""
    spilling: bool = False
    """Memory pressure has passed its upper mark and has not been low for long enough since."""
    evictable: int = 0
    """Bytes that idle models could give back."""
    awaited: int = 0
    """Bytes that requests accepted earlier wait for without a promise; they are not passed over."""
    second_look: bool = False
    """Asked again just before the start, with a fresh picture."""


class SafepointFacts(msgspec.Struct, frozen=True, tag="safepoint", tag_field="kind"):
    """Everything `core.safepoint.decide` may look at."""

    fault: FaultClass
    fault_kind: str
    """The evidence in a word: `killed`, `crashed`, `exited`, `hung`, `lease-expired`, `service-stopped`, …"""
    lane: Lane
    """Where the request was, running or waiting, when the fault came."""
    units: int
    """Durable units; 0 means nothing can have been shown."""
    failover: Failover
    pair: PairClass
    """How alike the path it was on and the CPU path have been proved to answer."""
    cpu_serving: bool
    deaths: int
    """Worker deaths attributable to the input since its last checkpoint, this one included."""
    poison_limit: int
    cancel_asked: bool = False
    losses: int = 0
    """Workers that are gone since its last checkpoint, whatever ended them, this one included."""
    loss_limit: int = 0
    """So many are enough; 0: there is no limit."""
    effects_pending: bool = False
    """An effect was delivered, or a tool call shown, since the checkpoint."""
    cpu_waiting: int = 0
    """Requests that wait for the CPU lane already."""
    cpu_limit: int | None = None
    """How many may; None: that is not asked."""


class Seat(msgspec.Struct, frozen=True):
    """A request that holds blocks of a shared cache."""

    request_id: str
    priority: Priority
    turn_us: int
    """Its place in the queue by age and priority; the smallest goes first."""
    held: int
    """Blocks it holds."""
    most: int
    """Blocks that its prompt and its longest answer would fill."""
    preemptions: int = 0
    """How often it gave its place before."""
    wants: int = 0
    """Blocks it waits to hold; 0: it does not wait."""
    leaving: bool = False
    """It was asked to give its place and has not gone yet; what it holds is on its way back."""


class PoolFacts(msgspec.Struct, frozen=True, tag="pool", tag_field="kind"):
    """Everything `core.pool.decide` may look at."""

    blocks: int
    """Of the whole pool."""
    block_tokens: int
    seats: tuple[Seat, ...]
    asks: str
    """The request that wants to grow; one of the seats."""
    wants: int
    """Blocks it wants to hold then."""
    limit: int
    """A request that gave its place so often before keeps it."""


class ReturnFacts(msgspec.Struct, frozen=True, tag="return", tag_field="kind"):
    """Everything `core.returning.decide` may look at. Seconds, and units a second."""

    wanted: bool
    """Policy allows going back."""
    failover: Failover
    units: int
    units_left: int
    pair: PairClass
    """How alike the two lanes have been proved to answer."""
    gpu_serving: bool
    gpu_waiting: int
    """Requests that wait for the GPU lane already."""
    gpu_slots: int
    spilling: bool
    moves: int
    """Changes of lane so far."""
    on_cpu_s: float
    """Since it was moved."""
    least_s: float
    """Before its first move back; doubles with each move."""
    least_gain_s: float
    cpu_tps: float | None
    """Measured here; None: not known yet."""
    gpu_tps: float | None
    takeover_s: float | None
    """Predicted: a snapshot restored, or the prefix computed anew, over there."""
    cannot: bool = False
    """The GPU lane was seen to be unable to go on with text that was begun elsewhere."""
    cpu_out: bool = False
    """The CPU lane cannot work: whatever the way back costs, staying costs more."""
    waits: bool = False
    """It only waits for the CPU lane; nothing was computed there yet, so the takeover costs only what its prefix costs
    more over there."""


class BreakerFacts(msgspec.Struct, frozen=True, tag="breaker", tag_field="kind"):
    """Everything `core.breaker.decide` may look at. Seconds."""

    state: Literal["closed", "open", "half-open"]
    fault: FaultClass | None
    """What was seen; None: a canary was answered."""
    fault_kind: str
    """The evidence in a word; of a canary, what was wrong with it."""
    counted: int
    """Faults within the window, this one included."""
    limit: int
    """So many open it; 0: no number of them does."""
    window_s: float
    trips: int
    """Openings in a row before."""
    cooldown_s: float
    cooldown_max_s: float
    held: bool = False
    input_blamed: bool = False
    """A request's input has ended workers before, and is to blame."""
    right: int = 0
    """Canaries answered right in a row, this one included; 0: this one was wrong, or it is a fault."""
    wanted: int = 1
    probation: bool = False
    """Its breaker closed only just now, and no request was completed there since."""


Facts = AdmissionFacts | SafepointFacts | PoolFacts | ReturnFacts | BreakerFacts


class Rejected(msgspec.Struct, frozen=True):
    """An alternative that was not taken, and the reason, in plain words."""

    action: str
    reason: str


class Decision(msgspec.Struct, frozen=True):
    """The outcome of a pure rule. `rule` is a stable id that docs/rules.md explains."""

    action: str
    rule: str
    facts: Facts
    rejected: tuple[Rejected, ...] = ()
    units: int | None = None
    """The answer's length where the action is `shrink`."""
    part: Part | None = None
    """The placement where the action is `offload`."""
    victim: str | None = None
    """The request that gives its place where the action is `preempt`."""
