"""Events and states for tests of the machine, made by hand rather than from the machine's own table."""

from typing import Any

import msgspec

from core import events as ev
from core.decision import AdmissionFacts, Decision, LaneFacts, SafepointFacts
from core.state import RequestState

LANE = LaneFacts(True, True, None, 0, 8, 4096)
ADMIT = Decision("run-gpu", "gpu-ready", AdmissionFacts(5, 64, "auto", False, LANE, LANE))
MOVE = Decision(
    "continue-cpu",
    "continue-identical",
    SafepointFacts("worker", "killed", "gpu", 2, "auto", "identical", True, 0, 2),
)

ADMITTED = ev.Admitted(
    owner="local",
    workload="generate",
    model="null",
    served_model="null",
    engine="null",
    contract="c",
    prompt_tokens=5,
    max_units=64,
    chunk_cap=8,
    failover="auto",
    priority="interactive",
    deadline_us=None,
    spec_digest="d",
    decision=ADMIT,
)


def sample(type_: str, *, lane: str = "gpu", units: int = 10) -> ev.Event:
    """One event of each type of request streams; progress goes to `units`."""
    samples: dict[str, ev.Event] = {
        "Admitted": ADMITTED,
        "Refused": ev.Refused("local", "generate", "null", "draining", 5, ADMIT),
        "Replanned": ev.Replanned("gpu-out"),
        "Started": ev.Started(lane, "r1", "sim-0", "null/1", 0),  # type: ignore[arg-type]
        "Checkpointed": ev.Checkpointed(units, units, "d"),
        "Preempted": ev.Preempted(MOVE),
        "FaultSeen": ev.FaultSeen("worker", "killed", lane, "r1", "sim-0"),  # type: ignore[arg-type]
        "Requeued": ev.Requeued(MOVE),
        "Rerouted": ev.Rerouted("gpu", units, "killed", MOVE),
        "Returned": ev.Returned("asked", units),
        "Completed": ev.Completed(units, units, "stop", "d"),
        "Failed": ev.Failed("killed", MOVE),
        "Resumed": ev.Resumed("checkpoint", lane),  # type: ignore[arg-type]
        "CancelAsked": ev.CancelAsked(),
        "Cancelled": ev.Cancelled(),
        "Expired": ev.Expired("deadline"),
        "LateWriteRejected": ev.LateWriteRejected("r1", "checkpoint", 4),
        "EffectDelivered": ev.EffectDelivered("k", "webhook"),
        "ContentErased": ev.ContentErased(),
        "SnapshotSaved": ev.SnapshotSaved(3000, 4, 69_000_000, "ab", "llamacpp/1", 47_000),
        "SnapshotRejected": ev.SnapshotRejected(4, "damaged"),
        "PrefixReady": ev.PrefixReady("snapshot", 3000, 36, 420_000),
    }
    return samples[type_]


def state_in(state: str, **changes: Any) -> RequestState:
    """A request in `state`, with what is always true there."""
    lanes = {"rerouted-cpu": "cpu", "refused": None}
    units = 4 if state in {"checkpointed", "completed"} else 0
    plain = RequestState(
        id="q1",
        owner="local",
        workload="generate",
        model="null",
        served_model="null",
        state=state,  # type: ignore[arg-type]
        version=3,
        created_us=1,
        updated_us=3,
        lane=lanes.get(state, "gpu"),  # type: ignore[arg-type]
        running=state == "running-gpu",
        units=units,
        visible_upto=units,
    )
    return msgspec.structs.replace(plain, **changes)
