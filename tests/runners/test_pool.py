"""The pool of a runner: who is told what and when, many threads on a pool too small for them, and what is wasted."""

import random
import threading
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import AllocationFailed
from core.pool import Mode
from runners.pool import Pool

PATIENCE_S = 60.0


def pool_of(blocks: int, *, mode: Mode = "paged", limit: int = 2) -> Pool:
    return Pool(blocks * 16, mode=mode, limit=limit)


def enter(pool: Pool, name: str, tokens: int, most: int = 160, *, preemptions: int = 0, batch: bool = False) -> bool:
    """`most` is ten blocks; the turn is the number in the name."""
    priority = "batch" if batch else "interactive"
    return pool.enter(name, priority=priority, turn_us=int(name[1:]), tokens=tokens, most=most, preemptions=preemptions)


def full(blocks: int = 13) -> Pool:
    """r1 holds 2 blocks and r2 the other 11, when they have begun and grown."""
    pool = pool_of(blocks)
    assert enter(pool, "r1", 16)
    assert enter(pool, "r2", 16, most=208)
    assert pool.grow("r2", (blocks - 2) * 16) is None
    assert pool.held() == blocks
    return pool


# ---- starting ----


def test_what_is_beyond_the_last_whole_block_is_not_used() -> None:
    assert Pool(47, mode="paged", limit=2).blocks == 2
    with pytest.raises(ValueError, match="15 tokens are less than a block of 16"):
        Pool(15, mode="paged", limit=2)


def test_one_starts_with_what_it_fills_and_the_next_block() -> None:
    pool = pool_of(100)
    assert enter(pool, "r1", 100)
    assert pool.held() == 8  # 116 tokens
    assert enter(pool, "r2", 100, preemptions=2)
    assert pool.held() == 18


def test_by_longest_answers_one_starts_with_all_of_it_and_never_asks() -> None:
    pool = pool_of(20, mode="reserve-max")
    assert enter(pool, "r1", 16)
    assert enter(pool, "r2", 16)
    assert pool.held() == 20
    assert not enter(pool, "r3", 16, most=17)
    assert pool.grow("r1", 160) is None
    assert pool.asked("r2") is None


def test_several_claimed_at_once_are_counted_one_after_the_other() -> None:
    pool = pool_of(10)
    assert enter(pool, "r1", 16)
    assert enter(pool, "r2", 16)  # 2 and the room for one that may grow, of 8
    assert not enter(pool, "r3", 16)
    assert pool.held() == 4


def test_a_claim_that_came_to_nothing_may_be_repeated_or_taken_back() -> None:
    pool = pool_of(10)
    assert enter(pool, "r1", 100)
    assert enter(pool, "r1", 90)  # 7 blocks, and the 8 it had are not in its way
    assert pool.held() == 7
    pool.leave("r1")
    pool.leave("r1")
    assert pool.held() == 0


def test_a_former_attempt_that_has_not_left_yet_keeps_its_place() -> None:
    pool = pool_of(10)
    assert enter(pool, "r1", 16)
    pool.fill("r1", 5)
    assert not enter(pool, "r1", 16)
    pool.leave("r1")
    assert enter(pool, "r1", 16)
    assert pool.grow("r1", 17) is None
    assert not enter(pool, "r1", 16)


def test_what_never_fits_fails_for_its_size_at_its_first_question_and_nobody_waits_behind_it() -> None:
    pool = pool_of(10)
    assert enter(pool, "r1", 16, most=161)
    assert pool.held() == 0
    for question in (lambda: pool.asked("r1"), lambda: pool.grow("r1", 17), lambda: pool.fill("r1", 1)):
        with pytest.raises(AllocationFailed, match="set pool_tokens to 176 or more") as caught:
            question()
        assert caught.value.extra == {"asked": 161, "total": 160}
    assert enter(pool, "r2", 140)
    assert pool.grow("r2", 160) is None
    pool.leave("r1")
    pool.leave("r2")
    assert pool.held() == 0


def test_the_first_chunk_is_held_however_long_it_is() -> None:
    pool = pool_of(10)
    assert pool.enter("r1", priority="batch", turn_us=1, tokens=16, most=160, preemptions=0, first=90)
    assert pool.held() == 7  # 106 tokens
    pool.fill("r1", 106)


