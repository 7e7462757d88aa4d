"""When a running request's state is worth saving: what a takeover would have to compute again, against what it costs.

1. What would be lost: without a snapshot the prompt, in its batches, and the units so far, one at a time; with one,
   what came after it, one at a time.
2. Nothing is saved while less than the budget would be lost.
3. Saving takes at most its share of the time since the last save (or since the start), by what the last one took. The
   first save of a model costs what nobody knows yet, and is made.
"""

import msgspec


class SnapshotFacts(msgspec.Struct, frozen=True):
    """Tokens, seconds, and tokens a second."""

    tokens: int
    """Evaluated so far: the prompt, and all units but the newest."""
    prompt: int
    saved: int
    """Held by the newest snapshot that can be used; 0: there is none."""
    prefill_tps: float | None
    decode_tps: float | None
    save_s: float | None
    """What the last save took; None: not known."""
    since_s: float
    """Time since the last save of this request, or since it was taken up."""
    budget_s: float
    share: float


def lost_s(facts: SnapshotFacts) -> float | None:
    """Seconds that a takeover would compute again now; None where the rate is not known."""
    batched = max(0, facts.prompt - facts.saved)
    single = facts.tokens - facts.saved - batched
    if (batched and not facts.prefill_tps) or (single and not facts.decode_tps):
        return None
    return batched / (facts.prefill_tps or 1.0) + single / (facts.decode_tps or 1.0)


def due(facts: SnapshotFacts) -> bool:
    """Whether to save now."""
    lost = lost_s(facts)
    if lost is None or lost <= facts.budget_s:
        return False
    return facts.save_s is None or facts.save_s <= facts.share * facts.since_s


def due_in_s(facts: SnapshotFacts) -> float | None:
    """Seconds until saving may be due, if nothing but units comes; None where that is not known."""
    lost = lost_s(facts)
    if lost is None:
        return None
    paid = 0.0 if facts.save_s is None else facts.save_s / facts.share - facts.since_s
    return max(0.0, facts.budget_s - lost, paid)


def blended(before: float | None, seen: float, weight: float = 0.3) -> float:
    """A rate after one more observation; the newest counts `weight`."""
    return seen if before is None else before + weight * (seen - before)
