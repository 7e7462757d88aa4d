"""What is asked between two chunks of a piece of work, and only there: its state is whole, and nothing is computed.

In this order:

1. Is the service stopping? Its state is saved if a takeover would cost more than the budget, and it stops.
2. Must it give its place in a shared cache to another? Its state is saved, and it gives way. Or is there room for its
   next chunk? If not, somebody gives way, itself perhaps, and it waits.
3. Is it on the GPU lane, and that is slow? Then its state is saved, and it goes on elsewhere, if that is faster and
   allowed in the transaction that moves it; else it goes on here.
4. Is it on the CPU lane, and does going back to the GPU lane pay? Then its state is saved, and it goes, if that still
   holds in the transaction that moves it; else it goes on under the same lease.
5. Would a takeover now cost more than the budget? Then its state is saved beside it, and it goes on.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from core import returning
from core import snapshots as saving
from core.chunks import chunk_size
from core.decision import Decision
from core.errors import StopWork
from core.policy import Policy
from core.slowness import Measured, Spell
from core.snapshots import SnapshotFacts
from runners.engines.base import Loaded, Ready, Sequence
from runners.host import DRAIN
from runners.keeper import Keeper, Saved
from runners.pool import Pool
from runners.speed import Speed
from store import comeback, slowness
from store.claims import Claim
from store.journal import Sees
from store.rates import Rates
from store.slowness import Outcome

log = logging.getLogger("failsoft.runner")

PREEMPT: Final = "preempt"
RETURN: Final = "return"
LEFT: Final = "left"
_ASK_RETURN_S: Final = 1.0
_WAIT_S: Final = 0.2
_WORDS: Final[dict[Outcome, str]] = {
    "left": "its work goes on elsewhere",
    "stays": "nothing new begins there, and what was begun goes on, since it may not be moved",
    "nowhere-better": "it goes on, since no other lane is known to be faster",
}
_STRETCH_S: Final = 1.0
"""Longest time in which nothing is asked: a stop, a way back and a save wait for it."""


class Pace:
    """How fast this piece of work is computed: tokens a second of its prefix and of its answer."""

    def __init__(self) -> None:
        self.prefill: float | None = None
        self.decode: float | None = None
        self.measured: Measured | None = None
        """What was computed undisturbed, in all."""

    def ready(self, how: Ready, took_s: float) -> None:
        """The prefix took so long."""
        if how.way in {"computed", "recomputed"} and how.computed > 0 and took_s > 0:
            self.prefill = how.computed / took_s

    def chunk(self, units: int, took_s: float) -> None:
        """So many units of the answer took so long."""
        if units > 0 and took_s > 0:
            self.decode = saving.blended(self.decode, units / took_s)

    def undisturbed(self, seen: Measured, wall_s: float) -> None:
        """A chunk that says how fast the lane usually is. Of its two times the longer one counts.

        An engine may compute ahead while nobody asks.
        """
        before = self.measured or Measured(0, 0.0, seen.context, seen.threads, seen.at_once, seen.held)
        units, took_s = before.units + seen.units, before.took_s + max(seen.took_s, wall_s)
        at_once = max(before.at_once, seen.at_once)
        threads = max(before.threads, seen.threads)
        self.measured = Measured(units, took_s, seen.context, threads, at_once, seen.held)

    def seen(self) -> Rates:
        """What there is to tell of it."""
        return Rates(self.prefill, self.decode)


class Boundary:
    """The questions for one piece of work."""

    def __init__(
        self,
        claim: Claim,
        *,
        loaded: Loaded,
        keeper: Keeper,
        pool: Pool | None,
        policy: Policy,
        look: Callable[[], Sees],
        stopping: Callable[[], bool],
        pulse: Callable[[], None],
        restored: int,
        speed: Speed | None = None,
    ) -> None:
        """`restored` are the tokens of the saved state that it begins with; with `speed` it is watched for slowness."""
        self._claim = claim
        self._loaded = loaded
        self._keeper = keeper
        self._pool = pool
        self._policy = policy
        self._look = look
        self._stopping = stopping
        self._pulse = pulse
        self.pace = Pace()
        self._known = restored
        """Tokens that the newest saved state holds."""
        self._under_way: Saved | None = None
        self._since = time.monotonic()
        self._ask_return_at = time.monotonic() + _ASK_RETURN_S
        self._ready = False
        self._speed = speed
        self._asked_off = False
        self._chunk_ended: float | None = None
        self.move_back: Callable[[float | None], bool] = _never
        self.move_off: Callable[[Spell], Outcome] = _stays

    def enter(self) -> None:
        """Before anything is computed. Raises `GiveWay`, or `AllocationFailed` for what never fits a shared cache."""
        if self._pool is not None and (asked := self._pool.asked(self._claim.fence.request_id)) is not None:
            raise GiveWay(asked)

    def pulse(self) -> None:
        """While its prompt is computed: nobody waits for a place until that is over. Nothing of it is worth saving."""
        if not self._ready:
            self.enter()

    def ready(self) -> None:
        """The prompt is computed; from here on it is asked between chunks only."""
        self._ready = True
        if self._speed is not None:
            self._speed.ready(self._claim.fence.request_id)

    def computed(self, units: int, *, done: int, began: float, waited_s: float, threads: int) -> None:
        """A chunk came, `done` units with it; since `began`, of which `waited_s` went to waiting for threads."""
        now = time.monotonic()
        took_s = now - began - waited_s
        self.pace.chunk(units, now - began)
        before, self._chunk_ended = self._chunk_ended, now
        if self._speed is None:
            return
        state, context = self._claim.state, self._tokens(done)
        seen = self._speed.chunk(
            state.id, units, took_s, began=began, context=context, threads=threads, held=state.whole
        )
        if seen is not None and before is not None:
            self.pace.undisturbed(seen, now - before - waited_s)

    def ask(self, sequence: Sequence, units: int) -> None:
        """After a chunk; `units` are known now. Raises `StopWork` when the work is to end here.

        Within a stretch nothing is asked: it ends soon.
        """
        self._settle()
        if not self._loaded.at_rest(sequence):
            return
        if self._stopping():
            self._save_for_takeover(sequence, units)
            raise StopWork("the service is stopping", code=DRAIN)
        self._share(sequence, units)
        self._leave_slow(sequence, units)
        self._go_back(sequence, units)
        if self._can_save() and self._under_way is None and saving.due(self._facts(units)):
            self._save(sequence, units)

    def stretch(self, units: int) -> int:
        """Units after `units` before which nothing will be asked: what comes in a second, or until a save is due."""
        if self._pool is not None or self.pace.decode is None:
            return 0
        free_s = _STRETCH_S
        if self._can_save():
            free_s = min(free_s, saving.due_in_s(self._facts(units)) or 0.0)
        return int(self.pace.decode * free_s)

    def takeover_s(self, units: int) -> float | None:
        """What a takeover elsewhere would cost now, with its state saved first where it can be."""
        if self._can_save():
            return 2 * (self._keeper.token_s or 0.0) * self._tokens(units)
        return saving.lost_s(self._facts(units))

    def _tokens(self, units: int) -> int:
        """Evaluated: the newest unit waits for whoever draws its successor."""
        return len(self._claim.spec.tokens) + max(0, units - 1)

    def _can_save(self) -> bool:
        return bool(self._loaded.kv_format)

    def _facts(self, units: int) -> SnapshotFacts:
        tokens = self._tokens(units)
        cost = None if self._keeper.token_s is None else self._keeper.token_s * tokens
        since = time.monotonic() - self._since
        budget, share = self._policy.recovery_budget_s, self._policy.snapshot_share
        prefill, decode = self.pace.prefill or self.pace.decode, self.pace.decode
        prompt = len(self._claim.spec.tokens)
        return SnapshotFacts(tokens, prompt, self._known, prefill, decode, cost, since, budget, share)

    # ---- saving -------------------------------------------------------------------------------------------

    def _save(self, sequence: Sequence, units: int, *, flush: bool = False) -> None:
        self._under_way = self._keeper.save(self._claim, self._loaded, sequence, units, flush=flush)
        self._since = time.monotonic()

    def _settle(self) -> None:
        """A save that has got its name counts from now on."""
        if self._under_way is not None and self._under_way.named.done():
            if self._under_way.named.result():
                self._known = self._under_way.tokens
            self._under_way = None

    def _save_for_takeover(self, sequence: Sequence, units: int) -> None:
        """Save, and wait until it is named, where computing it again would cost more than the budget."""
        self._await_named()
        lost = saving.lost_s(self._facts(units))
        if self._can_save() and lost is not None and lost > self._policy.recovery_budget_s:
            self._save(sequence, units, flush=True)
            self._await_named()

    def _await_named(self) -> None:
        while self._under_way is not None and not self._under_way.named.done():
            self._pulse()
            time.sleep(0.002)
        self._settle()

    # ---- sharing a cache ----------------------------------------------------------------------------------

    def _share(self, sequence: Sequence, units: int) -> None:
        if self._pool is None:
            return
        request_id = self._claim.fence.request_id
        tokens = len(self._claim.spec.tokens) + units
        self._pool.fill(request_id, tokens)
        asked = self._pool.asked(request_id)
        if asked is not None:
            self._give_way(sequence, units, asked)
        state = self._claim.state
        left = state.max_units - units
        wanted = tokens + (left if state.whole else min(left, chunk_size(units, state.chunk_cap)))
        while (decision := self._pool.grow(request_id, wanted)) is not None:
            if decision.victim == request_id:
                self._give_way(sequence, units, decision)
            self._pool.wait(request_id, wanted, _WAIT_S)
            self._pulse()
            if self._stopping():
                self._save_for_takeover(sequence, units)
                raise StopWork("the service is stopping", code=DRAIN)
            if (asked := self._pool.asked(request_id)) is not None:
                self._give_way(sequence, units, asked)

    def _give_way(self, sequence: Sequence, units: int, decision: Decision) -> None:
        self._save_for_takeover(sequence, units)
        raise GiveWay(decision)

    # ---- leaving a slow lane -----------------------------------------------------------------------------

    def _leave_slow(self, sequence: Sequence, units: int) -> None:
        """Once for each request: a look first, and the move is decided where it is made."""
        spell = self._speed.slow() if self._speed is not None and not self._asked_off else None
        if spell is None or self._speed is None:
            return
        self._asked_off = True
        outcome: Outcome = "nowhere-better"
        if slowness.better_elsewhere(self._look(), self._claim.state.model, spell.tps):
            self._save_for_takeover(sequence, units)
            outcome = self.move_off(spell)
        if self._speed.first():
            log.warning(
                "the lane computes %.2f units a second for %.1f s now, where %.2f at least are usual; %s",
                spell.tps,
                spell.spent_s,
                spell.expected_tps,
                _WORDS[outcome],
            )
        if outcome == "left":
            raise LeftSlow

    # ---- going back ---------------------------------------------------------------------------------------

    def _go_back(self, sequence: Sequence, units: int) -> None:
        """On the CPU lane, from time to time: a look first, and the move is decided again where it is made."""
        now = time.monotonic()
        if self._claim.state.lane != "cpu" or now < self._ask_return_at:
            return
        self._ask_return_at = now + _ASK_RETURN_S
        state = msgspec.structs.replace(self._claim.state, units=units)
        if comeback.decide(self._look(), state, self._policy, self.takeover_s(units)).action == returning.RETURN:
            self._save_for_takeover(sequence, units)
            if self.move_back(self.takeover_s(units)):
                raise GoneBack


class GiveWay(StopWork):
    """The work is to give its place in a shared cache to another."""

    def __init__(self, decision: Decision) -> None:
        super().__init__("another request needs its place", code=PREEMPT)
        self.decision = decision


class GoneBack(StopWork):
    """The work has gone back to the GPU lane, and its lease with it: there is nothing left to write."""

    def __init__(self) -> None:
        super().__init__("the GPU lane serves again", code=RETURN)


class LeftSlow(StopWork):
    """The work has left a slow lane, and its lease with it: there is nothing left to write."""

    def __init__(self) -> None:
        super().__init__("the lane is slow", code=LEFT)


def _stays(_spell: Spell) -> Outcome:
    """Nobody moves it."""
    return "stays"


def _never(_takeover_s: float | None) -> bool:
    """Nobody moves it."""
    return False
