"""Before anything runs: where may this request run? Decided over facts, before memory runs out.

In this order; the first rule that applies decides:

1.  `draining`           the service is stopping: refuse, for a while.
2.  `too-long`           no lane could ever hold prompt and answer: refuse, for good.
3.  what keeps it off the GPU lane at all: `no-gpu`, `gpu-out`, `too-long-for-gpu`, `gpu-queue-full`: rules 10 to 13.
4.  `device-unseen`      the device cannot be read, or its size is unknown: nothing is promised there: rules 10 to 13.
5.  `gpu-ready`          memory is not accounted there, or the bytes are free and nobody waits for them: run there.
6.  `fits-shrunk`, `fits-shrunk-now`   a shorter answer, as short as the request allows, fits where the whole cannot,
                         or cannot now because of what others hold: shrink.
7.  `fits-soon`, `fits-after-eviction`   our own requests end, or an idle model makes room: delay.
8.  `fits-in-part`       with fewer layers on the device the model fits into what is free: offload.
9.  `never-fits`, `no-room`, `pressure`   more than the device could ever give, or than it can give now: rules 10 to 13.
10. `gpu-only`           the caller wants the GPU or nothing (`gpu-only`, `never`): refuse. What can never fit keeps its
                         rule, `never-fits`, here and where no CPU lane could ever take it: no time is named then.
11. the CPU lane can take it, by the name of what kept it off the GPU: reroute; with a shorter answer where the lane
                         gives no longer one and the request allows it. Else `answer-too-long-for-cpu` keeps it off.
12. `host-memory`        the CPU lane would exhaust the host, or takes nothing more since it nearly does: refuse.
13. `queue-full`, `no-lane`   there is no place, or nothing serves: refuse, for a while.

At a second look, just before the start, the same rules hold; an accepted request is never refused: it waits instead.
All bytes are integers: no rounding decides. More free memory never turns *run* into anything else.

Not here: what a model needs (footprints), what is free (the ledger), how long it will take.
"""

import msgspec

from core import ledger
from core.decision import AdmissionFacts, Decision, LaneFacts, Part, Rejected

RUN_GPU = "run-gpu"
DELAY = "delay"
OFFLOAD = "offload"
SHRINK = "shrink"
REROUTE = "reroute-cpu"
REFUSE = "refuse"

SHORTER_ON_CPU = "shortened-for-cpu"
"""The rule of an answer that is shorter because the CPU lane, where it was to begin, gives no longer one."""
HOST_MEMORY = "host-memory"
"""The rule, and the reason for which the CPU lane is out while it takes nothing more."""


def decide(facts: AdmissionFacts) -> Decision:
    """One of `run-gpu`, `delay`, `shrink`, `offload`, `reroute-cpu`, `refuse`, with what was rejected and why."""
    ruling = _rule(facts)
    rejected = tuple(Rejected(action, reason) for action, reason in ruling.rejected)
    return Decision(ruling.action, ruling.rule, facts, rejected, ruling.units, ruling.part)


class _Ruling(msgspec.Struct, frozen=True):
    action: str
    rule: str
    rejected: tuple[tuple[str, str], ...] = ()
    units: int | None = None
    part: Part | None = None


class _Obstacle(msgspec.Struct, frozen=True):
    """What keeps a request off a lane: a rule id, and the reason in words with the numbers."""

    rule: str
    why: str


def _rule(f: AdmissionFacts) -> _Ruling:
    if f.draining:
        stopping = "the service is stopping"
        return _Ruling(REFUSE, "draining", ((RUN_GPU, stopping), (REROUTE, stopping)))
    tokens = f.prompt_tokens + f.max_units
    holds = [lane.context for lane in (f.gpu, f.cpu) if lane.present]
    if holds and tokens > max(holds):
        gpu, cpu = _lane_obstacle(f.gpu, tokens, "gpu"), _lane_obstacle(f.cpu, tokens, "cpu")
        return _Ruling(REFUSE, "too-long", ((RUN_GPU, _why(gpu)), (REROUTE, _why(cpu))))
    obstacle = _lane_obstacle(f.gpu, tokens, "gpu", accepted=f.second_look) or _unseen(f)
    if obstacle is not None:
        return _elsewhere(f, obstacle, ((RUN_GPU, obstacle.why),))
    return _by_memory(f, tokens)


