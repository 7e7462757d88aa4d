"""Short words for what has a code: marks in a history, how a request ended, what an event changed in it.

Whole sentences are in `core.explain`; here is what stands on a mark, in a cell or beside a name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.explain import mib, reason, rough_size
from core.state import DegradedMark, FailoverMark, FailureMark, RequestState

_MARKS: Final[Mapping[str, str]] = {
    "FaultSeen": "fault seen",
    "Rerouted": "moved to the CPU lane",
    "Returned": "moved back to the GPU lane",
    "Requeued": "back in its queue",
    "Failed": "stopped",
    "LateWriteRejected": "late write refused",
}
_FINISHES: Final[Mapping[str, str]] = {
    "stop": "the model ended its answer",
    "length": "the answer reached its longest",
}
_FIELDS: Final[Mapping[str, str]] = {
    "max_units": "tokens at most",
    "units": "tokens saved",
    "asked_units": "tokens asked for",
    "visible_upto": "characters shown",
    "output_epoch": "earlier outputs",
    "running": "worked on",
    "not_before_us": "not before",
    "deadline_us": "deadline",
    "waiting_since_us": "waiting since",
    "started_us": "first started",
    "settled_us": "ended at",
    "resumed_version": "resumed by event",
    "finish_reason": "how it ended",
    "ended_by": "ended because",
    "waits_for": "waits because",
    "fault_device": "device of the last fault",
    "deaths": "workers that died of it",
    "losses": "workers lost under it",
    "preemptions": "times it gave way",
    "failovers": "moves",
    "degraded": "served less well",
    "failure": "stopped because",
    "chunk_cap": "tokens between two saves at most",
}
_REASONS: Final = frozenset({"ended_by", "waits_for"})
_LANES: Final[Mapping[str, str]] = {"gpu": "the GPU lane", "cpu": "the CPU lane"}


_ACTIONS: Final[Mapping[str, str]] = {
    "run-gpu": "run on the GPU lane",
    "delay": "wait for the GPU lane",
    "offload": "run partly on the device, partly on the CPU",
    "shrink": "run on the GPU lane with a shorter answer",
    "reroute-cpu": "go to the CPU lane",
    "refuse": "refuse it",
    "continue-cpu": "go on at the CPU lane",
    "restart-cpu": "start again on the CPU lane",
    "requeue": "wait in its queue again",
    "fail": "stop as one that can be resumed",
    "cancel": "cancel it",
    "return-gpu": "go back to the GPU lane",
    "stay-cpu": "stay on the CPU lane",
    "wait": "wait",
    "preempt": "give way",
}

_TRIED: Final[Mapping[str, str]] = {
    "headroom_bytes": "{size} of the device had been kept free",
    "device_cap_bytes": "at most {size} of the device had been taken",
    "unseen_margin_bytes": "{size} had been kept back while the device could not be seen",
    "reading_max_age_s": "a reading had been trusted for {value:g} s",
    "blind_takes_work": "a device that cannot be read had taken work: {yes}",
    "gpu_queue_limit": "{value} new requests might have waited for the GPU lane",
    "cpu_queue_limit": "{value} new requests might have waited for the CPU lane",
    "shrink_floor": "an answer might have been shortened to {value:.0%}",
    "host_floor": "{value:.0%} of the host's memory had been left alone",
    "ignore_pressure": "memory pressure had never been high",
}


def question(policy: Mapping[str, Any]) -> str:
    """What is asked of the record, by the values that are tried; their names are those of the policy."""
    told = [
        _TRIED[name].format(value=value, size=rough_size(value) if isinstance(value, int) else "", yes=_yes(value))
        for name, value in policy.items()
    ]
    return f"What if {', and '.join(told)}?" if told else "Nothing else is tried: the decisions as they were made."


def _yes(value: object) -> str:
    return "yes" if value is True else "no"


def action_words(action: str) -> str:
    """What was decided that a request should do; an unknown action as it is."""
    return _ACTIONS.get(action, action)


def mark_words(type_: str) -> str:
    """What an event is, on a mark; of a type that is never marked the type itself."""
    return _MARKS.get(type_, type_)


def ending(state: RequestState) -> tuple[str, str]:
    """How a request ended, in words and as its code; both empty while it has not."""
    if state.finish_reason is not None:
        return _FINISHES[state.finish_reason], state.finish_reason
    return (reason(state.ended_by), state.ended_by) if state.ended_by else ("", "")


def field_words(name: str) -> str:
    """A field of a request's state, by its name, in words."""
    return _FIELDS.get(name, name.replace("_", " "))


def value_words(name: str, value: Any) -> tuple[str, str] | None:
    """A value of that field in words, with its code; None for one that is its own word."""
    if isinstance(value, DegradedMark | FailureMark):
        return reason(value.reason), f"{value.reason}, rule {value.rule}"
    if isinstance(value, tuple) and value and all(isinstance(one, FailoverMark) for one in value):
        told = "; ".join(f"event {one.version}: to {_LANES[one.to_lane]}" for one in value)
        return told, ", ".join(one.rule for one in value)
    if name in _REASONS and isinstance(value, str):
        return reason(value), value
    return (_FINISHES[value], value) if name == "finish_reason" and value in _FINISHES else None


_BASES: Final[Mapping[str, str]] = {
    "formula": "by formula",
    "learned": "as loads were seen to take it",
    "declared": "as the settings say",
    "unknown": "there is no formula for it: its file and a wide margin",
    "file": "by the size of its file",
}


def need_words(load: int, token: int, basis: str) -> str:
    """What a lane counts for a model's worker, in bytes, with what that rests on; empty where nothing is counted."""
    if not load and not token:
        return ""
    each = f", and {mib(token)} for each token" if token else ""
    return f"{mib(load)}{each}, {_BASES.get(basis, basis)}"


def memory_notes(worker: int, *, simulated: bool) -> tuple[str, ...]:
    """What the numbers of a model's memory are, in sentences; `worker`: bytes of a worker's programs on the host."""
    return (
        "A simulated device has no driver, so nothing is counted for one."
        if simulated
        else "What the driver of a card takes for each process is assumed, until a load was seen.",
        f"The CPU lane has the model in the host's memory, and {mib(worker)} for the programs of its worker.",
        "Formulas hold for one request at a time. What decisions count stands above, at each lane.",
        "A refusal names what of that is still missing.",
    )


def engine_words(taken: str, able: Sequence[str]) -> str:
    """The engine that a model is served by, and the others that could, where they are known."""
    others = [one for one in able if one != taken]
    return f"{taken}; {' and '.join(others)} could serve it too" if others else taken


def prediction_notes(driver: int, worker: int, *, simulated: bool) -> tuple[str, ...]:
    """What the columns of a prediction are; bytes of a card's driver for a process, and of a worker's programs."""
    share = "nothing on a simulated device" if simulated else f"assumed to be {mib(driver)} on a card"
    return (
        "device: the sum of what stands left of it; and host: what the same worker takes there beside it.",
        f"driver: what the driver takes for each process, {share}.",
        f"CPU lane: with nothing on a device, and {mib(worker)} for the programs of its worker.",
    )
