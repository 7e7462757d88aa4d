"""The shapes that readers see: pure functions from what the store tells to plain JSON values.

1. Nothing is read here and nothing depends on the time but `now_us`: the same arguments give the same view.
2. Times are RFC 3339 in UTC with microseconds, durations are seconds, bytes are integers, unknown is null, never zero.
3. A reason is shown twice: as a sentence (`core.explain`), and as its code.
4. A simulated device says so in its own field and in its label.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from core import eta
from core import events as ev
from core.decision import Decision
from core.eta import Eta
from core.events import Recorded
from core.explain import explain, explain_decision, failure, moved, reason
from core.machine import apply
from core.replay import Redecided
from core.state import DegradedMark, RequestState
from core.words import SETTLED
from store.waits import Outlook

View = dict[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final[Mapping[str, str]] = {"generate": "token", "transcribe": "segment", "embed": "item"}
_UNKNOWN: Final = eta.unknown("nothing was looked up")


def time_text(us: int) -> str:
    """Microseconds since 1970 as RFC 3339, UTC, always with six digits."""
    moment = _EPOCH + timedelta(microseconds=us)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def seconds_since(us: int | None, now_us: int) -> float | None:
    """Seconds from then to now, never negative; None for never."""
    return None if us is None else max(0, now_us - us) / 1e6


def served_on(state: RequestState) -> str | None:
    """`gpu:<device>` or `cpu`; None while no device is known that works or worked on it."""
    if state.lane == "cpu":
        return "cpu"
    return f"gpu:{state.device}" if state.lane == "gpu" and state.device else None


def links(request_id: str) -> View:
    """Where everything about a request is."""
    base = f"/api/requests/{request_id}"
    return {
        "self": base,
        "events": f"{base}/events",
        "cancel": f"{base}/cancel",
        "resume": f"{base}/resume",
        "replay": f"{base}/replay",
        "page": f"/requests/{request_id}",
    }


def request_view(
    state: RequestState, *, text: str | None, now_us: int, outlook: Outlook | None = None, position: int | None = None
) -> View:
    """A request. `text` is what of its output may be shown; it is not looked at once the content was erased.

    `outlook` is how it stands in its lane, None where that was not looked up; then `position` alone, which counts who
    goes first in its lane's queue, may be known.
    """
    return {
        "id": state.id,
        "workload": state.workload,
        "model": state.asked_model or state.model,
        "served_model": state.served_model or None,
        "state": state.state,
        "lane": state.lane,
        "running": state.running,
        "attempt": state.attempt,
        "version": state.version,
        "output_epoch": state.output_epoch,
        "progress": {
            "unit": _UNITS.get(state.workload, "unit"),
            "done": state.units,
            "of": state.max_units,
        },
        "output": {"text": None, "erased": True} if state.erased else {"text": text or ""},
        "degraded": _degraded(state, outlook),
        "queue": None if state.state in SETTLED else _queue(state, outlook, position, now_us),
        "failovers": [
            {
                "version": mark.version,
                "from": mark.from_lane,
                "to": mark.to_lane,
                "rule": mark.rule,
                "because": moved(mark.from_lane, mark.to_lane, mark.reason, mark.rule),
                "at": time_text(mark.at_us),
            }
            for mark in state.failovers
        ],
        "usage": {"prompt_tokens": state.prompt_tokens, "completion_tokens": state.units},
        "finish_reason": state.finish_reason,
        "error": _error(state),
        "created_at": time_text(state.created_us),
        "updated_at": time_text(state.updated_us),
        "links": links(state.id),
    }


def _queue(state: RequestState, outlook: Outlook | None, position: int | None, now_us: int) -> View:
    """Where it waits and why; `eta` counts to its end as that of `degraded` does, and says when it may be taken up."""
    age_s = seconds_since(state.waiting_since_us, now_us)
    code = state.waits_for
    waits = not state.running and outlook is not None
    return {
        "position": 0 if state.running else outlook.position if outlook else position,
        "age_s": age_s or 0.0,
        "waits_for": reason(code) if code else None,
        "waits_for_code": code,
        "status": outlook.standing.status if outlook else "running" if state.running else "waiting",
        "why": (outlook.standing.why or None) if outlook else None,
        "eta": _waiting_eta(outlook.eta) if outlook and waits else None,
    }


def _waiting_eta(found: Eta) -> View:
    return eta_view(found) | {"start_low_s": found.start_low_s, "start_high_s": found.start_high_s}


def eta_view(found: Eta) -> View:
    """A range of seconds with its basis; None for an end that is not known."""
    return {"low_s": found.low_s, "high_s": found.high_s, "basis": found.basis}


def _degraded(state: RequestState, outlook: Outlook | None) -> View | None:
    mark = state.degraded
    if mark is None:
        return None
    over = state.state in SETTLED
    return degraded_view(mark) | {
        "limits": _limits(state),
        "eta": None if over else eta_view(outlook.eta if outlook else _UNKNOWN),
        "takeover_s": None if over or outlook is None else outlook.takeover_s,
    }


def degraded_view(mark: DegradedMark) -> View:
    """In what way it is not getting the service it asked for, as its events tell it."""
    return {
        "since": time_text(mark.since_us),
        "reason": reason(mark.reason),
        "reason_code": mark.reason,
        "rule": mark.rule,
        "lane": mark.lane,
        "model": mark.model,
    }


def _limits(state: RequestState) -> View:
    """What of it was shortened: what was asked for, and what was given."""
    if state.asked_units is None:
        return {}
    return {"max_tokens": {"asked": state.asked_units, "given": state.max_units}}


def _error(state: RequestState) -> View | None:
    """Why it did not come to a whole answer, and what the caller may do; None while nothing is wrong."""
    if state.state == "resumable-error" and state.failure is not None:
        mark = state.failure
        why = failure(mark.reason, mark.rule, state.units)
        if state.erased:
            why = f"Stopped because {reason(mark.reason)}. Its content was erased since, so it can only be cancelled."
        return _problem("resumable-error", "Stopped, can be resumed", 503, why, mark.reason) | {
            "rule": mark.rule,
            "choices": _choices(state),
        }
    if state.state == "refused" and state.ended_by is not None:
        status = 429 if "queue-full" in state.ended_by else 503
        why = f"Refused because {reason(state.ended_by)}."
        return _problem("refused", "Refused", status, why, state.ended_by) | {"retry_after_s": state.retry_after_s}
    if state.state == "cancelled" and state.ended_by not in {None, "asked"}:
        assert state.ended_by is not None
        why = f"Cancelled because {reason(state.ended_by)}."
        return _problem("expired", "Its time was up", 504, why, state.ended_by)
    return None


def _problem(type_: str, title: str, status: int, detail: str, code: str) -> View:
    return {"type": f"urn:failsoft:problem:{type_}", "title": title, "status": status, "detail": detail, "code": code}


def _choices(state: RequestState) -> list[View]:
    cancel = {"action": "cancel", "method": "POST", "href": links(state.id)["cancel"], "body": None}
    if state.erased:
        return [cancel]
    resume = {"action": "resume", "method": "POST", "href": links(state.id)["resume"]}
    return [resume | {"body": {"from": origin}} for origin in ("checkpoint", "start")] + [cancel]


def eta_of(state: RequestState, history: Iterable[Recorded]) -> Eta | None:
    """How long the rest may take, from what this request's own chunks took in its lane since it was last taken up.

    None while none was measured, and while nobody works on it.
    """
    before = 0
    rates: list[float] = []
    for record in history:
        event = record.event
        if isinstance(event, ev.Started):
            before, rates = event.resume_from, []
        elif isinstance(event, ev.Checkpointed):
            if event.took_us > 0 and event.units > before:
                rates.append(event.took_us / 1e6 / (event.units - before))
            before = event.units
    if not rates or not state.running or state.lane is None:
        return None
    return eta.by_chunks(max(0, state.max_units - state.units), rates, state.lane)


def decision_view(decision: Decision) -> View:
    """A decision whole: action, rule, facts, what was rejected, and why in a clause."""
    view: View = msgspec.to_builtins(decision)
    return view | {"because": explain_decision(decision)}


def event_view(record: Recorded, cause: Recorded | None = None) -> View:
    """One event. `cause` is the record that `record.cause_seq` names, for the sentence."""
    event = record.event
    data: View = {}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        data[name] = decision_view(value) if isinstance(value, Decision) else msgspec.to_builtins(value)
    return {
        "seq": record.seq,
        "stream": record.stream,
        "version": record.version,
        "type": record.type,
        "at": time_text(record.at_us),
        "actor": record.actor,
        "attempt": record.attempt,
        "cause": record.cause_seq,
        "data": data,
        "because": explain(event, cause.event if cause else None),
    }


class Span(msgspec.Struct, frozen=True):
    """Characters `start` to `end` of an output epoch's visible text, of the chunk that begins after `first` units."""

    epoch: int
    first: int
    start: int
    end: int


