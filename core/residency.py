"""Which models are on the card: load, evict or keep, with reasons. Pure; the supervisor carries it out.

1. A model that work waits for, or that is to be there from the start, is loaded when its bytes are free. For the
   latter nobody makes room.
2. When they are not, the model that has been idle longest makes room: never a pinned one, never one with work under
   way or waiting, none that would free nothing, and only when what can be freed is enough.
3. At most one eviction per `evict_period`; so two models that do not fit together take turns, and do not thrash.
4. What cannot be helped is said: `wait` with the reason.
"""

from typing import Literal

import msgspec


class ModelFacts(msgspec.Struct, frozen=True):
    """A model of a device as the plan sees it. Bytes and seconds."""

    model: str
    load: int
    """At its load peak, if it is not there; what it holds, if it is."""
    resident: bool
    wanted: bool
    """Work waits for it."""
    wished: bool = False
    """It is to be there from the start, if there is room."""
    busy: bool = False
    pinned: bool = False
    idle_s: float = 0.0
    """Since its last work."""


class ResidencyFacts(msgspec.Struct, frozen=True):
    """One device. `available` is what the ledger leaves to be promised."""

    models: tuple[ModelFacts, ...]
    available: int
    since_evict_s: float
    """Since the last eviction there; large when there was none."""
    evict_period_s: float


class Step(msgspec.Struct, frozen=True):
    """What to do about one model, and why."""

    action: Literal["load", "evict", "keep", "wait"]
    model: str
    rule: str
    why: str


def plan(facts: ResidencyFacts) -> tuple[Step, ...]:
    """One step for each model, in their order; at most one of them is an eviction."""
    free = facts.available
    evicting: ModelFacts | None = None
    steps: list[Step] = []
    for model in facts.models:
        if model.resident:
            steps.append(Step("keep", model.model, "resident", "it is loaded"))
        elif not model.wanted and not model.wished:
            steps.append(Step("keep", model.model, "not-wanted", "no work waits for it"))
        elif model.load <= free:
            free -= model.load
            steps.append(Step("load", model.model, "fits", f"{model.load} bytes are needed and free"))
        elif not model.wanted:
            why = f"{model.load} bytes are needed and {free} are free; no work waits for it"
            steps.append(Step("wait", model.model, "no-room-yet", why))
        else:
            victim, step = _make_room(facts, model, free, evicting)
            evicting = victim or evicting
            steps.append(step)
    if evicting is not None:
        why = f"it has been idle for {evicting.idle_s:.0f} s, and others need its {evicting.load} bytes"
        steps = [s if s.model != evicting.model else Step("evict", s.model, "idle-makes-room", why) for s in steps]
    return tuple(steps)


def evictable(models: tuple[ModelFacts, ...]) -> list[ModelFacts]:
    """Models that may make room, the longest idle first."""
    idle = [m for m in models if m.resident and not m.busy and not m.pinned and not m.wanted and m.load > 0]
    return sorted(idle, key=lambda m: (-m.idle_s, m.model))


def _make_room(
    facts: ResidencyFacts, model: ModelFacts, free: int, evicting: ModelFacts | None
) -> tuple[ModelFacts | None, Step]:
    candidates = evictable(facts.models)
    short = f"{model.load} bytes are needed and {free} are free"
    if free + sum(m.load for m in candidates) < model.load:
        return None, Step("wait", model.model, "cannot-make-room", f"{short}; what is idle would not free enough")
    if evicting is not None or facts.since_evict_s < facts.evict_period_s:
        return None, Step("wait", model.model, "one-eviction-at-a-time", f"{short}; room is being made")
    return candidates[0], Step("wait", model.model, "making-room", f"{short}; {candidates[0].model} makes room")
