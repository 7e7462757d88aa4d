"""The one cache that all slots of a runner share, as its runner keeps count of it: blocks, and who waits for them.

`core.pool` decides; here the facts are kept. In memory only: the cache belongs to this process and ends with it.

1. After every change those who wait are looked at again in their turn: they get their blocks, or somebody is asked.
2. Who is asked to give its place learns of it at its own next question, and holds its blocks until it leaves. It may
   not be needed any more by then; once it has been told, it leaves.
3. While anybody waits, what is free is not for those who would start.
4. A place is taken for a request by name, within the transaction that claims it. Where that came to nothing, `leave`.
5. What never fits is let in without a block, so that nobody waits behind it for ever, and fails at its first question.

Not here: the cells themselves (the engine), saving what a place held (boundaries of the runner).
"""

import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from core import pool as rules
from core.chunks import chunk_size
from core.decision import Decision, PoolFacts, Seat
from core.errors import AllocationFailed
from core.lanes import turn_us
from core.pool import BLOCK, PREEMPT, Mode, blocks_of
from core.state import RequestState
from core.words import Priority


class _Place(msgspec.Struct):
    seat: Seat
    filled: int = 0
    """Tokens that are evaluated."""
    begun: bool = False
    """Its work has begun; until then a claim that came to nothing may be repeated."""
    never: AllocationFailed | None = None
    """Why it can never work here."""
    asked: Decision | None = None
    told: bool = False
    answer: Decision | None = None
    """Why it waits."""


