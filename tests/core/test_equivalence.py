"""Expected numbers are worked out by hand beside each test."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contract import PathFacts, pair_class
from core.equivalence import (
    AGREEMENT,
    AGREEMENT_ALONE,
    DIVERGENCE,
    END,
    LEAST,
    Answer,
    Compared,
    ContractParts,
    Place,
    Probe,
    Totals,
    change,
    compare,
    divergence,
    judge,
    parts_that_differ,
    permits,
    proved,
    totals,
)
from core.words import PairClass

HOST = PathFacts("e/1", "c", "host")
OTHER = PathFacts("e/2", "c", "host")
CARD = PathFacts("e/1", "c", "GPU-1")


def logs(**shares: float) -> dict[int, float]:
    return {ord(name): math.log(share) for name, share in shares.items()}


def found(tokens: int, agreed: int, apart: float | None, *, same: int = 0, prompts: int = 10) -> Totals:
    return Totals(prompts, same, tokens, agreed, apart)


# ---- how far two distributions are apart ----


def test_divergence_by_hand() -> None:
    # 0.5 ln(0.5/0.25) + 0.25 ln(0.25/0.5) + 0.25 ln(0.25/0.25) = 0.25 ln 2
    assert divergence(logs(a=0.5, b=0.25, c=0.25), logs(a=0.25, b=0.5, c=0.25)) == pytest.approx(0.25 * math.log(2))


def test_what_only_one_tells_of_counts_as_the_rest_of_both() -> None:
    # Both tell of a; the rests are 0.2 and 0.4: 0.8 ln(0.8/0.6) + 0.2 ln(0.2/0.4)
    wanted = 0.8 * math.log(0.8 / 0.6) + 0.2 * math.log(0.5)
    assert divergence(logs(a=0.8, b=0.2), logs(a=0.6, c=0.4)) == pytest.approx(wanted)


def test_equal_distributions_are_nothing_apart_and_strangers_are_not_measured() -> None:
    assert divergence(logs(a=0.7, b=0.1), logs(a=0.7, b=0.1)) == 0
    assert divergence(logs(a=1.0), logs(b=1.0)) is None


@given(
    st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6),
    st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6),
    st.integers(1, 6),
)
def test_telling_of_fewer_tokens_never_tells_of_more_divergence(p: list[float], q: list[float], told: int) -> None:
    one = [share / sum(p) for share in p]
    two = [share / sum(q) for share in q]
    whole = sum(a * math.log(a / b) for a, b in zip(one, two, strict=True))
    part = divergence(
        {token: math.log(share) for token, share in enumerate(one[:told])},
        {token: math.log(share) for token, share in enumerate(two[:told])},
    )
    assert part is not None
    assert 0 <= part <= whole + 1e-6


# ---- one prompt ----


def probe(
    said: str, other: str, tops: str, told: list[tuple[dict[int, float], dict[int, float]]] | None = None
) -> Probe:
    """Units are letters; a full stop is the end."""

    def units(text: str) -> tuple[int, ...]:
        return tuple(END if letter == "." else ord(letter) for letter in text)

    pairs = told or [({}, {})] * len(said)
    return Probe(
        "p",
        Answer(units(said)),
        Answer(units(other)),
        tuple(Place(top, one or None) for top, (one, _) in zip(units(said), pairs, strict=True)),
        tuple(Place(top, two or None) for top, (_, two) in zip(units(tops), pairs, strict=True)),
    )


@pytest.mark.parametrize(
    ("said", "other", "differs"),
    [("abc.", "abc.", None), ("abcd", "abxd", 2), ("abc", "abc.", 3), ("ab.", "abc", 2), (".", ".", None)],
)
def test_the_first_unit_that_differs(said: str, other: str, differs: int | None) -> None:
    assert compare(probe(said, other, said)).first_difference == differs


def test_places_are_compared_along_the_sources_answer() -> None:
    """What the target said by itself has no part in it: it went another way after the first word."""
    one = compare(probe("abcd.", "axyz.", "axcd."))
    assert (one.tokens, one.agreed, one.first_difference, one.measured) == (5, 4, 1, 0)


def test_divergence_is_summed_over_the_places_where_both_tell() -> None:
    near = (logs(a=0.5, b=0.5), logs(a=0.25, b=0.75))
    # 0.5 ln 2 + 0.5 ln(2/3)
    each = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    one = compare(probe("aaa", "aaa", "bba", [near, near, (logs(a=1.0), {})]))
    assert (one.tokens, one.agreed, one.measured) == (3, 1, 2)
    assert one.divergence == pytest.approx(2 * each)
    assert totals([one, one]).divergence == pytest.approx(each)
    assert totals([compare(probe("ab", "ab", "ab"))]).divergence is None


# ---- the class ----


def test_identical_is_one_build_on_the_host_one_at_a_time_with_all_answers_equal() -> None:
    whole = found(480, 480, 0.0, same=10)
    assert judge(HOST, HOST, whole).pair == "identical"
    for source, target in ((HOST, OTHER), (CARD, HOST), (CARD, CARD)):
        assert judge(source, target, whole).pair == "faithful", "equal so far is not sure to stay so"
    several = msgspec.structs.replace(HOST, slots=4)
    assert judge(several, HOST, whole).pair == "faithful"
    assert judge(HOST, HOST, found(480, 480, 0.0, same=9)).pair == "faithful"


@pytest.mark.parametrize(
    ("agreed", "apart", "pair"),
    [
        # 95 of 100 and 0.02 nats are the limits; without distributions 97 of 100.
        (950, 0.02, "faithful"),
        (949, 0.02, "none"),
        (950, 0.0201, "none"),
        (1000, 0.5, "none"),
        (970, None, "faithful"),
        (969, None, "none"),
    ],
)
def test_the_limits_of_faithful(agreed: int, apart: float | None, pair: PairClass) -> None:
    assert (AGREEMENT, AGREEMENT_ALONE, DIVERGENCE) == (0.95, 0.97, 0.02)
    verdict = judge(CARD, OTHER, found(1000, agreed, apart))
    assert (verdict.pair, verdict.proves) == (pair, True)
    assert f"{agreed} of 1000" in verdict.reasons[0]


def test_too_little_proves_nothing() -> None:
    few = judge(HOST, HOST, found(LEAST - 1, LEAST - 1, 0.0, same=10))
    assert (few.pair, few.proves) == ("none", False)
    assert f"only {LEAST - 1} tokens" in few.reasons[0]
    assert judge(HOST, HOST, found(LEAST, LEAST, 0.0, same=10)).proves


def test_unequal_contracts_are_none_whatever_was_measured() -> None:
    verdict = judge(HOST, PathFacts("e/1", "d", "host"), found(480, 480, 0.0, same=10))
    assert (verdict.pair, verdict.proves) == ("none", False)
    assert not judge(PathFacts("e", "", "host"), PathFacts("e", "", "host"), found(480, 480, 0.0, same=10)).proves


def test_the_part_that_differs_is_named() -> None:
    one = ContractParts("t", "w", "chat", "Q4_1")
    assert parts_that_differ(one, one) == ()
    assert parts_that_differ(one, ContractParts("t", "x", "chat", "Q8_0")) == ("weights", "quantization")
    assert parts_that_differ(one, ContractParts("u", "w", "", "Q4_1")) == ("tokenizer", "template")


def test_what_the_record_keeps() -> None:
    compared = [
        Compared("a", None, 100, 100, 100, 1.0),
        Compared("b", 7, 120, 118, 100, 3.0),
        Compared("c", 0, 30, 29),
    ]
    event = proved(CARD, OTHER, judge(CARD, OTHER, totals(compared)), compared)
    assert (event.source, event.target, event.contract, event.pair) == ("e/1@GPU-1", "e/2@host", "c", "faithful")
    assert (event.prompts, event.free_same, event.tokens, event.agreed) == (3, 1, 250, 247)
    assert event.divergence == pytest.approx(4.0 / 200)
    assert event.first_difference == (7, 0)


# ---- what it permits ----


def test_which_settings_may_move_a_request_that_has_shown_text() -> None:
    everything = {"auto": True, "identical": True, "boundary": False, "never": False, "gpu-only": False}
    assert permits("identical") == everything
    assert permits("faithful") == everything | {"identical": False}
    assert permits("none") == everything | {"identical": False, "auto": False}


def test_a_pair_that_falls_below_its_class_loses_what_that_permitted() -> None:
    assert change("identical", "faithful").endswith("loses permission for failover `identical`")
    assert change("identical", "none").endswith("loses permission for failover `auto`, `identical`")
    assert change("none", "faithful").endswith("gains permission for failover `auto`")
    assert change("faithful", "faithful") == "the pair was `faithful` before, and still is"


def test_a_proof_lowers_a_pair_that_a_rule_would_trust_and_never_lifts_it() -> None:
    several = msgspec.structs.replace(HOST, slots=4)
    assert pair_class(HOST, HOST, "faithful") == "faithful"
    assert pair_class(HOST, HOST, "none") == "none"
    assert pair_class(several, HOST, "identical") == "faithful"
    assert pair_class(several, HOST, "none") == "none"
