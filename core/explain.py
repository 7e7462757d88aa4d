"""One voice: an event, and what caused it, as one plain sentence. Used by the API, the pages and the logs alike.

Numbers that a reader needs are in the sentence; ids and raw facts are in the event.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from core import events as ev
from core.decision import Decision, PoolFacts, ReturnFacts
from core.words import Lane, PairClass

_LANES: Final[Mapping[str, str]] = {"gpu": "the GPU lane", "cpu": "the CPU lane"}

REASONS: Final[Mapping[str, str]] = {
    "killed": "the worker was killed",
    "crashed": "the worker crashed",
    "exited": "the worker exited",
    "oom-killed": "the kernel ended the worker for want of memory",
    "hung": "the worker stopped making progress",
    "lease-expired": "the worker did not renew its lease",
    "service-stopped": "the service stopped",
    "device-lost": "the device was lost",
    "model-changed": "the model was replaced",
    "engine-changed": "another engine serves the model now",
    "gate-held": "the worker held the store's writer gate and did not move",
    "cancel-ignored": "the worker did not stop when asked",
    "engine-failed": "the engine failed",
    "load-failed": "the model could not be loaded",
    "xid": "the driver reported that a program failed on the card",
    "not-on-device": "the model took no memory on the device, so its engine computes elsewhere",
    "allocation-failed": "the device refused an allocation",
    "no-device": "there is no accelerator",
    "no-gpu": "there is no GPU lane here",
    "gpu-out": "the GPU lane is out",
    "never-fits": "it needs more memory than the device can ever give",
    "no-room": "the device's memory is taken by others",
    "pressure": "the device's memory is under pressure",
    "device-unseen": "the device's memory cannot be read",
    "fits-in-part": "only some of its layers fit on the device; the rest works on the CPU",
    "fits-soon": "its memory comes back when other requests end",
    "fits-after-eviction": "an idle model makes room for it first",
    "fits-shrunk": "only a shorter answer can ever fit into the device's memory",
    "fits-shrunk-now": "a shorter answer fits into what is free now",
    "shortened-for-cpu": "it began on the CPU lane, which gives no longer answer",
    "host-memory": "the CPU lane would exhaust the host's memory",
    "over-budget": "the worker passed the memory that the CPU lane may hold",
    "recycled": "it held far more memory at rest than after loading",
    "not-needed": "nobody needs it now",
    "gpu-queue-full": "the GPU queue is full",
    "cpu-lane-full": "the CPU lane has no room for it now",
    "too-long-for-gpu": "the GPU lane cannot hold a request of this length",
    "draining": "the service is stopping",
    "queue-full": "the queues are full",
    "no-lane": "no lane serves now",
    "fallback-model": "no lane could take the model that was asked for, and a smaller one was allowed",
    "too-long": "prompt and answer together are longer than any lane can hold",
    "gpu-only": "only the GPU was wanted, and it cannot take the request now",
    "asked": "it was asked for",
    "deadline": "its deadline passed",
    "ttl": "nobody resumed it in time",
    "gpu-is-back": "the GPU lane serves again",
    "returned": "the GPU lane serves again",
    "output-in-doubt": "what was computed last looks like nonsense",
    "restore-failed": "a saved state did not come back as it was",
    "cannot-continue": "the server there cannot go on with an answer that was begun elsewhere",
    "engine-refused": "the engine refuses what is asked for",
    "damaged": "its bytes are not those that were saved",
    "missing": "its file is gone",
    "other-kind": "it is of another engine, model or context",
    "not-restored": "the engine did not restore what it should",
    "gpu-still-out": "the GPU lane does not serve",
    "gpu-under-pressure": "the device's memory is under pressure",
    "gpu-busy": "others wait for the GPU lane already",
    "pair-not-alike": "the two lanes are not proved to answer alike",
    "gpu-cannot-continue": "the GPU lane cannot go on with text that was begun elsewhere",
    "too-soon": "it was moved only just now",
    "rates-unknown": "how fast the lanes are is not known yet",
    "not-worth-it": "going back would save too little",
    "return-off": "work stays on the lane it was moved to",
    "breaker-open": "its device has failed too often just now",
    "garbage": "it answered a canary wrongly",
    "canary-wrong": "it answered a canary wrongly",
    "canary-slow": "it answered a canary rightly, and far slower than it did",
    "host-resumed": "the machine has slept",
    "device-back": "the device answers again",
    "slow": "it computes far slower than it did",
}

_RULES: Final[Mapping[str, str]] = {
    "cancel-wins": "a cancel had been asked for, and that wins",
    "model-changed": "the model it was accepted for is not the one that is there now",
    "poison-limit": "the same input ended several workers, so it is not tried again",
    "no-progress": "one worker after the other was gone under it without a new word, so it is not tried for ever",
    "cpu-worker-lost": "it goes on from its checkpoint in the CPU queue",
    "service-restarted": "no engine was to blame, so it keeps its lane and its checkpoint",
    "stay-on-gpu": "the CPU lane was ruled out by the request, and the GPU can take it again",
    "failover-never": "the request forbids a takeover",
    "gpu-only-device-lost": "the request forbids the CPU lane, and the device is out",
    "no-cpu-lane": "no CPU lane serves this model",
    "restart-nothing-shown": "nothing had been shown, so the CPU lane starts from the prompt",
    "boundary-passed": "the request allows a move only before its first word",
    "effects-pending": "something outside has happened since the checkpoint and must not happen twice",
    "pair-none": "the CPU path is not proved to answer alike",
    "pair-below-demand": "the request demands identical answers, and the CPU path is only faithful",
    "continue-identical": "the CPU path answers identically, so it goes on after the last shown word",
    "continue-faithful": "the CPU path answers faithfully, so it goes on after the last shown word",
    "cpu-lane-full": "as many as may wait for the CPU lane wait there already, so it keeps its place",
    "too-big-for-lane": "the same size would be refused on the same lane again, and no other lane may take it",
    "resumed": "it was resumed there",
    "asked-first": "a canary tells whether the lane is sound, and then it goes on from its checkpoint",
    "engine-changed": "its text was shown by an engine that is not proved to answer like the one that is there now",
    "engine-refused": "it would refuse it again, so only another request can help",
    "cannot-continue": "the server there cannot go on with text that was begun elsewhere, and no other lane may",
    "blocks-free": "there is place in the shared cache",
    "blocks-on-their-way": "place in the shared cache is on its way",
    "last-in-turn": "nobody after it in turn could be asked for a place in the shared cache",
    "pool-full": "the shared cache was full, and it was the last in turn",
    "gpu-is-back": "the GPU lane takes it again",
    "gpu-ready": "the GPU lane serves and has room",
    "device-fault": "the device itself has failed",
    "worker-faults": "its workers failed too often within a short time",
    "still-faulty": "it failed again while it was tried",
    "relapse": "it failed again with the first request after that",
    "canaries-right": "its canaries were answered rightly",
}


PAIRS: Final[Mapping[PairClass, str]] = {
    "identical": "Work that is moved between them goes on after the last shown word, and the answer is the one it "
    "would have been.",
    "faithful": "Work that is moved between them goes on after the last shown word; from there on its wording may "
    "differ.",
    "none": "Text that was shown by one cannot be carried on by the other: such a request stops as a resumable error, "
    "and one that has shown nothing yet starts again from its prompt.",
}
"""What the class of a pair of paths means for a request."""

_TELL_WHY: Final = (ev.FaultSeen, ev.Rerouted, ev.Failed, ev.Returned)
"""Events whose own sentence names the reason already."""


def reason(code: str) -> str:
    """A reason code in words; unknown codes are shown as they are."""
    if code.startswith("xid-"):
        return f"the driver reported Xid {code.removeprefix('xid-')} for the card"
    return REASONS.get(code, code.replace("-", " "))


def rule_words(rule: str) -> str:
    """A rule id in words, as one clause."""
    return _RULES.get(rule) or reason(rule)


def explain_decision(decision: Decision) -> str:
    """Why this was chosen, in one clause."""
    return rule_words(decision.rule)


def explain(event: ev.Event, cause: ev.Event | None = None) -> str:
    """The event as one sentence, with its cause where there is one."""
    sentence = _SENTENCES[type(event)](event)
    if isinstance(cause, ev.FaultSeen) and not isinstance(event, _TELL_WHY):
        sentence = f"Because {reason(cause.kind)} on {_LANES[cause.lane]}: {sentence[0].lower()}{sentence[1:]}"
    return sentence


def moved(from_lane: Lane | None, to_lane: Lane, why: str, rule: str) -> str:
    """A failover as one sentence, from its mark alone."""
    start = f"Moved from {_LANES[from_lane]}" if from_lane else "Sent"
    clause = _RULES.get(rule)
    return f"{start} to {_LANES[to_lane]} because {reason(why)}" + (f"; {clause}." if clause else ".")


def failure(why: str, rule: str, units: int) -> str:
    """What a resumable error means to the caller, with the choices."""
    kept = f"{units} tokens are kept" if units else "nothing was produced yet"
    return (
        f"Stopped because {reason(why)}; {_RULES.get(rule, reason(rule))}. {kept[0].upper()}{kept[1:]}. "
        "Resume it from its checkpoint, resume it from the start, or cancel it."
    )


def _admitted(event: ev.Admitted) -> str:
    size = f"{event.prompt_tokens} prompt tokens, up to {event.max_units} to come"
    if event.instead is not None:
        why = explain_decision(event.instead)
        return f"Accepted for {event.served_model} instead of {event.model}, because {why} ({size})."
    return f"Accepted for {event.served_model} ({size})."


def _refused(event: ev.Refused) -> str:
    again = f" Try again in {event.retry_after_s} s." if event.retry_after_s else " Trying again cannot help."
    return f"Refused because {reason(event.reason)}.{again}"


def _started(event: ev.Started) -> str:
    resume = f"goes on after token {event.resume_from}" if event.resume_from else "starts from the prompt"
    return f"Runner {event.runner} on {_LANES[event.lane]} took it up and {resume}."


def _fault(event: ev.FaultSeen) -> str:
    told = ", ".join(f"{key} {value}" for key, value in event.evidence.items())
    return f"Fault seen on {_LANES[event.lane]}: {reason(event.kind)}" + (f" ({told})." if told else ".")


def _rerouted(event: ev.Rerouted) -> str:
    return moved(event.from_lane, "cpu", event.reason, event.decision.rule)


def _resumed(event: ev.Resumed) -> str:
    origin = "from its checkpoint" if event.origin == "checkpoint" else "from the start, as a new output"
    return f"Resumed {origin} on {_LANES[event.lane]}."


def _exited(event: ev.RunnerExited) -> str:
    how = " by itself"
    if event.signal is not None:
        how = f" by signal {event.signal}"
    elif event.code is not None:
        how = f" with code {event.code}"
    elif event.killed_for:
        how = ""
    why = f"; it was ended because {reason(event.killed_for)}" if event.killed_for else ""
    return f"Runner ended{how}{why}."


def mib(size: int) -> str:
    """Bytes as people read them, in MiB with one decimal."""
    return f"{size / (1 << 20):,.1f} MiB"


_BYTES: Final = re.compile(r"(?<![\w.,-])\d+(?: bytes)?(?![.,]?\d|\w)(?! (?:tokens?|requests?|layers?|s|ms)\b)")
_SAID: Final = re.compile(r"\b\d+ bytes\b")


def sizes(sentence: str) -> str:
    """A sentence whose numbers are bytes, for people: in MiB, or exactly where two of them would read alike."""
    if not _SAID.search(sentence):
        return sentence
    numbers = {int(found.group().split()[0]) for found in _BYTES.finditer(sentence)}
    rough = [rough_size(number) for number in numbers]

    def told(found: re.Match[str]) -> str:
        number = int(found.group().split()[0])
        text = rough_size(number)
        return f"{text} ({number:,} bytes)" if rough.count(text) > 1 else text

    return _BYTES.sub(told, sentence)


def rough_size(count: int) -> str:
    """Bytes with one decimal, in the unit that leaves a digit before it."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):,.1f} {unit}"
    return f"{count} B"