class Pool:
    """`cells` tokens in blocks of 16; what is beyond the last whole block is not used. Thread-safe."""

    def __init__(self, cells: int, *, mode: Mode, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.blocks: Final = cells // BLOCK
        if self.blocks < 1:
            raise ValueError(f"{cells} tokens are less than a block of {BLOCK}: share more, or nothing")
        self._mode: Final = mode
        self._limit: Final = limit
        self._clock = clock
        self._places: dict[str, _Place] = {}
        self._changed = threading.Condition()
        self._since = clock()
        self._held_time = 0.0
        self._filled_time = 0.0

    # ---- starting -----------------------------------------------------------------------------------------

    def enter(
        self,
        request_id: str,
        *,
        priority: Priority,
        turn_us: int,
        tokens: int,
        most: int,
        preemptions: int,
        first: int = BLOCK,
    ) -> bool:
        """Take the blocks to start with; False when they are not free, or a former attempt has not left yet.

        It has `tokens` tokens so far, and `most` with its longest answer. `first` are the units of its first chunk,
        for which nothing is asked any more. Repeated before the work began, it takes the blocks anew.
        """
        with self._changed:
            here = self._places.get(request_id)
            if here is not None and here.begun:
                return False
            if here is not None:
                self._remove(request_id)
            if blocks_of(most) > self.blocks:
                seat = Seat(request_id, priority, turn_us, 0, 0, self._limit)
                self._places[request_id] = _Place(seat, never=self._never(request_id, most))
                return True
            takes = self._start(tokens, first, most, preemptions)
            if takes is None:
                return False
            self._count()
            seat = Seat(request_id, priority, turn_us, takes, blocks_of(most), preemptions)
            self._places[request_id] = _Place(seat)
            return True

    def leave(self, request_id: str) -> None:
        """Give all its blocks back, and wake those who wait for them. Leaving twice does nothing."""
        with self._changed:
            if request_id in self._places:
                self._remove(request_id)

    # ---- between chunks -----------------------------------------------------------------------------------

    def grow(self, request_id: str, tokens: int) -> Decision | None:
        """Before computing up to `tokens` tokens in all: None when it holds enough for them now.

        Otherwise the decision: it is to give its place itself where it is the victim, and else waits. Raises
        `AllocationFailed` for what never fits, a fault of size; so do `asked` and `fill`.
        """
        with self._changed:
            place = self._at_work(request_id)
            if place.asked is not None:
                place.told = True
                return place.asked
            # A chunk's plan may reach beyond the longest answer; the answer does not.
            enough = min(blocks_of(tokens), place.seat.most)
            wants = enough if enough > place.seat.held else 0
            if wants != place.seat.wants:
                self._stand(place, wants=wants)
                place.answer = None
                self._settle()
            return place.answer

    def wait(self, request_id: str, tokens: int, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the blocks that `grow` asked for; True once it holds them.

        False when the time is over, and at once when it is to give its place itself.
        """
        with self._changed:
            place = self._places[request_id]
            enough = min(blocks_of(tokens), place.seat.most)
            self._changed.wait_for(lambda: place.asked is not None or place.seat.held >= enough, timeout)
            return place.asked is None and place.seat.held >= enough

    def asked(self, request_id: str) -> Decision | None:
        """The decision by which it is to give its place, if there is one. Told once, it holds: others count on it."""
        with self._changed:
            place = self._at_work(request_id)
            place.told = place.asked is not None
            return place.asked

    def fill(self, request_id: str, tokens: int) -> None:
        """So many of its tokens are evaluated, all together."""
        with self._changed:
            place = self._at_work(request_id)
            assert tokens <= place.seat.held * BLOCK, f"{request_id} filled {tokens} tokens of {place.seat.held} blocks"
            self._count()
            place.filled = tokens

    # ---- what there is to see -----------------------------------------------------------------------------

    def held(self) -> int:
        """Blocks that are held now."""
        with self._changed:
            return sum(place.seat.held for place in self._places.values())

    def filled(self) -> int:
        """Tokens that are in them."""
        with self._changed:
            return sum(place.filled for place in self._places.values())

    def waste(self) -> float:
        """Share of the held cells that held no token, averaged over time; 0 while nothing was ever held."""
        with self._changed:
            self._count()
            return 1 - self._filled_time / self._held_time if self._held_time else 0.0

    # ---- inside, with the lock held -----------------------------------------------------------------------

    def _seats(self) -> tuple[Seat, ...]:
        return tuple(place.seat for place in self._places.values())

    def _start(self, tokens: int, first: int, most: int, preemptions: int) -> int | None:
        """Blocks to start with; None when too few are free."""
        seats = self._seats()
        start = rules.start(
            self._mode,
            tokens=tokens,
            first=first,
            most=most,
            growing=sum(seat.held < seat.most for seat in seats),
            preemptions=preemptions,
            limit=self._limit,
        )
        return start.takes if start.finds <= rules.unawaited(self.blocks, seats) else None

    def _never(self, request_id: str, most: int) -> AllocationFailed:
        total = self.blocks * BLOCK
        return AllocationFailed(
            f"{request_id} may come to {most} tokens, and the shared cache holds {total}: ask for a shorter answer, or "
            f"set pool_tokens to {blocks_of(most) * BLOCK} or more",
            asked=most,
            total=total,
        )

    def _at_work(self, request_id: str) -> _Place:
        place = self._places[request_id]
        if place.never is not None:
            raise place.never
        place.begun = True
        return place

    def _stand(self, place: _Place, **changes: int | bool) -> None:
        place.seat = msgspec.structs.replace(place.seat, **changes)

    def _remove(self, request_id: str) -> None:
        self._count()
        del self._places[request_id]
        self._settle()

    def _settle(self) -> None:
        """Give blocks to those who wait for them, in their turn; ask others for their place, or no longer."""
        in_turn = sorted(self._places.values(), key=lambda place: rules.turn(place.seat))
        again = True
        while again:
            for place in in_turn:
                while place.seat.wants and not place.seat.leaving and self._step(place) == PREEMPT:
                    pass
            again = self._spare(in_turn)
        self._changed.notify_all()

    def _spare(self, in_turn: list[_Place]) -> bool:
        """Whether one that was asked may stay after all: the first in turn whose blocks are not needed any more."""
        for place in in_turn:
            untold = place.asked is not None and not place.told
            if untold and not rules.still_needed(self.blocks, self._seats(), place.seat.request_id):
                place.asked = None
                self._stand(place, leaving=False)
                return True
        return False

    def _step(self, place: _Place) -> str:
        seat = place.seat
        facts = PoolFacts(self.blocks, BLOCK, self._seats(), seat.request_id, seat.wants, self._limit)
        decision = rules.decide(facts)
        if decision.action == rules.GROW:
            self._count()
            self._stand(place, held=seat.wants, wants=0)
            place.answer = None
        elif decision.victim is not None:
            victim = self._places[decision.victim]
            victim.asked = decision
            self._stand(victim, leaving=True)
            place.answer = decision
        elif place.answer is None or place.answer.action != PREEMPT:
            place.answer = decision
        return decision.action

    def _count(self) -> None:
        """Add the time since the last change to the averages; called before each change."""
        now = self._clock()
        past, self._since = now - self._since, now
        self._held_time += past * BLOCK * sum(place.seat.held for place in self._places.values())
        self._filled_time += past * sum(place.filled for place in self._places.values())


def enter(pool: Pool, state: RequestState) -> bool:
    """Take the place in a shared cache that a request needs to start, its first chunk included."""
    left = state.max_units - state.units
    return pool.enter(
        state.id,
        priority=state.priority,
        turn_us=turn_us(state.priority, state.created_us),
        tokens=state.prompt_tokens + state.units,
        most=state.prompt_tokens + state.max_units,
        preemptions=state.preemptions,
        first=left if state.whole else min(chunk_size(state.units, state.chunk_cap), left),
    )
