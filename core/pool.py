"""A cache that several requests share, in blocks: who may start, who may grow, and who gives its place.

1. A request holds the blocks it has filled and the next one, not its longest answer. It grows between chunks.
2. Who is before whom: interactive before batch, then the older one. Blocks that one before waits for are not free for
   those after it.
3. When too little is free, the last of those after the one that asks gives its place; its state is saved first. As
   long as the blocks of one that was asked already are enough, nobody else is asked; one that is not needed any more
   and has not heard of it stays.
4. One that asks with nobody after it waits where it is: those before it end, or ask for its place.
5. One that gave its place `limit` times starts again only where its longest answer fits, and keeps its place.
6. Whoever starts leaves some blocks free for each one that may still grow; one that gave its place before leaves more,
   so that it does not come back only to be asked again.
7. `reserve-max` is the other policy: each holds the blocks of its longest answer from the start, and nobody gives way.

Everybody is served in the end, if each alone fits the pool and nobody overtakes the first that waits to start. The
first of all who wait in the pool has somebody after it, or others only that hold all they will ever need (5) and so
end, or is alone and fits. A place is given up at most `limit` times by each.

Not here: bytes of a device (the pool was taken with the model), saving and restoring (runners).
"""

from typing import Final, Literal, NamedTuple

from core.decision import Decision, PoolFacts, Rejected, Seat

Mode = Literal["paged", "reserve-max"]

BLOCK: Final = 16
"""Tokens of one block."""
ROOM: Final = 3
"""Blocks that one that starts leaves free for each that may still grow. With fewer, places are given up more often;
with more, fewer requests are at work. From 2 to 4 what is finished in the same time differs by 3 % at most."""
GROW: Final = "grow"
WAIT: Final = "wait"
PREEMPT: Final = "preempt"


class Start(NamedTuple):
    """Blocks of a request that is about to start."""

    takes: int
    """It holds them from then on."""
    finds: int
    """So many must be free; never fewer than it takes."""


def blocks_of(tokens: int) -> int:
    """Blocks that so many tokens fill, the last one perhaps in part."""
    return -(-tokens // BLOCK)


def start(mode: Mode, *, tokens: int, first: int, most: int, growing: int, preemptions: int, limit: int) -> Start:
    """What a request of `tokens` tokens so far, and `most` with its longest answer, takes and must find free.

    `first` are the units of its first chunk, `growing` how many in the pool do not hold yet what their longest answer
    would fill.
    """
    longest = blocks_of(most)
    if mode == "reserve-max":
        return Start(longest, longest)
    takes = longest if preemptions >= limit else min(blocks_of(tokens + max(first, BLOCK)), longest)
    return Start(takes, takes + ROOM * growing * (1 + preemptions))


def decide(facts: PoolFacts) -> Decision:
    """`grow`, `wait`, or `preempt` with the one that gives its place."""
    mine = next(seat for seat in facts.seats if seat.request_id == facts.asks)
    free = facts.blocks - sum(seat.held for seat in facts.seats)
    coming = sum(seat.held for seat in facts.seats if seat.leaving)
    before = _awaited(facts.seats, mine)
    more = facts.wants - mine.held
    short = f"it needs {more} more blocks; {free} of {facts.blocks} are free, {before} are kept for those before it"
    if more <= 0 or more + before <= free:
        return Decision(GROW, "blocks-free", facts, (Rejected(PREEMPT, f"{free} blocks are free"),))
    if more + before <= free + coming:
        enough = f"{coming} blocks of those that were asked already are on their way"
        return Decision(WAIT, "blocks-on-their-way", facts, (Rejected(GROW, short), Rejected(PREEMPT, enough)))
    after = [seat for seat in facts.seats if _may_go(seat, facts.limit) and turn(seat) > turn(mine)]
    if not after:
        nobody = "nobody after it holds a place that may be asked for"
        return Decision(WAIT, "last-in-turn", facts, (Rejected(GROW, short), Rejected(PREEMPT, nobody)))
    victim = max(after, key=turn)
    later = Rejected(WAIT, f"{victim.request_id} is after it")
    return Decision(PREEMPT, "pool-full", facts, (Rejected(GROW, short), later), victim=victim.request_id)


def still_needed(blocks: int, seats: tuple[Seat, ...], asked: str) -> bool:
    """Whether those before one that was asked to give its place still need its blocks."""
    mine = next(seat for seat in seats if seat.request_id == asked)
    free = blocks - sum(seat.held for seat in seats)
    others = sum(seat.held for seat in seats if seat.leaving) - mine.held
    return _awaited(seats, mine) > free + others


def unawaited(blocks: int, seats: tuple[Seat, ...]) -> int:
    """Blocks that are free and that nobody in the pool waits for; what a request that starts may find."""
    waited = sum(seat.wants - seat.held for seat in seats if seat.wants and not seat.leaving)
    return blocks - sum(seat.held for seat in seats) - waited


def turn(seat: Seat) -> tuple[bool, int, str]:
    """Smaller is before: interactive work before batch, then the older one."""
    return (seat.priority == "batch", seat.turn_us, seat.request_id)


def _awaited(seats: tuple[Seat, ...], mine: Seat) -> int:
    """Blocks that those before wait for."""
    first = (seat for seat in seats if seat.wants and not seat.leaving and turn(seat) < turn(mine))
    return sum(seat.wants - seat.held for seat in first)


def _may_go(seat: Seat, limit: int) -> bool:
    return not seat.leaving and seat.preemptions < limit