def spans(history: Iterable[Recorded]) -> dict[int, Span]:
    """What each `Checkpointed` and `Completed` added, by version. `history` begins with the stream's first event."""
    found: dict[int, Span] = {}
    epoch, units, shown = 0, 0, 0
    for record in history:
        event = record.event
        if isinstance(event, ev.Resumed) and event.origin == "start":
            epoch, units, shown = epoch + 1, 0, 0
        elif isinstance(event, ev.Checkpointed | ev.Completed):
            found[record.version] = Span(epoch, units, shown, event.visible_upto)
            units, shown = event.units, event.visible_upto
    return found


_PROGRESS: Final = (ev.Checkpointed, ev.SnapshotSaved, ev.PrefixReady)


def degraded_changes(history: Sequence[Recorded], after: int) -> dict[int, View | None]:
    """Which versions beyond `after` made the request degraded, in what way, or (None) ended that."""
    if all(isinstance(record.event, _PROGRESS) for record in history if record.version > after):
        return {}
    found: dict[int, View | None] = {}
    state: RequestState | None = None
    for record in history:
        before = state.degraded if state is not None else None
        state = apply(state, record.event, stream=record.stream, at_us=record.at_us, attempt=record.attempt)
        if state.degraded != before and record.version > after:
            mark = state.degraded
            found[record.version] = None if mark is None else degraded_view(mark) | {"limits": _limits(state)}
    return found


def frame_view(record: Recorded, cause: Recorded | None, span: Span | None, text: str | None) -> View:
    """An event as a stream frame: with the text it made visible, or `erased` when that is gone (`text` is None)."""
    view = event_view(record, cause)
    if span is not None:
        if text is None:
            return view | {"erased": True}
        return view | {"delta": {"from": span.start, "to": span.end, "text": text}}
    if isinstance(record.event, ev.Resumed) and record.event.origin == "start":
        return view | {"output": "restarted"}
    return view


def replay_view(
    view: View, history: Sequence[Recorded], causes: Mapping[int, Recorded], again: list[Redecided]
) -> View:
    """A request as it was after `history`: its view then, the chain of sentences, every decision asked again."""
    return {
        "version": view["version"],
        "state": view["state"],
        "view": view,
        "types": [record.type for record in history],
        "chain": [explain(r.event, c.event if (c := causes.get(r.cause_seq or 0)) else None) for r in history],
        "decisions": [
            {
                "version": one.version,
                "rule": one.rule,
                "same": one.same,
                "recorded": decision_view(one.recorded),
                "recomputed": decision_view(one.recomputed),
            }
            for one in again
        ],
    }
