"""What a runner's death says: evidence against worker, device or nobody, and whether its lane can go on."""

import signal
from typing import Final

import msgspec

from core import events as ev
from core.admission import HOST_MEMORY
from core.policy import Policy
from core.words import FaultClass
from runners import stops
from runners.children import Child, Exit, RunnerSpec
from store import breakers, claims, failover, hostlane, laneviews, roster
from store.journal import Tx
from store.writer import Unit

XID: Final = "xid-"
"""Before the number: a worker was ended for an Xid of the card it computed on."""

_ENDED: Final[dict[str | None, tuple[str, FaultClass]]] = {
    "hung": ("hung", "worker"),
    "cancel-ignored": ("hung", "worker"),
    "out-of-memory": ("oom-killed", "host"),
    "over-budget": ("over-budget", "host"),
    "recycled": ("recycled", "host"),
    "not-needed": ("not-needed", "host"),
    "service-stopped": ("service-stopped", "host"),
}
"""What it says of a worker that it was ended for that."""

_CODES: Final[dict[int | None, tuple[str, FaultClass]]] = {
    stops.NO_MEMORY: ("allocation-failed", "size"),
    stops.GARBAGE: ("garbage", "worker"),
    stops.OVER_BUDGET: ("over-budget", "host"),
    stops.SLOW: ("slow", "slow"),
}
"""What it says of a worker that it ended with that code."""

_KNOWN: Final = frozenset({"gate-held", "cancel-ignored"})
"""Ends whose cause is known, and is no other request's input that the worker held."""

_CRASHES: Final = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


def after_death(child: Child, spec: RunnerSpec, left: Exit, killed_for: str | None, policy: Policy) -> Unit[None]:
    """The unit of work that tells a runner's death, and what follows for its requests and its lane."""
    fault = fault_of(spec, child.id, left, killed_for)
    name, told = child.id, child.told
    load_failure = _load_failure(left, child.failed_starts, policy.lane_out_after)

    def unit(tx: Tx) -> None:
        exited = ev.RunnerExited(left.signal, left.code, killed_for, told)
        gone = tx.append(f"runner-{name}", exited, actor="supervisor")
        roster.strike(tx, name)
        _count(tx, fault, policy, cause=gone.seq)
        _too_large(tx, fault, policy, cause=gone.seq)
        failover.runner_lost(tx, name, policy, fault, actor="supervisor", cause=gone.seq)
        if spec.lane == "cpu" and fault.kind in hostlane.PASSED:
            failover.cpu_lane_out(tx, spec.model, HOST_MEMORY, policy, actor="supervisor")
        if load_failure and spec.lane == "gpu":
            failover.lane_lost(tx, spec.model, spec.device, load_failure, policy, actor="supervisor")
        elif load_failure:
            failover.cpu_lane_out(tx, spec.model, load_failure, policy, actor="supervisor")

    return unit


def _too_large(tx: Tx, fault: ev.FaultSeen, policy: Policy, *, cause: int) -> None:
    """Requests whose workers passed the budget again and again are too large for the lane; they stop honestly."""
    for request_id in claims.held_by(tx, fault.runner):
        if hostlane.too_large(tx, fault.kind, request_id):
            size = msgspec.structs.replace(fault, fault="size")
            failover.after_fault(tx, request_id, size, policy, actor="supervisor", cause=cause)


def _count(tx: Tx, fault: ev.FaultSeen, policy: Policy, *, cause: int) -> None:
    """Let the device's breaker hear of it.

    Who died before its model was up says more of the model than of the device, unless the device is being tried. That
    a device is lost has been counted when it was.
    """
    before = breakers.breaker_of(tx, fault.device)
    trying = before is not None and before.state == "half-open" and fault.kind in failover.BLAMING | {"killed"}
    told = fault.fault == "device" and laneviews.is_lost(tx, fault.device)
    speaks = fault.fault == "device" or (fault.fault == "worker" and (trying or roster.was_up(tx, fault.runner)))
    if told or not speaks:
        return
    held = [tx.state(request_id) for request_id in claims.held_by(tx, fault.runner)]
    blamed = fault.blames_input and any(state is not None and state.deaths for state in held)
    counted = ev.FaultCounted(fault.fault, fault.kind, fault.runner, fault.evidence)
    breakers.fault(tx, fault.device, counted, policy, actor="supervisor", cause=cause, input_blamed=blamed)


def fault_of(spec: RunnerSpec, runner: str, left: Exit, killed_for: str | None) -> ev.FaultSeen:
    """What a runner's death says, as evidence against worker, device or nobody."""
    kind, fault_class = _kind(left, killed_for)
    evidence: dict[str, str | int | float] = {}
    if left.signal is not None:
        evidence["signal"] = signal.Signals(left.signal).name
    if left.code is not None:
        evidence["code"] = left.code
    if killed_for is not None:
        evidence["ended_for"] = killed_for
    if kind == "xid" and killed_for is not None:
        evidence["xid"] = int(killed_for.removeprefix(XID))
    return ev.FaultSeen(
        fault_class,
        kind,
        spec.lane,
        runner,
        spec.device,
        blames_input=kind in failover.BLAMING and killed_for not in _KNOWN,
        evidence=evidence,
        ended_worker=fault_class == "worker",
    )


def _kind(left: Exit, killed_for: str | None) -> tuple[str, FaultClass]:
    if killed_for == "device-lost" or left.code == stops.DEVICE_LOST:
        return "device-lost", "device"
    if killed_for in _ENDED:
        return _ENDED[killed_for]
    if killed_for is not None and killed_for.startswith(XID):
        return "xid", "worker"
    if left.code in _CODES:
        return _CODES[left.code]
    if left.signal is not None:
        return ("crashed" if left.signal in _CRASHES else "killed"), "worker"
    return "exited", "worker"


def _load_failure(left: Exit, failed_starts: int, limit: int) -> str | None:
    """The reason to take the lane out, if its runner cannot be brought up."""
    if left.code == stops.NO_MEMORY:
        return "allocation-failed"
    if left.code == stops.NOT_ON_DEVICE:
        return "not-on-device"
    if failed_starts >= limit:
        return "load-failed"
    return None
