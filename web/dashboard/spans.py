"""How a request spent its time, folded from its history: which states it passed, how long it waited and ran."""

from collections.abc import Sequence

import msgspec

from core.events import Checkpointed, Completed, Recorded
from core.machine import apply
from core.state import RequestState
from core.words import SETTLED, Lane, State


class Passed(msgspec.Struct, frozen=True):
    """A stay in one state on one lane, from the event that began it."""

    state: State
    lane: Lane | None
    version: int
    at_us: int
    for_us: int


class Course(msgspec.Struct, frozen=True):
    """`states[i]` is the request after event i + 1. Microseconds; `produced` counts units over all attempts."""

    states: tuple[RequestState, ...]
    passed: tuple[Passed, ...]
    wait_us: int
    run_us: int
    produced: int

    @property
    def rate(self) -> float | None:
        """Units a second while it ran; None where that says nothing."""
        return self.produced / (self.run_us / 1e6) if self.produced and self.run_us > 0 else None


def course(history: Sequence[Recorded], now_us: int) -> Course:
    """The course of a request up to `now_us`. Raises `IllegalEvent` for an illegal history."""
    states: list[RequestState] = []
    stays: list[tuple[State, Lane | None, int, int]] = []
    wait = run = produced = 0
    state: RequestState | None = None
    for index, record in enumerate(history):
        before = state.units if state else 0
        state = apply(state, record.event, stream=record.stream, at_us=record.at_us, attempt=record.attempt)
        states.append(state)
        if isinstance(record.event, Checkpointed | Completed):
            produced += state.units - before
        if not stays or stays[-1][:2] != (state.state, state.lane):
            stays.append((state.state, state.lane, record.version, record.at_us))
        until = history[index + 1].at_us if index + 1 < len(history) else now_us
        spent = max(0, until - record.at_us)
        if state.running:
            run += spent
        elif state.state not in SETTLED:
            wait += spent
    ends = [stay[3] for stay in stays[1:]] + [now_us]
    passed = tuple(Passed(*stay, max(0, end - stay[3])) for stay, end in zip(stays, ends, strict=True))
    return Course(tuple(states), passed, wait, run, produced)