def _by_memory(f: AdmissionFacts, tokens: int) -> _Ruling:  # noqa: PLR0911 -- one return for each rule
    """Rules 5 to 9: the lane serves; is there memory?"""
    if f.device is None or f.need is None:
        return _Ruling(RUN_GPU, "gpu-ready", ((REROUTE, "the GPU lane can take it"),))
    free, most = ledger.available(f.device), ledger.capacity(f.device)
    assert free is not None
    assert most is not None
    need = f.need.bytes_for(tokens)
    unclaimed = max(0, free - f.awaited)
    if need <= unclaimed and not f.spilling:
        return _Ruling(RUN_GPU, "gpu-ready", ((REROUTE, "the GPU lane can take it"),))
    never = need + f.need.held > most
    short = (
        f"{need} bytes are needed, and the device can never give more than {most - f.need.held}"
        if never
        else _short(f, need, free)
    )
    rejected: tuple[tuple[str, str], ...] = ((RUN_GPU, short),)
    shorter = _shrunk(f, unclaimed)
    ours_return = not never and need <= free + ledger.returning(f.device)
    if shorter is not None and not (ours_return and not f.spilling):
        return _Ruling(SHRINK, "fits-shrunk" if never else "fits-shrunk-now", rejected, shorter)
    no_shrink = (SHRINK, _no_shrink(f))
    if ours_return and not f.spilling:
        back = f"{ledger.returning(f.device)} bytes come back when requests of ours end"
        return _Ruling(DELAY, "fits-soon", (*rejected, no_shrink, (REROUTE, back)))
    if not never and not f.spilling and need <= free + ledger.returning(f.device) + f.evictable and f.evictable:
        room = f"idle models can make room of {f.evictable} bytes"
        return _Ruling(DELAY, "fits-after-eviction", (*rejected, no_shrink, (REROUTE, room)))
    part = _part(f, tokens, unclaimed)
    if part is not None:
        return _Ruling(OFFLOAD, "fits-in-part", (*rejected, no_shrink, (DELAY, "it would not help soon")), part=part)
    rejected = (*rejected, no_shrink, (OFFLOAD, _no_part(f)))
    if never:
        return _elsewhere(f, _Obstacle("never-fits", short), (*rejected, (DELAY, "waiting would not help")))
    others = "nothing that will come back soon is enough"
    if need <= free:
        others = "pressure has not been low for long enough yet"
    rule = "no-room" if need > free else "pressure"
    return _elsewhere(f, _Obstacle(rule, short), (*rejected, (DELAY, others)))


def _short(f: AdmissionFacts, need: int, free: int) -> str:
    if need <= free and f.spilling:
        return f"{need} bytes are needed and {free} are free, but memory pressure was high a moment ago"
    if need <= free:
        return f"{need} bytes are needed and {free} are free, but requests that came earlier wait for {f.awaited}"
    assert f.device is not None
    others = ledger.foreign(f.device)
    held = "an unknown part is held" if others is None else f"{others} are held"
    mine, elsewhere = ledger.ours(f.device), f.device.elsewhere
    short = f"{need} bytes are needed, {free} are free ({need - free} short); {held} by other programs"
    shared = f", {elsewhere} of the same memory are for the CPU lane" if elsewhere else ""
    return f"{short}, {mine} are promised{shared}"


def hopeless(facts: AdmissionFacts) -> bool:
    """Whether waiting could never help: at its shortest the request needs more than the device could ever give."""
    if facts.device is None or facts.need is None:
        return False
    most = ledger.capacity(facts.device)
    answer = facts.least_units if facts.allow_shrink else facts.max_units
    least = facts.need.bytes_for(facts.prompt_tokens + min(answer, facts.max_units))
    parts = [part.load + least - facts.need.load for part in facts.need.parts]
    return most is not None and min([least, *parts]) + facts.need.held > most


def _shrunk(f: AdmissionFacts, room: int) -> int | None:
    """The longest answer that fits into `room` bytes, or None where shrinking is not allowed or not enough."""
    if not f.allow_shrink or f.need is None or f.need.token <= 0 or f.spilling or f.second_look:
        return None
    units = (room - f.need.load) // f.need.token - f.prompt_tokens
    return units if f.least_units <= units < f.max_units else None


def _part(f: AdmissionFacts, tokens: int, room: int) -> Part | None:
    """The placement with the most layers on the device that fits into `room` bytes together with the request."""
    if f.need is None or f.spilling:
        return None
    tokens_bytes = f.need.token * tokens
    return next((part for part in f.need.parts if part.load + tokens_bytes <= room), None)


def _no_part(f: AdmissionFacts) -> str:
    assert f.need is not None
    if f.need.load == 0:
        return "the model is loaded already"
    return "no part of it fits either" if f.need.parts else "its engine cannot work in parts"


def _no_shrink(f: AdmissionFacts) -> str:
    assert f.need is not None
    if f.second_look:
        return "it was accepted at this length"
    if not f.allow_shrink:
        return "the request does not allow it"
    if f.need.token == 0:
        return "a shorter answer would not need less memory"
    if f.spilling:
        return "under memory pressure nothing more is taken, however little"
    return f"an answer of less than {f.least_units} tokens would be left"