# ---- growing, and giving way ----


def test_the_plan_of_a_chunk_may_reach_beyond_the_longest_answer() -> None:
    pool = pool_of(10)
    assert enter(pool, "r1", 150)
    assert pool.grow("r1", 170) is None
    assert pool.held() == 10


def test_the_youngest_is_asked_and_hears_of_it_at_its_own_question() -> None:
    pool = full()
    decision = pool.grow("r1", 48)
    assert decision is not None
    assert (decision.action, decision.victim) == ("preempt", "r2")
    assert pool.held() == 13
    assert pool.asked("r1") is None
    assert pool.asked("r2") == decision
    assert pool.grow("r2", 180) == decision
    assert not pool.wait("r1", 48, 0)
    pool.leave("r2")
    assert pool.wait("r1", 48, 0)
    assert pool.grow("r1", 48) is None
    assert pool.held() == 3


def test_the_last_waits_with_nobody_asked_until_blocks_come_free() -> None:
    pool = full()
    decision = pool.grow("r2", 180)
    assert decision is not None
    assert (decision.action, decision.rule) == ("wait", "last-in-turn")
    assert pool.asked("r1") is None
    assert pool.asked("r2") is None
    pool.leave("r1")
    assert pool.grow("r2", 180) is None
    assert pool.held() == 12


def test_one_that_waits_is_told_at_once_that_it_is_to_give_its_place() -> None:
    pool = full()
    assert pool.grow("r2", 180) is not None
    waited = []
    waiter = threading.Thread(target=lambda: waited.append(pool.wait("r2", 180, PATIENCE_S)))
    waiter.start()
    assert pool.grow("r1", 48) is not None
    waiter.join(PATIENCE_S / 2)
    assert waited == [False]
    assert pool.asked("r2") is not None


def test_blocks_that_come_free_wake_whoever_waits_for_them() -> None:
    pool = full()
    assert pool.grow("r1", 48) is not None
    waited = []
    waiter = threading.Thread(target=lambda: waited.append(pool.wait("r1", 48, PATIENCE_S)))
    waiter.start()
    pool.leave("r2")
    waiter.join(PATIENCE_S / 2)
    assert waited == [True]


def test_nobody_else_is_asked_while_enough_is_on_its_way() -> None:
    pool = pool_of(14)
    for name in ("r1", "r2", "r3"):
        assert enter(pool, name, 16)
        if name != "r3":
            assert pool.grow(name, 16) is None
    assert pool.grow("r3", 160) is None
    assert pool.held() == 14
    first, second = pool.grow("r1", 48), pool.grow("r2", 48)
    assert first is not None
    assert first.victim == "r3"
    assert second is not None
    assert (second.action, second.rule) == ("wait", "blocks-on-their-way")
    assert pool.asked("r2") is None
    pool.leave("r3")
    assert pool.grow("r1", 48) is None
    assert pool.grow("r2", 48) is None


def test_one_whose_blocks_are_not_enough_is_not_the_only_one_asked() -> None:
    pool = pool_of(14)
    for name in ("r1", "r2", "r3"):
        assert enter(pool, name, 16)
    assert pool.grow("r1", 160) is None
    assert enter(pool, "r0", 16) is False
    # r1 holds 10 blocks, r2 and r3 hold 2 each: whoever is before them and wants 3 more needs both.
    pool.leave("r1")
    assert enter(pool, "r1", 16)
    assert pool.grow("r2", 128) is None
    assert pool.held() == 12
    assert pool.grow("r1", 96) is not None  # 4 more, 2 are free, r3 has 2
    assert pool.asked("r3") is not None
    assert pool.asked("r2") is None
    assert pool.grow("r1", 112) is not None  # 5 more
    assert pool.asked("r2") is not None


def test_one_that_has_not_heard_of_it_stays_when_it_is_not_needed_any_more() -> None:
    pool = full()
    assert pool.grow("r1", 48) is not None
    pool.leave("r1")
    assert pool.asked("r2") is None
    assert pool.grow("r2", 180) is None


