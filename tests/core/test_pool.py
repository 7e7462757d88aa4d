"""A cache shared in blocks: each rule by hand, and what holds for any mix of requests in any order of events."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import pool
from core.decision import PoolFacts, Seat
from core.explain import explain_decision
from core.pool import Mode, Start
from core.replay import decide_again


def seat(name: str, held: int, **changes: object) -> Seat:
    """An interactive request that may come to 50 blocks and whose turn is its number."""
    plain = Seat(name, "interactive", int(name[1:]), held, 50)
    return msgspec.structs.replace(plain, **changes)  # type: ignore[arg-type]


def ask(blocks: int, asks: str, wants: int, *seats: Seat, limit: int = 2) -> tuple[str, str, str | None]:
    """Action, rule and victim."""
    decision = pool.decide(PoolFacts(blocks, 16, seats, asks, wants, limit))
    return decision.action, decision.rule, decision.victim


# ---- blocks, and starting ----


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (600, 38)])
def test_a_block_holds_sixteen_tokens(tokens: int, blocks: int) -> None:
    assert pool.blocks_of(tokens) == blocks


def start(mode: Mode = "paged", **changes: int) -> Start:
    """100 tokens now, 700 with the longest answer, and nobody else there."""
    facts = {"tokens": 100, "first": 2, "most": 700, "growing": 0, "preemptions": 0, "limit": 2} | changes
    return pool.start(mode, **facts)


def test_one_that_starts_holds_what_it_fills_and_the_next_block() -> None:
    # 116 tokens are 7.25 blocks, 132 are 8.25; the longest answer makes 43.75.
    assert start() == Start(8, 8)
    assert start(first=32) == Start(9, 9)
    assert start(tokens=690) == Start(44, 44)


def test_by_longest_answers_it_holds_all_of_it_and_leaves_nothing_for_others_to_grow() -> None:
    assert start("reserve-max", growing=3, preemptions=1) == Start(44, 44)


def test_it_leaves_room_for_each_that_may_grow_and_more_when_it_gave_its_place_before() -> None:
    assert start(growing=2) == Start(8, 8 + 6)
    assert start(growing=2, preemptions=1) == Start(8, 8 + 12)
    assert start(growing=0, preemptions=1) == Start(8, 8)


def test_one_that_gave_its_place_often_enough_starts_with_its_longest_answer() -> None:
    assert start(preemptions=2) == Start(44, 44)
    assert start(limit=0) == Start(44, 44)


# ---- growing, rule by rule ----


def test_free_blocks_are_given() -> None:
    assert ask(10, "r1", 6, seat("r1", 5), seat("r2", 4)) == ("grow", "blocks-free", None)
    assert ask(10, "r2", 4, seat("r1", 6), seat("r2", 4)) == ("grow", "blocks-free", None)  # it holds them already


def test_the_youngest_gives_its_place() -> None:
    three = (seat("r2", 3), seat("r3", 3), seat("r1", 4))
    assert ask(10, "r1", 5, *three) == ("preempt", "pool-full", "r3")
    assert ask(10, "r2", 4, *three) == ("preempt", "pool-full", "r3")


def test_batch_work_gives_its_place_before_interactive_work_however_old_it_is() -> None:
    old_batch = seat("r1", 4, priority="batch")
    assert ask(10, "r2", 4, old_batch, seat("r2", 3), seat("r3", 3)) == ("preempt", "pool-full", "r1")
    assert ask(10, "r3", 4, old_batch, seat("r2", 3), seat("r3", 3)) == ("preempt", "pool-full", "r1")


def test_the_last_in_turn_waits_where_it_is() -> None:
    assert ask(10, "r3", 4, seat("r1", 4), seat("r2", 3), seat("r3", 3)) == ("wait", "last-in-turn", None)
    batch = seat("r1", 4, priority="batch")
    assert ask(10, "r1", 5, batch, seat("r2", 6)) == ("wait", "last-in-turn", None)


def test_one_that_gave_its_place_often_enough_keeps_it() -> None:
    kept = seat("r3", 3, preemptions=2, most=3)
    assert ask(10, "r1", 5, seat("r1", 4), seat("r2", 3), kept) == ("preempt", "pool-full", "r2")
    assert ask(7, "r1", 5, seat("r1", 4), kept) == ("wait", "last-in-turn", None)


def test_nobody_else_is_asked_while_enough_is_on_its_way() -> None:
    going = seat("r3", 3, leaving=True)
    others = (seat("r1", 4), seat("r2", 3), going)
    assert ask(10, "r1", 5, *others) == ("wait", "blocks-on-their-way", None)
    assert ask(10, "r1", 7, *others) == ("wait", "blocks-on-their-way", None)
    assert ask(10, "r1", 8, *others) == ("preempt", "pool-full", "r2")


def test_what_one_before_waits_for_is_not_free_for_those_after_it() -> None:
    waiting = seat("r1", 4, wants=7)
    going = seat("r4", 2, leaving=True)
    others = (waiting, seat("r2", 1), seat("r3", 1), going)
    # 2 are free and 2 on their way; r1 waits for 3 of them, so r2 finds 1 and r3 is asked for what is missing of 2.
    assert ask(10, "r2", 2, *others) == ("wait", "blocks-on-their-way", None)
    assert ask(10, "r2", 3, *others) == ("preempt", "pool-full", "r3")
    # The one before does not wait for those after it.
    assert ask(10, "r1", 6, seat("r1", 4), seat("r2", 4, wants=6)) == ("grow", "blocks-free", None)


def test_one_that_was_asked_and_is_not_needed_any_more_is_known() -> None:
    going, waiting = seat("r3", 3, leaving=True), seat("r1", 4, wants=6)
    assert pool.still_needed(8, (waiting, going), "r3")  # 1 is free, 2 are wanted
    assert not pool.still_needed(9, (waiting, going), "r3")
    assert not pool.still_needed(9, (waiting, going, seat("r4", 1, leaving=True)), "r3")  # 1 is free, 1 on its way
    assert not pool.still_needed(8, (seat("r4", 4, wants=6), going), "r3")  # only one after it waits


def test_those_who_start_find_what_nobody_waits_for() -> None:
    assert pool.unawaited(10, (seat("r1", 4), seat("r2", 3))) == 3
    assert pool.unawaited(10, (seat("r1", 4, wants=6), seat("r2", 3))) == 1
    assert pool.unawaited(10, (seat("r1", 4, wants=9), seat("r2", 3, wants=5, leaving=True))) == -2


def test_a_decision_says_what_was_short_and_can_be_asked_again() -> None:
    facts = PoolFacts(10, 16, (seat("r1", 4), seat("r2", 5)), "r1", 7, 2)
    decision = pool.decide(facts)
    told = {rejected.action: rejected.reason for rejected in decision.rejected}
    assert told == {
        "grow": "it needs 3 more blocks; 1 of 10 are free, 0 are kept for those before it",
        "wait": "r2 is after it",
    }
    assert decide_again(decision) == decision
    assert explain_decision(decision)


# ---- any facts ----


def seats_of(draw: st.DrawFn) -> tuple[Seat, ...]:
    made = []
    for number in range(draw(st.integers(1, 6))):
        held = draw(st.integers(1, 8))
        most = held + draw(st.integers(0, 8))
        wants = draw(st.integers(held + 1, most)) if most > held and draw(st.booleans()) else 0
        batch, turn = draw(st.booleans()), draw(st.integers(0, 9))
        made.append(
            Seat(f"r{number}", "batch" if batch else "interactive", turn, held, most, draw(st.integers(0, 3)), wants)
        )
    return tuple(msgspec.structs.replace(one, leaving=not one.wants and draw(st.booleans())) for one in made)


@st.composite
def any_facts(draw: st.DrawFn) -> PoolFacts:
    seats = seats_of(draw)
    mine = draw(st.sampled_from(seats))
    blocks = sum(one.held for one in seats) + draw(st.integers(0, 6))
    return PoolFacts(blocks, 16, seats, mine.request_id, mine.held + draw(st.integers(0, 6)), draw(st.integers(0, 3)))


def by_name(facts: PoolFacts, name: str | None) -> Seat:
    return next(one for one in facts.seats if one.request_id == name)


@given(any_facts())
def test_never_more_than_there_is_and_only_the_right_one_goes(facts: PoolFacts) -> None:
    decision, mine = pool.decide(facts), by_name(facts, facts.asks)
    held = sum(one.held for one in facts.seats)
    assert decision.action in {"grow", "wait", "preempt"}
    if decision.action == "grow":
        assert held + max(0, facts.wants - mine.held) <= facts.blocks
    if decision.action != "preempt":
        assert decision.victim is None
        return
    victim = by_name(facts, decision.victim)
    assert victim != mine
    assert victim.preemptions < facts.limit
    assert not victim.leaving
    if victim.priority == "interactive":
        assert mine.priority == "interactive"
    if victim.priority == mine.priority:
        assert victim.turn_us >= mine.turn_us


RANK = {"grow": 0, "wait": 1, "preempt": 2}


@given(any_facts(), st.integers(0, 8))
def test_more_free_blocks_never_make_it_worse(facts: PoolFacts, more: int) -> None:
    roomy = msgspec.structs.replace(facts, blocks=facts.blocks + more)
    before, after = pool.decide(facts), pool.decide(roomy)
    assert RANK[after.action] <= RANK[before.action]
    assert before.action != "wait" or after.action != "preempt"
    for one in facts.seats:
        if one.leaving and not pool.still_needed(facts.blocks, facts.seats, one.request_id):
            assert not pool.still_needed(roomy.blocks, facts.seats, one.request_id)


@given(any_facts())
def test_one_that_holds_its_longest_answer_never_has_to_ask_anybody(facts: PoolFacts) -> None:
    mine = by_name(facts, facts.asks)
    full = msgspec.structs.replace(mine, most=mine.held)
    seats = tuple(full if one is mine else one for one in facts.seats)
    decision = pool.decide(msgspec.structs.replace(facts, seats=seats, wants=full.most))
    assert decision.action == "grow"


# ---- whole lives ----


class Life(msgspec.Struct):
    """A request: tokens of its prompt, of its answer as it will come, and as it may at most come."""

    name: str
    priority: str
    turn: int
    prompt: int
    answer: int
    longest: int
    done: int = 0
    preemptions: int = 0


@st.composite
def some_lives(draw: st.DrawFn) -> list[Life]:
    made = []
    for number in range(draw(st.integers(1, 7))):
        answer = draw(st.integers(1, 120))
        longest = answer + draw(st.integers(0, 120))
        priority = draw(st.sampled_from(["interactive", "interactive", "batch"]))
        made.append(Life(f"r{number}", priority, draw(st.integers(0, 9)), draw(st.integers(1, 150)), answer, longest))
    return made


class Room:
    """A pool by the pure rules alone. Whose turn it is to do something is drawn: nobody is ever woken."""

    def __init__(self, blocks: int, mode: Mode, limit: int, lives: list[Life], draw: random.Random) -> None:
        self.blocks, self.mode, self.limit, self.draw = blocks, mode, limit, draw
        self.queue = sorted(lives, key=lambda life: (life.turn, life.name))
        self.inside: dict[str, tuple[Life, Seat]] = {}
        self.preemptions = 0
        self.changes = 0

    def run(self) -> None:
        while self.queue or self.inside:
            acts = [lambda life=life: self.act(life) for life, _ in self.inside.values()]
            acts.append(self.begin)
            self.draw.shuffle(acts)
            assert any(act() for act in acts), f"nobody can do anything: {self.inside}, {self.queue}"
            self.changes += 1
            held = sum(one.held for _, one in self.inside.values())
            assert 0 <= held <= self.blocks
            assert all(one.held <= one.most for _, one in self.inside.values())

    def begin(self) -> bool:
        """The first that waits outside; nobody overtakes it."""
        if not self.queue:
            return False
        life = self.queue[0]
        seats = tuple(one for _, one in self.inside.values())
        needs = pool.start(
            self.mode,
            tokens=life.prompt + life.done,
            first=16,
            most=life.prompt + life.longest,
            growing=sum(one.held < one.most for one in seats),
            preemptions=life.preemptions,
            limit=self.limit,
        )
        assert needs.takes <= needs.finds
        if needs.finds > pool.unawaited(self.blocks, seats):
            return False
        del self.queue[0]
        most = -(-(life.prompt + life.longest) // 16)
        one = Seat(life.name, life.priority, life.turn, needs.takes, most, life.preemptions)  # type: ignore[arg-type]
        self.inside[life.name] = (life, one)
        return True

    def act(self, life: Life) -> bool:
        """At the end of a chunk; False when nothing came of it."""
        _, one = self.inside[life.name]
        if one.leaving:
            del self.inside[life.name]
            life.preemptions += 1
            self.preemptions += 1
            assert life.preemptions <= self.limit
            self.queue = sorted([*self.queue, life], key=lambda other: (other.turn, other.name))
            return True
        if life.done == life.answer:
            del self.inside[life.name]
            return True
        up_to = min(life.done + 16, life.longest)
        wants = -(-(life.prompt + up_to) // 16)
        self.put(one, wants=wants if wants > one.held else 0)
        seats = tuple(other for _, other in self.inside.values())
        decision = pool.decide(PoolFacts(self.blocks, 16, seats, life.name, wants, self.limit))
        if decision.action == "grow":
            self.put(one, held=max(wants, one.held), wants=0)
            life.done = min(up_to, life.answer)
            return True
        if decision.victim is not None:
            self.put(self.inside[decision.victim][1], leaving=True)
        return decision.victim is not None

    def put(self, one: Seat, **changes: object) -> None:
        life, now = self.inside[one.request_id]
        self.inside[one.request_id] = (life, msgspec.structs.replace(now, **changes))  # type: ignore[arg-type]


def changes_at_most(lives: list[Life], limit: int) -> int:
    """For each start of each: it starts, is asked, leaves, and computes all of its chunks; nothing else may happen."""
    return sum((limit + 1) * (3 + -(-life.answer // 16)) for life in lives)


@given(some_lives(), st.integers(0, 12), st.integers(0, 3), st.randoms(use_true_random=False))
def test_everybody_is_served_in_the_end(lives: list[Life], more: int, limit: int, draw: random.Random) -> None:
    largest = max(-(-(life.prompt + life.longest) // 16) for life in lives)
    room = Room(largest + more, "paged", limit, lives, draw)
    room.run()
    assert all(life.done == life.answer for life in lives)
    assert room.changes <= changes_at_most(lives, limit)
    if limit == 0:
        assert room.preemptions == 0


@given(some_lives(), st.integers(0, 12), st.integers(0, 3), st.randoms(use_true_random=False))
def test_by_longest_answers_nobody_ever_gives_its_place(
    lives: list[Life], more: int, limit: int, draw: random.Random
) -> None:
    largest = max(-(-(life.prompt + life.longest) // 16) for life in lives)
    room = Room(largest + more, "reserve-max", limit, lives, draw)
    room.run()
    assert all(life.done == life.answer for life in lives)
    assert room.preemptions == 0


def test_the_lives_above_do_meet_a_full_pool() -> None:
    """What is proved of giving way would be worth nothing if nobody had to."""
    lives = [Life(f"r{number}", "interactive", number, 20, 150, 200) for number in range(6)]
    room = Room(20, "paged", 2, lives, random.Random(1))
    room.run()
    assert room.preemptions > 0
