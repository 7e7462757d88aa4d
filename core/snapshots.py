"""When a running request's state is worth saving: what a takeover would have to compute again, against what it costs.

1. What would be lost: without a snapshot the whole prompt and the units so far; with one, what came after it, which is
   replayed one token at a time.
2. Nothing is saved while less than the budget would be lost.
3. Saving takes at most its share of the time since the last save (or since the start), by what the last one took. The
   first save of a model costs what nobody knows yet, and is made.
"""

import msgspec


class SnapshotFacts(msgspec.Struct, frozen=True):
    """Tokens, seconds, and tokens a second."""

    tokens: int
    """Evaluated so far: the prompt, and all units but the newest."""
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
    tail = facts.tokens - facts.saved
    rate = facts.decode_tps if facts.saved else facts.prefill_tps
    return None if not rate else tail / rate


def due(facts: SnapshotFacts) -> bool:
    """Whether to save now."""
    lost = lost_s(facts)
    if lost is None or lost <= facts.budget_s:
        return False
    return facts.save_s is None or facts.save_s <= facts.share * facts.since_s


def blended(before: float | None, seen: float, weight: float = 0.3) -> float:
    """A rate after one more observation; the newest counts `weight`."""
    return seen if before is None else before + weight * (seen - before)