def test_one_that_has_heard_of_it_leaves_for_the_next() -> None:
    pool = pool_of(14)
    for name in ("r1", "r2", "r3"):
        assert enter(pool, name, 16)
    assert pool.grow("r3", 160) is None
    assert pool.grow("r1", 48) is not None
    told = pool.asked("r3")
    assert told is not None
    pool.leave("r1")
    assert pool.asked("r3") == told
    assert pool.grow("r3", 160) == told


def test_hearing_of_it_from_growing_is_the_same() -> None:
    pool = full()
    decision = pool.grow("r1", 48)
    assert pool.grow("r2", 176) == decision
    pool.leave("r1")
    assert pool.asked("r2") == decision


def test_one_that_asks_for_less_than_before_asks_nobody_any_more() -> None:
    pool = full()
    assert pool.grow("r1", 48) is not None
    assert pool.grow("r1", 32) is None
    assert pool.asked("r2") is None


def test_of_two_that_were_asked_the_one_before_stays() -> None:
    pool = pool_of(20)
    for name in ("r4", "r3", "r1"):
        assert enter(pool, name, 16)
    assert enter(pool, "r2", 16, most=224)
    assert pool.grow("r2", 224) is None
    assert pool.held() == 20
    assert pool.grow("r1", 80) is not None  # 3 more: r4 and r3 have 2 each
    assert pool.grow("r1", 64) is not None  # 2 more
    assert pool.asked("r4") is not None
    assert pool.asked("r3") is None
    assert pool.asked("r2") is None


def test_one_that_is_to_leave_gets_nothing_more() -> None:
    pool = pool_of(16)
    assert enter(pool, "r3", 16, most=48, preemptions=2)  # 3 blocks, which it keeps
    assert enter(pool, "r1", 16)
    assert enter(pool, "r2", 16, most=208)
    assert pool.grow("r2", 176) is None
    assert pool.grow("r2", 192) is not None
    assert pool.grow("r1", 48) is not None
    told = pool.asked("r2")
    assert told is not None
    pool.leave("r3")
    assert pool.wait("r1", 48, 0)
    assert pool.held() == 3 + 11
    assert not pool.wait("r2", 192, 0)
    assert not pool.wait("r2", 176, 0)  # though it holds so much
    assert pool.grow("r2", 192) == told


def test_one_that_stays_after_all_gets_the_blocks_it_waited_for() -> None:
    pool = full()
    assert pool.grow("r2", 180) is not None
    assert pool.grow("r1", 48) is not None
    pool.leave("r1")
    assert pool.wait("r2", 180, 0)
    assert pool.asked("r2") is None


def test_while_anybody_waits_nobody_starts() -> None:
    pool = full()
    assert pool.grow("r2", 208) is not None
    pool.leave("r1")
    assert pool.grow("r2", 208) is None
    assert pool.held() == 13
    pool = pool_of(14)
    for name in ("r1", "r2"):
        assert enter(pool, name, 16)
    assert pool.grow("r1", 160) is None
    assert pool.grow("r2", 112) is not None  # 5 more of 2 that are free
    assert not enter(pool, "r3", 1, most=16)


def test_interactive_work_is_not_asked_for_the_sake_of_batch_work() -> None:
    pool = pool_of(14)
    assert enter(pool, "r1", 16, batch=True)
    assert enter(pool, "r2", 16)
    assert pool.grow("r2", 160) is None
    decision = pool.grow("r1", 80)
    assert decision is not None
    assert decision.victim is None
    assert pool.asked("r2") is None


# ---- what is wasted ----


