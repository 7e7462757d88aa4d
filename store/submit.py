"""Admission, as one transaction: idempotency, facts, decision, events, contents. 202 only after its commit."""

import math
from typing import Any, Final, Literal

import msgspec

from core import admission
from core import events as ev
from core.chunks import cap_for
from core.decision import AdmissionFacts, Decision, LaneFacts, Rejected
from core.errors import Impossible
from core.policy import Policy
from core.state import RequestState
from core.words import Failover, Lane, Priority
from store import contents, laneviews, rates, secondlook, waits
from store.journal import Tx

RETRY_AFTER_S: Final = 5
"""Where nobody knows when trying again may help."""


class Submission(msgspec.Struct, frozen=True):
    """A request that was read, checked and tokenised, not yet admitted."""

    id: str
    owner: str
    workload: str
    model: str
    engine: str
    contract: str
    body: dict[str, Any]
    tokens: tuple[int, ...]
    eos: tuple[int, ...]
    stops: tuple[str, ...]
    sampling: contents.StoredSampling
    max_units: int
    failover: Failover
    priority: Priority
    deadline_s: float | None
    secret: bytes
    body_digest: str
    allow_shrink: bool = False
    idempotency_key: str | None = None
    webhook: str | None = None
    """The URL that is told of its events."""
    fallback: "Submission | None" = None
    """The same for a smaller model, which the caller allows to serve instead."""


class Submitted(msgspec.Struct, frozen=True):
    """The request as admitted, refused, or found under the same idempotency key."""

    state: RequestState
    outcome: Literal["new", "replayed", "refused"]
    position: int | None
    """How many requests went first in its lane's queue; None when it did not wait in one."""
    rejected: tuple[Rejected, ...] = ()
    """Of a refusal: what else was thought of, and why not, with the numbers."""


def submit(tx: Tx, sub: Submission, policy: Policy) -> Submitted:
    """Admit, refuse, or find again.

    Raises `Impossible` when the key was used with another body, or no lane can ever hold the request.
    """
    if sub.idempotency_key is not None and (earlier := _earlier(tx, sub)) is not None:
        return _submitted(tx, earlier, "replayed")
    decision = admission.decide(_facts(tx, sub, policy))
    if decision.rule == "too-long":
        raise too_long(sub, decision)
    if decision.action == admission.REFUSE and (instead := _smaller(tx, sub, policy)) is not None:
        return _admitted(tx, sub, policy, instead, decision)
    if decision.action == admission.REFUSE:
        again = _again_s(tx, sub, decision) if _may_help(decision) else None
        refused = ev.Refused(sub.owner, sub.workload, sub.model, decision.rule, again, decision)
        tx.append(sub.id, refused, actor="web")
        return msgspec.structs.replace(_submitted(tx, _state(tx, sub.id), "refused"), rejected=decision.rejected)
    return _admitted(tx, sub, policy, decision)


def _smaller(tx: Tx, sub: Submission, policy: Policy) -> Decision | None:
    """The decision for the smaller model that may serve instead; None where there is none, or none can be taken."""
    if sub.fallback is None:
        return None
    decision = admission.decide(_facts(tx, sub.fallback, policy))
    return None if decision.action == admission.REFUSE else decision


def _admitted(
    tx: Tx, sub: Submission, policy: Policy, decision: Decision, refusal: Decision | None = None
) -> Submitted:
    """Take it in, and remember the key it came under. With `refusal` the smaller model serves."""
    _admit(tx, sub, policy, decision, refusal)
    if sub.idempotency_key is not None:
        tx.execute(
            "INSERT INTO idempotency (owner, key, body_digest, request_id, created_us) VALUES (?,?,?,?,?)",
            (sub.owner, sub.idempotency_key, sub.body_digest, sub.id, tx.now_us),
        )
    return _submitted(tx, _state(tx, sub.id), "new")


def _may_help(decision: Decision) -> bool:
    """Whether trying again can change a refusal: not where the only lane wanted is absent, or could never hold it."""
    facts = decision.facts
    assert isinstance(facts, AdmissionFacts)
    if decision.rule == "never-fits":
        return not admission.hopeless(facts)
    if not facts.gpu.present and admission.capped(facts):
        return False
    if decision.rule != "gpu-only":
        return True
    return facts.gpu.present and facts.prompt_tokens + facts.max_units <= facts.gpu.context


def _again_s(tx: Tx, sub: Submission, decision: Decision) -> int:
    """When to try again: as soon as one of the lanes it may use may have a place, as far as that can be told."""
    facts = decision.facts
    assert isinstance(facts, AdmissionFacts)
    if facts.draining:
        return RETRY_AFTER_S
    lanes: tuple[tuple[Lane, LaneFacts], ...] = (("gpu", facts.gpu), ("cpu", facts.cpu))
    found = []
    for lane, one in lanes[:1] if sub.failover in {"gpu-only", "never"} else lanes:
        if one.present and (not one.serving or one.waiting >= one.limit):
            found.append(waits.place_after_s(waits.picture(tx, lane, sub.model), tx.now_us))
    return min((one for one in found if one is not None), default=RETRY_AFTER_S)