def _evicted(event: ev.Evicted) -> str:
    back = f"; {mib(event.not_reclaimed)} were not seen to come back" if event.not_reclaimed else ""
    return f"Model {event.model} was unloaded, {mib(event.bytes_promised)} are free to promise again{back}."


def _replanned(event: ev.Replanned) -> str:
    decision = event.decision
    if decision is not None and isinstance(decision.facts, ReturnFacts):
        why = decision.rejected[0].reason if decision.rejected else reason(event.reason)
        return f"Still on the CPU lane because {why}."
    if event.lane_out and decision is not None:
        clause = explain_decision(decision)
        why = reason(event.reason) + ("" if clause == reason(event.reason) else f"; {clause}")
        return f"Waits in its place for the GPU lane because {why}."
    return f"Looked at again and left in place: {reason(event.reason)}."


def _requeued(event: ev.Requeued) -> str:
    clause = explain_decision(event.decision)
    if event.waits_for is None or reason(event.waits_for) == clause:
        return f"Back in the queue of its lane; {clause}."
    return f"Back in the queue of its lane, where it waits because {reason(event.waits_for)}; {clause}."


def _returned(event: ev.Returned) -> str:
    gain = f": {event.decision.rejected[0].reason}" if event.decision and event.decision.rejected else ""
    return f"Moved back to the GPU lane because {reason(event.reason)}{gain}."


