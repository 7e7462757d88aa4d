"""A cache shared in blocks beside one shared by longest answers: the same requests through the real pool, step by step.

No engine computes here: a step is the time in which every slot evaluates one token of an answer, or up to `PREFILL` of
a prompt. Nothing is saved when a place is given up, so all that was evaluated is evaluated again: the worst case.
"""

import heapq
import random
from collections.abc import Iterator

import msgspec

from bench.numbers import Figure
from core.chunks import chunk_size
from core.policy import Policy
from core.pool import BLOCK, Mode
from runners.pool import Pool

SIZES = ((16, 8192), (8, 4096))
"""Slots, and the tokens they share."""
CHUNK = 16
PREFILL = 256
CONTEXT = 4096
SEED = 20


class Job(msgspec.Struct):
    """A request: its lengths, and how far it is."""

    turn: int
    prompt: int
    answer: int
    """Tokens until the model ends it."""
    longest: int
    """Tokens that were asked for at most."""
    done: int = 0
    preemptions: int = 0
    evaluated: int = 0
    boundary: int = 0
    """Units up to which blocks are held."""

    @property
    def name(self) -> str:
        """As the pool knows it."""
        return f"r{self.turn}"


class Outcome(msgspec.Struct):
    """What a whole trace came to."""

    steps: int = 0
    waste: float = 0.0
    preemptions: int = 0
    again: int = 0
    """Tokens that were evaluated a second time."""
    evaluated: int = 0
    """All together."""
    held: float = 0.0
    """Sum over the steps of the share of the blocks that was held."""


def trace(count: int) -> Iterator[Job]:
    """Lengths as people have them: many short and some long; room for the answer two to four times what it takes."""
    draw = random.Random(SEED)
    for turn in range(count):
        prompt = min(CONTEXT // 2, 16 + int(draw.lognormvariate(5.6, 0.8)))
        answer = min(CONTEXT // 8, 8 + int(draw.lognormvariate(5.4, 0.7)))
        yield Job(turn, prompt, answer, int(answer * draw.uniform(2, 4)))


class Machine:
    """Slots over a pool, driven until all is done."""

    def __init__(self, jobs: list[Job], mode: Mode, slots: int, cells: int) -> None:
        self.now = 0
        self.size = slots
        limit = Policy().preempt_limit
        self.pool = Pool(cells, mode=mode, limit=limit, clock=lambda: float(self.now))
        self.queue = [(job.turn, job) for job in jobs]
        self.slots: list[Job] = []
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """All requests, to their ends."""
        while self.queue or self.slots:
            while self.queue and len(self.slots) < self.size and self.enter(self.queue[0][1]):
                self.slots.append(heapq.heappop(self.queue)[1])
            self.slots = [job for job in self.slots if self.step(job)]
            self.outcome.held += self.pool.held() / self.pool.blocks
            self.now += 1
        self.outcome.steps = self.now
        self.outcome.waste = self.pool.waste()
        return self.outcome

    def enter(self, job: Job) -> bool:
        """Whether it could start."""
        job.evaluated = 0
        first = min(chunk_size(job.done, CHUNK), job.longest - job.done)
        job.boundary = job.done + first
        return self.pool.enter(
            job.name,
            priority="interactive",
            turn_us=job.turn,
            tokens=job.prompt + job.done,
            most=job.prompt + job.longest,
            preemptions=job.preemptions,
            first=first,
        )

    def step(self, job: Job) -> bool:
        """One step of a slot; False when it is free again."""
        known = job.prompt + job.done
        if job.evaluated < known:
            if self.pool.asked(job.name) is not None:
                return self.give_way(job)
            self.evaluate(job, min(PREFILL, known - job.evaluated))
            return True
        if job.done == job.answer:
            self.pool.leave(job.name)
            return False
        if job.done == job.boundary:
            up_to = job.done + min(chunk_size(job.done, CHUNK), job.longest - job.done)
            decision = self.pool.grow(job.name, job.prompt + up_to)
            if decision is not None and decision.victim == job.name:
                return self.give_way(job)
            if decision is not None:
                return True  # it waits where it is, and asks again in the next step
            job.boundary = up_to
        job.done += 1
        self.evaluate(job, 1)
        return True

    def evaluate(self, job: Job, tokens: int) -> None:
        """Put tokens into the cache."""
        job.evaluated += tokens
        self.outcome.evaluated += tokens
        self.pool.fill(job.name, job.evaluated)

    def give_way(self, job: Job) -> bool:
        """Back into the queue, at its old turn."""
        self.outcome.preemptions += 1
        self.outcome.again += job.evaluated
        job.preemptions += 1
        self.pool.leave(job.name)
        heapq.heappush(self.queue, (job.turn, job))
        return False


def both_ways(jobs: list[Job], slots: int, cells: int) -> tuple[Outcome, Outcome]:
    """The same requests in blocks, and by longest answers."""
    paged = Machine(copies(jobs), "paged", slots, cells).run()
    return paged, Machine(copies(jobs), "reserve-max", slots, cells).run()


def copies(jobs: list[Job]) -> list[Job]:
    return [msgspec.structs.replace(job) for job in jobs]


def measure(*, quick: bool) -> list[Figure]:
    """For each size: the share of held cells without a token, what gets done, and what giving way costs."""
    count = 400 if quick else 2000
    jobs = list(trace(count))
    mean = sum(job.prompt + job.answer for job in jobs) / count
    assert mean >= 600
    figures = []
    for slots, cells in SIZES:
        paged, whole = both_ways(jobs, slots, cells)
        place = f"{slots} slots on {cells:,} cells, {count:,} requests of {mean:,.0f} tokens"
        rate, before = (count * 1000 / outcome.steps for outcome in (paged, whole))
        figures += [
            Figure(
                f"waste of a cache shared in blocks of {BLOCK}: {place}",
                f"{paged.waste:.1%} of the held cells; {paged.held / paged.steps:.0%} of the blocks held",
                f"by longest answers {whole.waste:.1%}; {whole.held / whole.steps:.0%} held",
                f"{paged.waste / whole.waste:.2f} of it",
                "≤ 4%",
                met=paged.waste <= 0.04,
            ),
            Figure(
                "the same: requests finished in 1,000 steps, nothing saved when a place is given up",
                f"{rate:.1f}; a place was given up {paged.preemptions:,} times, "
                f"{paged.again / paged.evaluated:.1%} of all tokens computed again",
                f"by longest answers {before:.1f}",
                f"{rate / before:.2f} times",
                "-",
                met=None,
            ),
        ]
    return figures