def too_long(sub: Submission, decision: Decision) -> Impossible:
    """The error for a request that no lane can hold, with the numbers."""
    facts = decision.facts
    assert isinstance(facts, AdmissionFacts)
    longest = max(lane.context for lane in (facts.gpu, facts.cpu) if lane.present)
    prompt, answer = len(sub.tokens), sub.max_units
    return Impossible(
        f"prompt ({prompt} tokens) and max_tokens ({answer}) together are {prompt + answer}; "
        f"the longest lane of {sub.model} holds {longest}. Shorten the prompt or lower max_tokens.",
        code="context_length_exceeded",
        param="messages",
        prompt_tokens=prompt,
        max_tokens=answer,
        context=longest,
    )


def _earlier(tx: Tx, sub: Submission) -> RequestState | None:
    row = tx.execute(
        "SELECT body_digest, request_id FROM idempotency WHERE owner=? AND key=?", (sub.owner, sub.idempotency_key)
    ).fetchone()
    if row is None:
        return None
    if row[0] != sub.body_digest:
        raise Impossible(
            f"this Idempotency-Key was used for {row[1]} with a different body; use a new key for a new request",
            code="idempotency_key_reused",
            param="Idempotency-Key",
            request_id=row[1],
        )
    return _state(tx, row[1])


def _facts(tx: Tx, sub: Submission, policy: Policy) -> AdmissionFacts:
    facts = secondlook.facts_for(
        tx,
        model=sub.model,
        prompt_tokens=len(sub.tokens),
        max_units=sub.max_units,
        failover=sub.failover,
        policy=policy,
        request_id=sub.id,
    )
    if facts.need is None and not facts.cpu.longest:
        return facts
    least = max(1, math.ceil(sub.max_units * policy.shrink_floor))
    return msgspec.structs.replace(facts, allow_shrink=sub.allow_shrink, least_units=least)


def _admit(tx: Tx, sub: Submission, policy: Policy, decision: Decision, refusal: Decision | None) -> None:
    asked = sub.model
    if refusal is not None:
        assert sub.fallback is not None
        sub = sub.fallback
    spec = contents.spec_body(contents.Spec(sub.secret, sub.body, sub.tokens, sub.eos, sub.stops, sub.sampling))
    granted = sub.max_units if decision.units is None else decision.units
    admitted = ev.Admitted(
        owner=sub.owner,
        workload=sub.workload,
        model=asked,
        served_model=sub.model,
        engine=sub.engine,
        contract=sub.contract,
        prompt_tokens=len(sub.tokens),
        max_units=granted,
        asked_units=sub.max_units if granted < sub.max_units else None,
        chunk_cap=_chunk_cap(tx, sub, policy),
        whole=any(sub.body.get(name) is not None for name in ("grammar", "json_schema")),
        failover=sub.failover,
        priority=sub.priority,
        deadline_us=None if sub.deadline_s is None else tx.now_us + int(sub.deadline_s * 1e6),
        spec_digest=contents.digest(sub.secret, spec),
        decision=decision,
        instead=refusal,
        shorter=_shortened_by(decision) if granted < sub.max_units else None,
    )
    record = tx.append(sub.id, admitted, actor="web")
    contents.put_spec(tx, sub.id, spec)
    if sub.webhook is not None:
        contents.put_webhook(tx, sub.id, sub.webhook)
    if decision.action in {admission.RUN_GPU, admission.SHRINK, admission.OFFLOAD}:
        secondlook.keep_promise(tx, sub.id, sub.model, decision, len(sub.tokens) + granted)
    if decision.action == admission.REROUTE:
        tx.append(sub.id, ev.Rerouted(None, 0, decision.rule, decision), actor="web", cause=record.seq)


def _shortened_by(decision: Decision) -> str:
    """The rule by which the answer is shorter than asked for."""
    return admission.SHORTER_ON_CPU if decision.action == admission.REROUTE else decision.rule


def _chunk_cap(tx: Tx, sub: Submission, policy: Policy) -> int:
    """Pinned here, by the slower of the lanes: a request keeps its plan wherever it goes.

    An engine may draw a whole chunk with one seed, so what is sampled has the same plan on every day.
    """
    if sub.sampling.temperature > 0:
        return policy.chunk_cap
    lanes: tuple[Lane, ...] = ("gpu", "cpu")
    known = [rate for lane in lanes if (rate := rates.rates_of(tx, lane, sub.model).decode) is not None]
    return cap_for(min(known, default=None), policy.chunk_cap)


def _state(tx: Tx, request_id: str) -> RequestState:
    state = tx.state(request_id)
    assert state is not None
    return state


def _submitted(tx: Tx, state: RequestState, outcome: Literal["new", "replayed", "refused"]) -> Submitted:
    return Submitted(state, outcome, laneviews.position(tx, state))