def _elsewhere(f: AdmissionFacts, obstacle: _Obstacle, rejected: tuple[tuple[str, str], ...]) -> _Ruling:
    """Rules 10 to 13: not on the GPU lane now. Where then?"""
    if f.failover in {"gpu-only", "never"}:
        forbidden = (*rejected, (REROUTE, f"failover is `{f.failover}`"))
        rule = "never-fits" if obstacle.rule == "never-fits" else "gpu-only"
        return _Ruling(DELAY if f.second_look else REFUSE, rule, forbidden)
    units = _cpu_units(f)
    cpu = _cpu_obstacle(f, units)
    if cpu is None:
        return _Ruling(REROUTE, obstacle.rule, rejected, units if units < f.max_units else None)
    both = (*rejected, (REROUTE, cpu.why))
    if f.second_look:
        return _Ruling(DELAY, obstacle.rule, both)
    if cpu.rule == HOST_MEMORY:
        return _Ruling(REFUSE, HOST_MEMORY, both)
    if obstacle.rule == "never-fits" and cpu.rule in {"no-cpu", "too-long-for-cpu", "answer-too-long-for-cpu"}:
        return _Ruling(REFUSE, "never-fits", both)
    full = "gpu-queue-full" in obstacle.rule or "cpu-queue-full" in cpu.rule
    return _Ruling(REFUSE, "queue-full" if full else "no-lane", both)


def capped(facts: AdmissionFacts) -> bool:
    """Whether the CPU lane gives no answer as long as the request asks for, nor one as short as it allows."""
    longest = facts.cpu.longest
    least = facts.least_units if facts.allow_shrink else facts.max_units
    return 0 < longest < least and not facts.second_look


def _cpu_units(f: AdmissionFacts) -> int:
    """The answer's length on the CPU lane: the lane's longest for new requests that allow it; nothing is cut later."""
    shorter = f.allow_shrink and not f.second_look and f.least_units <= f.cpu.longest < f.max_units
    return f.cpu.longest if shorter else f.max_units


def _cpu_obstacle(f: AdmissionFacts, units: int) -> _Obstacle | None:
    """What keeps a request with an answer of so many tokens off the CPU lane."""
    if f.cpu.present and not f.cpu.serving and f.cpu.out_reason == HOST_MEMORY:
        return _host_obstacle(f) or _Obstacle(HOST_MEMORY, _held_back(f))
    lane = _lane_obstacle(f.cpu, f.prompt_tokens + units, "cpu", accepted=f.second_look)
    if lane is not None:
        return lane
    if capped(f):
        why = f"an answer of {f.max_units} tokens is asked for, and the CPU lane gives {f.cpu.longest} at most"
        short = f"less than {f.least_units} would be left" if f.allow_shrink else "the request allows no shorter one"
        return _Obstacle("answer-too-long-for-cpu", f"{why}; {short}")
    return _host_obstacle(f)


def _held_back(f: AdmissionFacts) -> str:
    """Why the CPU lane takes nothing more, with the numbers."""
    left = None if f.host is None else f.host.left()
    numbers = "" if left is None else f": {left} bytes of host memory may still be used ({_kept(f)})"
    return f"the CPU lane holds nearly all the memory that it may use, and takes nothing more for now{numbers}"


def _lane_obstacle(lane: LaneFacts, tokens: int, name: str, *, accepted: bool = False) -> _Obstacle | None:
    """What keeps a request of so many tokens off a lane; queues are bounded for new requests only."""
    if not lane.present:
        return _Obstacle(f"no-{name}", f"there is no {name.upper()} lane here")
    if not lane.serving:
        return _Obstacle(f"{name}-out", f"the {name.upper()} lane is out: {lane.out_reason or 'unknown reason'}")
    if tokens > lane.context:
        why = f"{tokens} tokens are asked for, and the lane holds {lane.context}"
        return _Obstacle(f"too-long-for-{name}", why)
    if lane.waiting >= lane.limit and not accepted:
        why = f"{lane.waiting} requests wait there already; the limit is {lane.limit}"
        return _Obstacle(f"{name}-queue-full", why)
    return None


def _unseen(f: AdmissionFacts) -> _Obstacle | None:
    if f.device is None or f.need is None or ledger.available(f.device) is not None:
        return None
    return _Obstacle("device-unseen", f"the device's memory cannot be read ({f.device.state}), so nothing is promised")


def _host_obstacle(f: AdmissionFacts) -> _Obstacle | None:
    left = None if f.host is None else f.host.left()
    if f.host is None or left is None or f.host.need <= left:
        return None
    why = f"{f.host.need} bytes of host memory are needed, and {left} may be used ({_kept(f)})"
    return _Obstacle(HOST_MEMORY, why)


def _kept(f: AdmissionFacts) -> str:
    """What of the host's memory is not to be used, and why."""
    assert f.host is not None
    told = [] if f.host.available is None else [f"{f.host.available} are available"]
    told += [f"{f.host.mapped} of them are mapped and needed"] if f.host.mapped else []
    told += [f"{f.host.floor} are kept back"]
    told += [f"{f.host.promised} are promised on the GPU, which uses the same memory"] if f.host.promised else []
    told += [f"{f.host.pending} are for models on their way"] if f.host.pending else []
    told += [f"the CPU lane holds {f.host.held} of its budget of {f.host.budget}"] if f.host.budget else []
    return ", ".join(told)


def _why(obstacle: _Obstacle | None) -> str:
    return obstacle.why if obstacle else ""