def _preempted(event: ev.Preempted) -> str:
    facts = event.decision.facts
    asked = f", so that {facts.asks} can go on" if isinstance(facts, PoolFacts) else ""
    return f"Gave way to another request: {explain_decision(event.decision)}{asked}."


def _saved(event: ev.SnapshotSaved) -> str:
    return (
        f"Saved the engine's state after {event.tokens} tokens ({mib(event.bytes)}) in {event.took_us / 1e3:.0f} ms;"
        f" a takeover begins with it after token {event.units}."
    )


def _ready(event: ev.PrefixReady) -> str:
    took = f"{event.took_us / 1e6:.2f} s"
    if event.way == "snapshot":
        how = f"{event.restored} tokens came out of a saved state, {event.computed} were computed again, in {took}"
    elif event.way == "text":
        how = f"the text so far was sent on, in {took}"
    else:
        how = f"{event.computed} tokens were computed again, in {took}"
    why = f" ({reason(event.note)})" if event.note else ""
    return f"Ready to go on: {how}{why}."


def _proved(event: ev.EquivalenceProved) -> str:
    share = event.agreed / event.tokens if event.tokens else 0.0
    return (
        f"Asked the same {event.prompts} prompts, {event.source} and {event.target} gave {event.free_same} equal"
        f" answers; {share:.1%} of {event.tokens} next tokens agree, so the pair is {event.pair}."
    )


