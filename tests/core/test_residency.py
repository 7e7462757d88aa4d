"""Which models are on the card: what is loaded, who makes room, who never does, and that it does not thrash."""

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from core.residency import ModelFacts, ResidencyFacts, Step, evictable, plan

GIB = 1 << 30
ROOM = 8 * GIB


def model(name: str, **changes: object) -> ModelFacts:
    return msgspec.structs.replace(ModelFacts(name, 3 * GIB, False, False), **changes)  # type: ignore[arg-type]


def steps(*models: ModelFacts, free: int, since_s: float = 1e9, period_s: float = 10.0) -> dict[str, tuple[str, str]]:
    made = plan(ResidencyFacts(models, free, since_s, period_s))
    assert [step.model for step in made] == [one.model for one in models]
    assert all(" " in step.why for step in made)
    return {step.model: (step.action, step.rule) for step in made}


def test_from_the_start_as_many_are_loaded_as_fit_and_nobody_makes_room_for_the_rest() -> None:
    wished = [model(name, wished=True) for name in "abcde"]
    made = steps(*wished, free=ROOM)
    assert [made[name] for name in "ab"] == [("load", "fits")] * 2
    assert [made[name] for name in "cde"] == [("wait", "no-room-yet")] * 3
    there = [model(name, resident=True, idle_s=100.0) for name in "ab"]
    made = steps(*there, model("c", wished=True), free=2 * GIB)
    assert made["c"] == ("wait", "no-room-yet")
    assert made["a"][0] == made["b"][0] == "keep"


def test_exactly_what_is_free_is_enough_and_a_byte_less_is_not() -> None:
    assert steps(model("a", wanted=True), free=3 * GIB) == {"a": ("load", "fits")}
    assert steps(model("a", wanted=True), free=3 * GIB - 1) == {"a": ("wait", "cannot-make-room")}


def test_the_longest_idle_makes_room() -> None:
    made = steps(
        model("a", resident=True, idle_s=10.0),
        model("b", resident=True, idle_s=90.0),
        model("c", wanted=True),
        free=GIB,
    )
    assert made == {"a": ("keep", "resident"), "b": ("evict", "idle-makes-room"), "c": ("wait", "making-room")}


def test_never_a_busy_a_wanted_or_a_pinned_one_and_none_that_frees_nothing() -> None:
    kept = [
        model("busy", resident=True, idle_s=99.0, busy=True),
        model("wanted", resident=True, idle_s=99.0, wanted=True),
        model("pinned", resident=True, idle_s=99.0, pinned=True),
        model("empty", resident=True, idle_s=99.0, load=0),
    ]
    made = steps(*kept, model("new", wanted=True), free=0)
    assert made["new"] == ("wait", "cannot-make-room")
    assert {made[one.model][0] for one in kept} == {"keep"}


def test_nobody_is_unloaded_when_it_would_not_be_enough() -> None:
    made = steps(model("a", resident=True, idle_s=9.0, load=GIB), model("new", wanted=True), free=GIB)
    assert made == {"a": ("keep", "resident"), "new": ("wait", "cannot-make-room")}


def test_one_eviction_a_period_however_many_want_room() -> None:
    there = [model(name, resident=True, idle_s=50.0) for name in "ab"]
    wanting = [model(name, wanted=True) for name in "cd"]
    made = steps(*there, *wanting, free=0)
    assert sorted(action for action, _ in made.values()) == ["evict", "keep", "wait", "wait"]
    made = steps(*there, *wanting, free=0, since_s=9.9)
    assert {action for action, _ in made.values()} == {"keep", "wait"}
    assert made["c"] == ("wait", "one-eviction-at-a-time")


MODELS = st.lists(
    st.builds(
        ModelFacts,
        model=st.just("m"),
        load=st.integers(0, 4 * GIB),
        resident=st.booleans(),
        wanted=st.booleans(),
        wished=st.booleans(),
        busy=st.booleans(),
        pinned=st.booleans(),
        idle_s=st.floats(0, 1000),
    ),
    max_size=6,
).map(lambda models: tuple(msgspec.structs.replace(m, model=f"m{n}") for n, m in enumerate(models)))


@given(MODELS, st.integers(0, 12 * GIB), st.sampled_from([0.0, 1e9]))
def test_a_plan_never_loads_more_than_is_free_and_never_harms_work(
    models: tuple[ModelFacts, ...], free: int, since_s: float
) -> None:
    made = plan(ResidencyFacts(models, free, since_s, 10.0))
    by_name = {one.model: one for one in models}
    assert sum(by_name[step.model].load for step in made if step.action == "load") <= free
    evicted = [by_name[step.model] for step in made if step.action == "evict"]
    assert len(evicted) <= 1
    assert not evicted or since_s > 0
    for one in evicted:
        assert one.resident
        assert one.load > 0
        assert not one.busy
        assert not one.wanted
        assert not one.pinned


def test_five_models_under_mixed_demand_take_turns_without_thrash() -> None:
    """An hour, one tick a second. Each has work for half a minute in turn; a load takes effect at once."""
    names = ["a", "b", "c", "d", "e"]
    there: dict[str, int] = {}
    last_work = dict.fromkeys(names, 0)
    last_evict = -1_000_000
    evictions: list[tuple[int, Step]] = []
    served: set[str] = set()
    for now in range(3600):
        wanted = {names[now // 30 % 5]}
        for name in wanted:
            last_work[name] = now
        facts = ResidencyFacts(
            tuple(
                ModelFacts(name, 3 * GIB, name in there, name in wanted, idle_s=float(now - last_work[name]))
                for name in names
            ),
            ROOM - sum(there.values()),
            float(now - last_evict),
            10.0,
        )
        for step in plan(facts):
            if step.action == "load":
                there[step.model] = 3 * GIB
            elif step.action == "evict":
                assert step.model not in wanted
                del there[step.model]
                last_evict = now
                evictions.append((now, step))
        assert sum(there.values()) <= ROOM
        served |= wanted & there.keys()
    assert served == set(names)
    assert len(evictions) <= 3600 // 30  # one for each change of demand, not more
    assert all(later - earlier >= 10 for (earlier, _), (later, _) in pairwise(evictions))


def test_who_may_make_room_is_in_the_order_of_idleness() -> None:
    models = (model("a", resident=True, idle_s=1.0), model("b", resident=True, idle_s=5.0), model("c"))
    assert [one.model for one in evictable(models)] == ["b", "a"]
