"""The memory picture a decision was made over: what was needed, what was held and by whom, what was left.

The numbers are the decision's own stored facts, put through the same arithmetic that decided (`core.ledger`).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from core import events as ev
from core import ledger
from core.admission import HOST_MEMORY
from core.decision import AdmissionFacts, Decision, Need, Rejected
from core.events import Recorded
from core.explain import explain_decision
from core.replay import decision_of
from core.telling import action_words
from web.dashboard.bars import Bar, Number, stacked
from web.dashboard.wording import Moment, moment, size

_BASES: Final = {
    "formula": "predicted by formula",
    "learned": "learned from earlier loads",
    "declared": "declared",
    "unknown": "unknown",
}


class Picture(msgspec.Struct, frozen=True):
    """One admission decision; without `numbers`, memory was not accounted where it was made."""

    version: int
    title: str
    at: Moment
    action: str
    action_text: str
    rule: str
    rule_text: str
    rejected: tuple[Rejected, ...]
    bars: tuple[Bar, ...] = ()
    numbers: tuple[Number, ...] = ()
    notes: tuple[str, ...] = ()


def pictures(history: Sequence[Recorded], now_us: int) -> tuple[Picture, ...]:
    """The pictures of a request's admission and of each second look that changed something."""
    found: list[Picture] = []
    for record in history:
        decision, event = decision_of(record.event), record.event
        if isinstance(event, ev.Admitted) and event.instead and isinstance(event.instead.facts, AdmissionFacts):
            own = _picture(record, event.instead, event.instead.facts, now_us)
            found.append(msgspec.structs.replace(own, title=f"Admission of {event.model}, which was asked for"))
        if decision is None or not isinstance(decision.facts, AdmissionFacts):
            continue
        if found and (found[-1].action, found[-1].rule) == (decision.action, decision.rule):
            continue  # one decision, written with two events of one transaction
        found.append(_picture(record, decision, decision.facts, now_us))
    return tuple(found)


def _picture(record: Recorded, decision: Decision, facts: AdmissionFacts, now_us: int) -> Picture:
    picture = Picture(
        version=record.version,
        title="Second look, just before the start" if facts.second_look else "Admission",
        at=moment(record.at_us, now_us),
        action=decision.action,
        action_text=action_words(decision.action),
        rule=decision.rule,
        rule_text=explain_decision(decision),
        rejected=decision.rejected,
    )
    if facts.device is None or facts.need is None or decision.rule == HOST_MEMORY:
        return picture
    tokens = facts.prompt_tokens + (decision.units or facts.max_units)
    need = facts.need.bytes_for(tokens)
    return msgspec.structs.replace(
        picture,
        bars=_bars(facts.device, need),
        numbers=_numbers(facts.device, need),
        notes=_notes(facts, facts.need, tokens, decision),
    )


def _bars(device: ledger.DeviceFacts, need: int) -> tuple[Bar, ...]:
    if not device.total:
        return ()
    held = [("kept", device.driver_reserved, f"Driver: {size(device.driver_reserved)}")]
    held += [("ours", _held(h), f"{h.name}: {size(_held(h))}") for h in device.holders]
    others = ledger.foreign(device)
    held.append(("unknown" if others is None else "foreign", others or 0, f"Foreign: {size(others)}"))
    held.append(("kept", device.headroom, f"Headroom: {size(device.headroom)}"))
    return (
        Bar("Held", stacked(held, device.total)),
        Bar("Needed", stacked([("promised", need, f"Needed: {size(need)}")], device.total)),
    )


def _held(holder: ledger.Holder) -> int:
    return max(holder.reserved, (holder.ours or 0) - holder.released)


def _numbers(device: ledger.DeviceFacts, need: int) -> tuple[Number, ...]:
    return (
        Number("Needed", size(need), "promised"),
        Number("Free", size(ledger.available(device)), "plain"),
        Number("Ours", size(ledger.ours(device)), "ours"),
        Number("Foreign", size(ledger.foreign(device)), "foreign"),
        Number("Headroom", size(device.headroom), "kept"),
        Number("Size", size(device.total), "plain"),
    )


def _notes(facts: AdmissionFacts, need: Need, tokens: int, decision: Decision) -> tuple[str, ...]:
    notes = []
    if need.load:
        notes.append(f"The model is not loaded: {size(need.load)} for it, {_BASES[need.basis]}.")
    if need.token:
        notes.append(f"{size(need.token)} for each of {tokens} tokens.")
    if not need.load and not need.token:
        notes.append("The model is loaded, and its own pool holds the request's tokens: no more bytes are needed.")
    if decision.part is not None:
        rate = "" if decision.part.rate is None else f", about {decision.part.rate:.1f} tokens a second to be expected"
        notes.append(f"{decision.part.layers} layers on the device{rate}.")
    if facts.device is not None and ledger.unseen(facts.device):
        notes.append("What others hold could not be seen, so more is kept back.")
    return tuple(notes)
