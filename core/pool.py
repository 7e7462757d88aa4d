"""A cache that several requests share, in blocks: who may start, who may grow, and who gives its place.

1. A request holds the blocks it has filled and the next one, not its longest answer. It grows between chunks.
2. When the pool runs out, the youngest of the lowest priority gives its place, the one that asks included; its state is
   saved first. Its blocks are free then.
3. One that gave its place `limit` times starts again only where its longest answer fits, and keeps its place: so
   whoever asks can always be served, and nobody gives way more often than that.
4. `reserve-max` is the other policy: each holds the blocks of its longest answer from the start, and nobody gives way.

Not here: bytes of a device (the pool was taken with the model), saving and restoring (runners).
"""

from core.decision import Decision, PoolFacts, Rejected, Seat

BLOCK: int = 16
"""Tokens of one block."""
GROW = "grow"
PREEMPT = "preempt"


def blocks_of(tokens: int) -> int:
    """Blocks that so many tokens fill, the last one perhaps in part."""
    return -(-tokens // BLOCK)


def decide(facts: PoolFacts) -> Decision:
    """`grow`, or `preempt` with the one that gives its place."""
    mine = next(seat for seat in facts.seats if seat.request_id == facts.asks)
    free = facts.blocks - sum(seat.held for seat in facts.seats)
    more = facts.wants - mine.held
    if more <= free:
        return Decision(GROW, "blocks-free", facts, (Rejected(PREEMPT, f"{free} blocks are free"),))
    movable = [seat for seat in facts.seats if seat.preemptions < facts.limit]
    victim = max(movable, key=_last, default=mine)
    short = f"{more} more are needed and {free} of {facts.blocks} are free"
    return Decision(PREEMPT, "pool-full", facts, (Rejected(GROW, short),), victim=victim.request_id)


def _last(seat: Seat) -> tuple[bool, int, str]:
    """Larger is later in turn: batch work before interactive, then the youngest."""
    return (seat.priority == "batch", seat.turn_us, seat.request_id)
