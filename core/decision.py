"""A decision: what a pure rule chose, over which facts, and what it rejected and why.

The facts are stored whole with the decision, so that the same function can be asked again years later
(`core.replay.decide_again`) and must answer the same.
"""

import msgspec

from core.words import Failover, FaultClass, Lane, PairClass


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


class AdmissionFacts(msgspec.Struct, frozen=True, tag="admission", tag_field="kind"):
    """Everything `core.admission.decide` may look at."""

    prompt_tokens: int
    max_units: int
    failover: Failover
    draining: bool
    gpu: LaneFacts
    cpu: LaneFacts


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
    effects_pending: bool = False
    """An effect was delivered, or a tool call shown, since the checkpoint."""


Facts = AdmissionFacts | SafepointFacts


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