def test_waste_is_the_share_of_held_cells_without_a_token_over_time() -> None:
    now = [0.0]
    pool = Pool(320, mode="paged", limit=2, clock=lambda: now[0])
    assert pool.waste() == 0
    now[0] = 5.0  # nothing is held: nothing is wasted
    assert enter(pool, "r1", 16)  # 2 blocks: 32 cells
    now[0] = 6.0  # 32 cell seconds, none filled
    pool.fill("r1", 16)
    assert pool.filled() == 16
    now[0] = 8.0  # 64 more, 32 filled
    assert pool.waste() == pytest.approx(1 - 32 / 96)
    assert pool.grow("r1", 48) is None  # 3 blocks
    pool.fill("r1", 48)
    now[0] = 9.0  # 48 more, all filled
    assert pool.grow("r1", 64) is None  # 4 blocks
    now[0] = 11.0  # 128 more, 96 filled
    pool.leave("r1")
    now[0] = 100.0
    assert pool.waste() == pytest.approx(1 - (32 + 48 + 96) / (96 + 48 + 128))
    assert (pool.held(), pool.filled()) == (0, 0)


def test_more_than_its_blocks_is_never_filled() -> None:
    pool = pool_of(10)
    assert enter(pool, "r1", 16)
    pool.fill("r1", 32)
    with pytest.raises(AssertionError, match="r1 filled 33 tokens of 2 blocks"):
        pool.fill("r1", 33)


# ---- whole lives ----


class Life(msgspec.Struct):
    """A request: tokens of its prompt, of its answer as it will come, and as it may at most come."""

    name: str
    batch: bool
    prompt: int
    answer: int
    longest: int
    done: int = 0
    preemptions: int = 0

    @property
    def most(self) -> int:
        return self.prompt + self.longest

    def enter(self, pool: Pool) -> bool:
        return enter(
            pool, self.name, self.prompt + self.done, self.most, preemptions=self.preemptions, batch=self.batch
        )

    def chunk_ends(self) -> int:
        return self.prompt + min(self.done + 16, self.longest)


@st.composite
def some_lives(draw: st.DrawFn) -> list[Life]:
    made = []
    for number in range(draw(st.integers(1, 7))):
        answer = draw(st.integers(1, 120))
        longest = answer + draw(st.integers(0, 120))
        made.append(Life(f"r{number}", draw(st.booleans()), draw(st.integers(1, 150)), answer, longest))
    return made