def _lost(event: ev.DeviceLost) -> str:
    return f"A device is out ({reason(event.reason)}); what it computed since then is not trusted."


def _opened(event: ev.BreakerOpened) -> str:
    until = "until it was found anew" if event.held else f"for {event.cooldown_us / 1e6:g} s"
    clause = explain_decision(event.decision)
    why = reason(event.reason) + ("" if clause == reason(event.reason) else f"; {clause}")
    return f"Nothing begins on the device {until}, because {why}."


def _canary(event: ev.CanaryAnswered) -> str:
    if event.verdict in {"wrong", "slow"}:
        how = "wrongly" if event.verdict == "wrong" else "rightly, and too slowly,"
        return f"A canary was answered {how} in {event.took_us / 1e6:.2f} s: {event.note}."
    kept = ", and its answer is what later ones are compared with" if event.verdict == "recorded" else " rightly"
    return f"A canary was answered in {event.took_us / 1e6:.2f} s{kept}."


_SENTENCES: Final[Mapping[type[ev.Event], Callable[..., str]]] = {
    ev.Admitted: _admitted,
    ev.Refused: _refused,
    ev.Replanned: _replanned,
    ev.Started: _started,
    ev.Checkpointed: lambda e: f"Token {e.units} is durable; {e.visible_upto} characters may be shown.",
    ev.Preempted: _preempted,
    ev.FaultSeen: _fault,
    ev.Requeued: _requeued,
    ev.Rerouted: _rerouted,
    ev.Returned: _returned,
    ev.Completed: lambda e: f"Completed with {e.units} tokens.",
    ev.Failed: lambda e: f"Stopped as a resumable error because {reason(e.reason)}; {explain_decision(e.decision)}.",
    ev.Resumed: _resumed,
    ev.CancelAsked: lambda e: f"A cancel was requested: {reason(e.reason)}.",
    ev.Cancelled: lambda e: f"Cancelled because {reason(e.reason)}.",
    ev.Expired: lambda e: f"Cancelled because {reason(e.reason)}.",
    ev.LateWriteRejected: lambda e: f"A late {e.what} by former owner {e.runner} was refused; nothing of it counts.",
    ev.EffectDelivered: lambda e: f"Effect {e.effect} was delivered under key {e.key}.",
    ev.ContentErased: lambda _e: "Prompt and output were erased.",
    ev.SnapshotSaved: _saved,
    ev.SnapshotRejected: lambda e: f"The saved state after token {e.units} is not used: {reason(e.reason)}.",
    ev.PrefixReady: _ready,
    ev.EquivalenceProved: _proved,
    ev.DeviceFound: lambda e: f"Found {'simulated ' if e.simulated else ''}device {e.name}.",
    ev.DeviceLost: _lost,
    ev.DeviceBack: lambda e: f"A device is back ({reason(e.reason)}).",
    ev.FaultCounted: lambda e: f"A fault is counted against the device: {reason(e.kind)}.",
    ev.BreakerOpened: _opened,
    ev.BreakerHalfOpened: lambda e: f"The device is tried with canaries: {reason(e.reason)}.",
    ev.CanaryAnswered: _canary,
    ev.BreakerClosed: lambda e: (
        f"The device takes work again: {explain_decision(e.decision) if e.decision else reason(e.reason)}."
    ),
    ev.HostResumed: lambda e: f"The machine slept for {e.slept_us / 1e6:.0f} s.",
    ev.LaneOut: lambda e: f"{_LANES[e.lane][0].upper()}{_LANES[e.lane][1:]} takes no new work: {reason(e.reason)}.",
    ev.LaneIn: lambda e: f"{_LANES[e.lane][0].upper()}{_LANES[e.lane][1:]} takes work.",
    ev.RunnerStarted: lambda e: f"Runner for {_LANES[e.lane]} started with {e.model} on {e.engine} (pid {e.pid}).",
    ev.RunnerLoaded: lambda e: f"Model loaded in {e.took_us / 1e6:.1f} s.",
    ev.LoadPlanned: lambda e: f"Model {e.model} is to be loaded: {e.why}.",
    ev.EvictAsked: lambda e: f"Model {e.model} is to make room: {e.why}.",
    ev.Evicted: _evicted,
    ev.FootprintLearned: lambda e: (
        f"Model {e.model} was seen to take {mib(e.seen)} where the formula said {mib(e.formula)}; "
        f"from now on {mib(e.value)} count."
    ),
    ev.LeakSuspected: lambda e: (
        f"Each of the last {len(e.baselines)} loads of {e.model} found more of the device taken by nobody of ours, "
        f"from {mib(e.baselines[0])} to {mib(e.baselines[-1])}: memory may leak with each load."
    ),
    ev.PressureRose: lambda e: (
        f"Memory is short, {mib(e.used)} of {mib(e.total)} are in use: new work spills to the CPU lane."
    ),
    ev.PressureFell: lambda e: f"Memory is free again, {mib(e.used)} of {mib(e.total)} are in use: new work returns.",
    ev.RunnerExited: _exited,
    ev.ServiceStarted: lambda e: f"Service {e.version} started (pid {e.pid}, SQLite {e.sqlite}).",
    ev.DrainAsked: lambda e: f"Everything is to be brought to safety, and nothing new is accepted: {e.reason}.",
    ev.ServiceStopped: lambda e: f"Service stopped: {reason(e.reason)}.",
}
