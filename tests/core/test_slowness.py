"""What is slow, by hand: 100 units a second are usual, measured over 640 units, short contexts, alone, 4 threads."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import slowness
from core.slowness import Measured, Spell, Usual

USUAL = Usual("engine/1", 100.0, 640, 500.0, 4, 1.0)
FACTOR = 0.2


def chunk(tps: float, *, units: int = 10, context: int = 500, threads: int = 4, at_once: int = 1) -> Measured:
    return Measured(units, units / tps, context, threads, at_once)


@pytest.mark.parametrize(
    ("usual", "seen", "expected"),
    [
        (USUAL, chunk(1), 100.0),
        (None, chunk(1), None),
        (msgspec.structs.replace(USUAL, units=63), chunk(1), None),
        (USUAL, chunk(1, threads=3), None),
        (USUAL, chunk(1, threads=8), 100.0),
        (USUAL, chunk(1, context=2048), 100.0),
        (USUAL, chunk(1, context=20480), 10.0),
        (msgspec.structs.replace(USUAL, context=20480.0), chunk(1, context=40960), 50.0),
        (msgspec.structs.replace(USUAL, context=20480.0), chunk(1, context=10), 100.0),
        (USUAL, chunk(1, at_once=4), 25.0),
        (msgspec.structs.replace(USUAL, at_once=4.0), chunk(1, at_once=1), 100.0),
        (msgspec.structs.replace(USUAL, at_once=4.0), chunk(1, at_once=8), 50.0),
    ],
    ids=[
        "usual",
        "unknown",
        "too little measured",
        "fewer threads",
        "more threads",
        "short",
        "ten times as long",
        "twice as long",
        "shorter",
        "four at once",
        "alone",
        "eight for four",
    ],
)
def test_what_may_be_expected(usual: Usual | None, seen: Measured, expected: float | None) -> None:
    assert slowness.expected(usual, seen) == expected


def spell_of(*chunks: Measured, usual: Usual | None = USUAL) -> Spell:
    spell = Spell()
    for one in chunks:
        spell = slowness.after(spell, one, usual, FACTOR)
    return spell


def test_three_slow_chunks_of_three_seconds_are_slow() -> None:
    spell = spell_of(chunk(10), chunk(10), chunk(10))  # a second each, at half of a fifth
    assert (spell.chunks, spell.units, spell.took_s, spell.spent_s, spell.tps) == (3, 30, 3.0, 3.0, 10.0)
    assert slowness.slow(spell, 3.0)
    assert not slowness.slow(spell, 3.1)
    assert not slowness.slow(spell_of(chunk(1, units=100), chunk(1, units=100)), 3.0), "two hiccups, however long"


def test_one_chunk_that_is_not_slow_ends_it() -> None:
    assert spell_of(chunk(10), chunk(10), chunk(20)) == Spell(), "a fifth is enough"
    assert spell_of(chunk(10), chunk(10), chunk(10, threads=1)) == Spell(), "other threads, other circumstances"


def test_time_of_several_at_once_counts_once() -> None:
    spell = spell_of(*[chunk(2, at_once=4)] * 4)  # 5 s each, all at the same time; 25 are expected
    assert (spell.took_s, spell.spent_s) == (20.0, 5.0)


def test_nothing_is_slow_where_nothing_is_known_or_it_is_switched_off() -> None:
    assert spell_of(chunk(0.01), chunk(0.01), usual=None) == Spell()
    assert slowness.after(Spell(), chunk(0.01), USUAL, 0.0) == Spell()


def test_the_usual_rate_rises_quickly_and_falls_slowly() -> None:
    assert slowness.learn(USUAL, "engine/1", chunk(200)).tps == pytest.approx(130.0)
    assert slowness.learn(USUAL, "engine/1", chunk(50)).tps == pytest.approx(95.0)
    assert slowness.learn(USUAL, "engine/1", chunk(50, threads=2)) == USUAL, "what fewer threads do says nothing"
    young = msgspec.structs.replace(USUAL, units=10)
    assert slowness.learn(young, "engine/1", chunk(50)).tps == pytest.approx(85.0)


def test_another_build_begins_anew() -> None:
    after = slowness.learn(USUAL, "engine/2", chunk(7, units=5))
    assert after == Usual("engine/2", 7.0, 5, 500.0, 4, 1.0)
    assert slowness.expected(after, chunk(1)) is None


def held(tps: float, units: int = 10) -> Measured:
    return msgspec.structs.replace(chunk(tps, units=units), held=True)


def test_what_is_held_to_a_grammar_is_compared_with_its_like_only() -> None:
    """20 units a second are usual under a grammar, a fifth of what is usual without one."""
    both = msgspec.structs.replace(USUAL, held=Usual("engine/1", 20.0, 640, 500.0, 4, 1.0))
    assert (slowness.expected(both, held(1)), slowness.expected(both, chunk(1))) == (20.0, 100.0)
    assert spell_of(*[held(19)] * 9, usual=both) == Spell(), "a plain one at 19 would be slow"
    assert spell_of(*[held(4)] * 9, usual=both) == Spell(), "a fifth of its own usual rate is enough"
    assert spell_of(*[held(3.9)] * 3, usual=both).expected_tps == 20.0
    assert spell_of(chunk(10), chunk(10), chunk(10), usual=both).expected_tps == 100.0


def test_where_none_was_held_to_a_grammar_yet_such_a_one_says_nothing() -> None:
    """A batch of answers by a schema at a tenth of the usual rate is no slow lane, and no excuse for one either."""
    assert spell_of(*[held(10)] * 9) == Spell()
    assert spell_of(chunk(10), held(10), chunk(10), held(10), chunk(10)).chunks == 3


def test_the_two_rates_are_learned_apart() -> None:
    after = slowness.learn(USUAL, "engine/1", held(20, units=70))
    assert after == msgspec.structs.replace(USUAL, held=Usual("engine/1", 20.0, 70, 500.0, 4, 1.0))
    assert slowness.learn(after, "engine/1", chunk(200)).held == after.held
    first = slowness.learn(None, "engine/1", held(20, units=70))
    assert (slowness.expected(first, chunk(1)), slowness.expected(first, held(1))) == (None, 20.0)
    assert slowness.learn(first, "engine/1", chunk(100, units=640)) == msgspec.structs.replace(USUAL, held=first.held)
    assert slowness.learn(after, "engine/2", chunk(7, units=5)).held is None


def test_what_was_kept_before_grammars_were_told_apart_is_read_as_it_was() -> None:
    old = b'{"engine":"engine/1","tps":100.0,"units":640,"context":500.0,"threads":4,"at_once":1.0}'
    assert msgspec.json.decode(old, type=Usual) == USUAL
    assert msgspec.json.encode(USUAL) == old


@given(st.floats(1.0, 1e4), st.floats(0.0, 1e5), st.integers(1, 10**6), st.floats(0.0, 1.0), st.integers(500, 5000))
def test_a_rate_that_falls_with_the_context_is_never_slow(
    base_s: float, measured: float, context: int, share: float, factor: int
) -> None:
    """A token costs a part that stays and a part that grows with the context; nothing else changes."""
    per_token = share / max(measured, slowness.SHORT) * base_s
    rest = (1 - share) * base_s

    def tps(length: float) -> float:
        return 1.0 / (rest + per_token * max(length, slowness.SHORT))

    usual = Usual("e", tps(measured), 1000, measured)
    seen = Measured(factor, factor / tps(context), context)
    assert slowness.after(Spell(), seen, usual, 0.9) == Spell()


@pytest.mark.parametrize(
    ("took_us", "recorded_us", "factor", "slow"),
    [
        (5_000_001, 1_000_000, 0.2, True),
        (5_000_000, 1_000_000, 0.2, False),
        (260_000, 1_000, 0.2, True),
        (240_000, 1_000, 0.2, False),
        (9_000_000, 1_000, 0.0, False),
    ],
)
def test_a_slow_canary(took_us: int, recorded_us: int, factor: float, slow: bool) -> None:
    assert slowness.canary_slow(took_us, recorded_us, factor) is slow
