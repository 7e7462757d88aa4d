"""A request's page: how it stands now, or as it stood after event N, from its history alone."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from core import events as ev
from core.errors import NotFound
from core.events import Recorded
from core.explain import explain_decision, failure, mib
from core.state import RequestState
from core.telling import ending
from core.words import ACTIVE
from store.contents import Spec
from store.reads import Reader
from store.waits import Outlook
from web.dashboard.moves import Turn, turns
from web.dashboard.outputs import Output, outputs
from web.dashboard.pictures import Picture, pictures
from web.dashboard.spans import Course, course
from web.dashboard.timeline import Group, timeline
from web.dashboard.travel import Travel, travel
from web.dashboard.wording import (
    NONE,
    Chip,
    Moment,
    degraded_sentence,
    duration,
    failed_over,
    lane_name,
    model_words,
    moment,
    short,
    shortened,
    spread,
    state_chip,
)
from web.views import eta_of, request_view


class Step(msgspec.Struct, frozen=True):
    """A state passed, and how long the request stayed in it."""

    chip: Chip
    lane: str
    stayed: str
    version: int


class Fact(msgspec.Struct, frozen=True):
    """A name and a value; `note` is a longer form for the tooltip."""

    name: str
    value: str
    note: str = ""


class Said(msgspec.Struct, frozen=True):
    """A part of the prompt, by whom."""

    role: str
    content: str


class Stands(msgspec.Struct, frozen=True):
    """How one that nobody works on stands: it waits, or is stuck; `begins` and `ends` are ranges with their `basis`."""

    chip: Chip
    place: str
    why: str
    begins: str
    ends: str
    basis: str


class Actions(msgspec.Struct, frozen=True):
    """What may be done now. What may not is disabled, and `why` says so."""

    cancel: bool
    resume: bool
    why: str
    units: int


class RequestPage(msgspec.Struct, frozen=True):
    """The page. `travel` is None on the live page; `degraded` and `error` are sentences or empty."""

    id: str
    short: str
    title: str
    chip: Chip
    state: str
    live: bool
    version: int
    epoch: int
    created: Moment
    done: int
    of: int
    unit: str
    steps: tuple[Step, ...]
    times: tuple[Fact, ...]
    facts: tuple[Fact, ...]
    degraded: str
    degraded_title: str
    expects: str
    """When one that is served less well may end."""
    basis: str
    takeover: str
    stands: Stands | None
    error: str
    erased: bool
    output: Output
    older: tuple[Output, ...]
    prompt: tuple[Said, ...]
    turns: tuple[Turn, ...]
    pictures: tuple[Picture, ...]
    groups: tuple[Group, ...]
    actions: Actions
    travel: Travel | None

    @property
    def turns_title(self) -> str:
        """What the turns are about."""
        return "Failovers" if any(turn.moved for turn in self.turns) else "Faults and what followed"


async def request_page(reader: Reader, request_id: str, now_us: int, at: int | None = None) -> RequestPage:
    """The page of a request, frozen after event `at` if given (the nearest there is). Raises `NotFound`."""
    history = await reader.history(request_id)
    if not history or not isinstance(history[0].event, ev.REQUEST_EVENTS):
        raise NotFound(f"there is no request {request_id}; see GET /api/requests for those there are")
    whole = len(history)
    at = None if at is None else min(max(at, 1), whole)
    seen = history if at is None else history[:at]
    if at is not None:
        now_us = seen[-1].at_us
    causes = await reader.records([r.cause_seq for r in seen if r.cause_seq is not None])
    way = course(seen, now_us)
    state = way.states[-1]
    erased = (await reader.state(request_id)).erased
    runs = await outputs(reader, seen, way.states, at)
    looked = {} if at is not None else await reader.outlooks([state], now_us)
    view = request_view(state, text=runs[-1].text, now_us=now_us, outlook=_outlook(state, seen, looked))
    return RequestPage(
        id=state.id,
        short=short(state.id),
        title=model_words(state),
        chip=state_chip(state.state, state.failovers),
        state=state.state,
        live=at is None,
        version=state.version,
        epoch=state.output_epoch,
        created=moment(state.created_us, now_us),
        done=view["progress"]["done"],
        of=view["progress"]["of"],
        unit=view["progress"]["unit"],
        steps=tuple(_step(way, index) for index in range(len(way.passed))),
        times=_times(way, now_us),
        facts=_facts(state, seen),
        degraded=degraded_sentence(state, _why_another(seen)),
        degraded_title=_degraded_title(state),
        **_expects(view if at is None else {}),
        stands=_stands(view["queue"]) if at is None else None,
        error=_error(state, view),
        erased=erased,
        output=runs[-1],
        older=tuple(runs[:-1]),
        prompt=_prompt(await reader.spec(request_id)),
        turns=turns(seen, causes, now_us),
        pictures=pictures(seen, now_us),
        groups=timeline(seen, causes, now_us),
        actions=_actions(state, frozen=at is not None),
        travel=None if at is None else travel(history, way.states, at),
    )


def _step(way: Course, index: int) -> Step:
    stay = way.passed[index]
    last = index == len(way.passed) - 1
    settled = way.states[-1].settled_us is not None
    return Step(
        chip=state_chip(stay.state, way.states[stay.version - 1].failovers),
        lane=lane_name(stay.lane),
        stayed="" if last and settled else duration(stay.for_us / 1e6),
        version=stay.version,
    )


def _times(way: Course, now_us: int) -> tuple[Fact, ...]:
    state = way.states[-1]
    total = ((state.settled_us or now_us) - state.created_us) / 1e6
    rate = way.rate
    return (
        Fact("Waited", duration(way.wait_us / 1e6), "in a queue, over all attempts"),
        Fact("Ran", duration(way.run_us / 1e6), "owned by a runner, over all attempts"),
        Fact("Total", duration(total), "since it was accepted"),
        Fact("Tokens/s", NONE if rate is None else f"{rate:.1f}", "units over the time it ran"),
    )


def _facts(state: RequestState, history: Sequence[Recorded]) -> tuple[Fact, ...]:
    first = history[0].event
    engine = next((r.event.engine for r in reversed(history) if isinstance(r.event, ev.Started)), state.engine)
    if state.state == "refused":
        return (Fact("Model", model_words(state)), Fact("Refused", *_ending(state)))
    less = shortened(state)
    return (
        Fact("Lane", lane_name(state.lane)),
        Fact("Model", model_words(state)),
        *([Fact("Shortened", less)] if less else ()),
        Fact("Engine", engine or NONE),
        Fact("Device", state.device or NONE),
        Fact("Runner", state.runner or NONE),
        Fact("Attempt", str(state.attempt) if state.attempt else "none yet"),
        Fact("Failover", state.failover if isinstance(first, ev.Admitted) else NONE),
        Fact("Prompt", f"{state.prompt_tokens} tokens"),
        Fact("Saved state", NONE if state.settled_us else _saved(history), "what a takeover would begin with"),
        Fact("How it ended", *_ending(state)),
    )


def _ending(state: RequestState) -> tuple[str, str]:
    words, code = ending(state)
    return words or NONE, code


def _why_another(history: Sequence[Recorded]) -> str:
    """Why the model that was asked for does not answer, in a clause; empty where it does."""
    first = history[0].event
    return explain_decision(first.instead) if isinstance(first, ev.Admitted) and first.instead else ""


def _saved(history: Sequence[Recorded]) -> str:
    """The newest saved state, by the record."""
    for record in reversed(history):
        if isinstance(record.event, ev.SnapshotSaved):
            return f"after token {record.event.units}, {mib(record.event.bytes)}"
        if isinstance(record.event, ev.SnapshotRejected):
            break
    return NONE


def _outlook(state: RequestState, history: Sequence[Recorded], looked: Mapping[str, Outlook]) -> Outlook | None:
    found, own = looked.get(state.id), eta_of(state, history)
    return found if found is None or own is None else msgspec.structs.replace(found, eta=own, takeover_s=None)


def _degraded_title(state: RequestState) -> str:
    if state.state != "completed":
        return "Degraded"
    return "Completed after failover" if failed_over(state.failovers) else "Completed, not as it was asked"


def _expects(view: Mapping[str, Any]) -> dict[str, str]:
    """When one that is served less well may end, on what that rests, and what the takeover takes of it."""
    degraded = view.get("degraded") or {}
    eta, takeover_s = degraded.get("eta"), degraded.get("takeover_s")
    if not eta:
        return {"expects": "", "basis": "", "takeover": ""}
    return {
        "expects": spread(eta["low_s"], eta["high_s"]),
        "basis": eta["basis"],
        "takeover": "" if takeover_s is None else duration(takeover_s),
    }


_STANDS: Final = {"waiting": Chip("clock", "waiting", "wait"), "stuck": Chip("ban", "stuck", "bad")}


def _stands(queue: Mapping[str, Any] | None) -> Stands | None:
    """Of a request that waits or is stuck; None for one that is worked on, or has settled."""
    if queue is None or queue["status"] not in _STANDS:
        return None
    position, eta = queue["position"], queue["eta"] or {}
    before = "" if position is None else "next in turn" if position == 0 else f"{position:,} before it"
    return Stands(
        chip=_STANDS[queue["status"]],
        place=" · ".join(part for part in (before, f"for {duration(queue['age_s'])}") if part),
        why=queue["why"] or "",
        begins=spread(eta.get("start_low_s"), eta.get("start_high_s")) if eta else "",
        ends=spread(eta.get("low_s"), eta.get("high_s")) if eta else "",
        basis=eta.get("basis", ""),
    )


def _error(state: RequestState, view: dict[str, Any]) -> str:
    if state.failure is not None and not state.erased:
        return failure(state.failure.reason, state.failure.rule, state.units)
    return view["error"]["detail"] if view["error"] else ""


def _prompt(spec: Spec | None) -> tuple[Said, ...]:
    if spec is None:
        return ()
    messages = spec.body.get("messages")
    if isinstance(messages, list):
        return tuple(Said(str(m.get("role", "")), str(m.get("content", ""))) for m in messages if isinstance(m, dict))
    prompt = spec.body.get("prompt")
    return (Said("prompt", prompt),) if isinstance(prompt, str) else ()


def _actions(state: RequestState, *, frozen: bool) -> Actions:
    rests = state.state == "resumable-error"
    cancel = (state.state in ACTIVE and not state.cancel_asked) or rests
    if frozen:
        return Actions(cancel=False, resume=False, why="This is the past. Go live to act.", units=state.units)
    ended = "It has ended. There is nothing left to cancel."
    why = "" if cancel else "It was asked to stop already." if state.state in ACTIVE else ended
    return Actions(cancel=cancel, resume=rests and not state.erased, why=why, units=state.units)