def blocks_for(lives: list[Life]) -> int:
    """The largest alone."""
    return max(-(-life.most // 16) for life in lives)


@given(some_lives(), st.integers(0, 12), st.integers(0, 3), st.randoms(use_true_random=False))
def test_in_any_order_of_events_everybody_is_served(
    lives: list[Life], more: int, limit: int, draw: random.Random
) -> None:
    """One thread, no time: what happens next is drawn, and something always can."""
    pool = pool_of(blocks_for(lives) + more, limit=limit)
    queue, inside, told = list(lives), list[Life](), set[str]()

    def begin() -> bool:
        if not queue or not queue[0].enter(pool):
            return False
        inside.append(queue.pop(0))
        return True

    def act(life: Life) -> bool:
        if draw.random() < 0.5 and pool.asked(life.name) is not None:
            told.add(life.name)
        if life.done == life.answer:
            inside.remove(life)
            pool.leave(life.name)
            told.discard(life.name)
            return True
        decision = pool.grow(life.name, life.chunk_ends())
        if decision is None:
            assert life.name not in told
            life.done = min(life.done + 16, life.answer)
            pool.fill(life.name, life.prompt + life.done)
        elif decision.victim == life.name:
            inside.remove(life)
            pool.leave(life.name)
            told.discard(life.name)
            life.preemptions += 1
            assert life.preemptions <= limit
            queue.append(life)
            queue.sort(key=lambda other: int(other.name[1:]))
        return decision is None or decision.victim == life.name

    while queue or inside:
        acts = [lambda life=life: act(life) for life in inside]
        acts.append(begin)
        draw.shuffle(acts)
        # To ask somebody is all that some can do; then that one can go on.
        assert any(one() for one in acts + acts), f"nobody can do anything: {inside}, {queue}"
        assert 0 <= pool.filled() <= 16 * pool.held()
        assert pool.held() <= pool.blocks
    assert all(life.done == life.answer for life in lives)
    assert (pool.held(), pool.filled()) == (0, 0)


class Cells:
    """The cache itself, as an engine has it: so many cells, and no more."""

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, int] = {}
        self._size = size
        self.most = 0

    def put(self, name: str, tokens: int) -> None:
        with self._lock:
            self._of[name] = tokens
            self.most = max(self.most, sum(self._of.values()))
            assert self.most <= self._size, f"the cache is full: {self._of}"


class Desk:
    """Eight slots, each a thread that takes the first request up and works on it, as a runner does."""

    def __init__(self, pool: Pool, lives: list[Life], limit: int) -> None:
        self.pool = pool
        self.limit = limit
        self.cells = Cells(pool.blocks * 16)
        self.queue = list(lives)
        self.claiming = threading.Lock()
        self.to_do = len(lives)
        self.ended: list[str] = []
        self.wrong: list[BaseException] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self.slot, args=(n,), daemon=True) for n in range(8)]
        for thread in threads:
            thread.start()
        give_up = time.monotonic() + PATIENCE_S
        for thread in threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        assert self.wrong == []
        assert not any(thread.is_alive() for thread in threads), f"stuck: {self.queue}, {self.ended}"

    def slot(self, number: int) -> None:
        draw = random.Random(number)
        try:
            while self.to_do and not self.wrong:
                life = self.claim()
                if life is None:
                    time.sleep(0.001)
                else:
                    self.work(life, draw)
        except BaseException as error:  # noqa: BLE001 -- told to the test
            self.wrong.append(error)

    def claim(self) -> Life | None:
        with self.claiming:
            if not self.queue or not self.queue[0].enter(self.pool):
                return None
            return self.queue.pop(0)

    def work(self, life: Life, draw: random.Random) -> None:
        for tokens in range(0, life.prompt + life.done, 32):
            self.cells.put(life.name, tokens)
            self.pool.fill(life.name, tokens)
            if self.pool.asked(life.name) is not None:
                self.give_way(life)
                return
        while life.done < life.answer:
            wanted = life.chunk_ends()
            while (decision := self.pool.grow(life.name, wanted)) is not None:
                if decision.victim == life.name:
                    self.give_way(life)
                    return
                self.pool.wait(life.name, wanted, 0.05)
            for _ in range(min(16, life.answer - life.done)):
                life.done += 1
                self.cells.put(life.name, life.prompt + life.done)
                self.pool.fill(life.name, life.prompt + life.done)
            time.sleep(draw.choice((0, 0, 0.0005)))
            assert 0 <= self.pool.filled() <= self.pool.blocks * 16
            assert self.pool.held() <= self.pool.blocks
        self.leave(life)
        with self.claiming:
            self.ended.append(life.name)
            self.to_do -= 1

    def give_way(self, life: Life) -> None:
        self.leave(life)
        life.preemptions += 1
        assert life.preemptions <= self.limit
        with self.claiming:
            self.queue.append(life)
            self.queue.sort(key=lambda other: int(other.name[1:]))

    def leave(self, life: Life) -> None:
        self.cells.put(life.name, 0)
        self.pool.leave(life.name)


def lives_by(seed: int, count: int) -> list[Life]:
    draw = random.Random(seed)
    lives = []
    for number in range(count):
        answer = draw.randint(20, 300)
        longest = answer * draw.randint(2, 4)
        lives.append(Life(f"r{number}", draw.random() < 0.25, draw.randint(10, 200), answer, longest))
    return lives


@pytest.mark.parametrize("seed", range(5))
def test_eight_threads_on_a_pool_for_three_all_complete(seed: int) -> None:
    lives = lives_by(seed, 60)
    blocks = max(3 * sum(life.prompt + life.answer for life in lives) // len(lives) // 16, blocks_for(lives))
    desk = Desk(pool_of(blocks), lives, limit=2)
    desk.run()
    assert sorted(desk.ended) == sorted(life.name for life in lives)
    assert all(life.done == life.answer for life in lives)
    assert (desk.pool.held(), desk.pool.filled()) == (0, 0)
    assert 0 < desk.pool.waste() < 1


def test_eight_threads_by_longest_answers_never_give_way() -> None:
    lives = lives_by(4, 16)
    desk = Desk(pool_of(blocks_for(lives), mode="reserve-max"), lives, limit=0)
    desk.run()
    assert sorted(desk.ended) == sorted(life.name for life in lives)
    assert all(life.preemptions == 0 for life in lives)
