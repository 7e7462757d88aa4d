"""What of a device may be promised: the arithmetic case by case, and what holds for any history of promises."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import ledger
from core.ledger import DeviceFacts, Holder

MIB = 1 << 20
GIB = 1 << 30


def card(**changes: object) -> DeviceFacts:
    plain = DeviceFacts("gpu-0", "ok", 8 * GIB, 0, 0, 0, age_s=0.1, margin=512 * MIB)
    return msgspec.structs.replace(plain, **changes)  # type: ignore[arg-type]


def test_one_pot_of_121_gib_of_which_40_are_available() -> None:
    """A device without memory of its own: 81 used, 12 the host's floor, 28 left; 20 of these are for the CPU lane."""
    pot = card(total=121 * GIB, used=81 * GIB, headroom=12 * GIB)
    assert ledger.available(pot) == 28 * GIB
    shared = msgspec.structs.replace(pot, elsewhere=20 * GIB)
    assert ledger.available(shared) == 8 * GIB
    assert ledger.available(msgspec.structs.replace(shared, holders=(Holder("a", 5 * GIB),))) == 3 * GIB
    assert ledger.available(msgspec.structs.replace(shared, elsewhere=29 * GIB)) == 0
    assert ledger.capacity(shared) == 109 * GIB, "the CPU lane may give it back"


@pytest.mark.parametrize(
    ("elsewhere", "over"), [(0, False), (20 * GIB, False), (23 * GIB, False), (23 * GIB + 1, True)]
)
def test_a_promise_has_no_cover_where_the_cpu_lane_needs_the_same_bytes(elsewhere: int, over: bool) -> None:
    pot = card(total=121 * GIB, used=81 * GIB, headroom=12 * GIB, holders=(Holder("a", 5 * GIB),), elsewhere=elsewhere)
    assert ledger.overdrawn(pot) is over


@pytest.mark.parametrize(
    ("holders", "left"),
    [
        ((), 0),
        ((Holder("a", 5 * GIB),), 5 * GIB),
        ((Holder("a", 5 * GIB, ours=2 * GIB), Holder("b", GIB, taken=GIB)), 3 * GIB),
        ((Holder("a", 5 * GIB, ours=6 * GIB), Holder("b", GIB)), GIB),
    ],
)
def test_what_of_the_promises_was_not_taken_yet(holders: tuple[Holder, ...], left: int) -> None:
    assert ledger.untaken(card(holders=holders)) == left


def test_an_empty_card_gives_all_but_driver_and_headroom() -> None:
    facts = card(driver_reserved=300 * MIB, headroom=256 * MIB)
    assert ledger.available(facts) == 8 * GIB - 300 * MIB - 256 * MIB
    assert ledger.capacity(facts) == ledger.available(facts)


def test_what_others_hold_is_what_is_used_and_not_ours() -> None:
    facts = card(used=5 * GIB, holders=(Holder("a", 2 * GIB, ours=2 * GIB),))
    assert ledger.foreign(facts) == 3 * GIB
    assert ledger.available(facts) == 3 * GIB


def test_a_promise_counts_before_the_driver_shows_it_and_hides_nobody() -> None:
    # Others hold 5 GiB. Two are promised and not taken yet: they must not be mistaken for a part of the 5.
    facts = card(used=5 * GIB, holders=(Holder("a", 2 * GIB),))
    assert ledger.foreign(facts) == 5 * GIB
    assert ledger.available(facts) == 1 * GIB


def test_what_was_taken_by_our_own_account_is_ours_where_the_driver_does_not_tell() -> None:
    # An empty list of processes while 7,325 MiB are used: the model's process has its 6,000 by our own account.
    facts = card(used=7325 * MIB, holders=(Holder("a", 6000 * MIB, taken=6000 * MIB),))
    assert ledger.foreign(facts) == 1325 * MIB
    assert ledger.available(facts) == 8 * GIB - 7325 * MIB


def test_others_never_hold_less_than_nothing() -> None:
    # We are known to hold 6,000 MiB, and the driver shows only 5,500 in use.
    facts = card(used=5500 * MIB, holders=(Holder("a", 6000 * MIB, taken=6000 * MIB),))
    assert ledger.foreign(facts) == 0
    assert ledger.available(facts) == 8 * GIB - 6000 * MIB


def test_taking_more_than_was_promised_counts() -> None:
    facts = card(used=3300 * MIB, holders=(Holder("a", 3000 * MIB, ours=3300 * MIB),))
    assert ledger.foreign(facts) == 0
    assert ledger.available(facts) == 8 * GIB - 3300 * MIB


def test_what_was_given_back_since_the_reading_is_not_counted_twice() -> None:
    facts = card(used=3 * GIB, holders=(Holder("a", 2 * GIB, ours=3 * GIB, released=GIB),))
    assert ledger.available(facts) == 6 * GIB
    # A process that ended: the reading does not show it any more, so nothing of ours is to be taken off.
    gone = card(used=3 * GIB, holders=(Holder("a", 0, released=3 * GIB),))
    assert ledger.foreign(gone) == 3 * GIB
    assert ledger.available(gone) == 5 * GIB


def test_a_neighbour_that_grows_by_what_we_free_leaves_nothing_to_promise() -> None:
    before = card(used=8 * GIB, holders=(Holder("a", 3 * GIB, ours=3 * GIB),))
    after = card(used=8 * GIB, holders=())
    assert (ledger.foreign(before), ledger.foreign(after)) == (5 * GIB, 8 * GIB)
    assert ledger.available(before) == ledger.available(after) == 0


def test_unknown_use_is_not_zero_use() -> None:
    # N/A and 2^64-1 come as None. What the promises leave is free, less the margin for not seeing.
    facts = card(used=None, holders=(Holder("a", 2 * GIB),))
    assert ledger.foreign(facts) is None
    assert ledger.available(facts) == 6 * GIB - 512 * MIB


def test_an_unknown_total_leaves_nothing_to_promise() -> None:
    assert ledger.available(card(total=None)) is None
    assert ledger.capacity(card(total=None)) is None


@pytest.mark.parametrize(("age_s", "kept_back"), [(0.0, 0), (5.0, 0), (5.001, 512 * MIB), (None, 512 * MIB)])
def test_an_old_reading_tightens(age_s: float | None, kept_back: int) -> None:
    assert ledger.available(card(age_s=age_s)) == 8 * GIB - kept_back


def test_a_blind_device_is_promised_nothing_unless_policy_says_so() -> None:
    blind = card(state="blind", used=None)
    assert ledger.available(blind) is None
    assert ledger.available(msgspec.structs.replace(blind, blind_takes_work=True)) == 8 * GIB - 512 * MIB


def test_a_cap_on_our_use_holds_beside_what_is_free() -> None:
    facts = card(cap=3 * GIB, used=2 * GIB, holders=(Holder("a", 2 * GIB, ours=2 * GIB),))
    assert ledger.available(facts) == GIB
    assert ledger.capacity(facts) == 3 * GIB


def test_promises_lose_their_cover_when_others_grow() -> None:
    holders = (Holder("a", 3 * GIB, ours=GIB),)
    assert not ledger.overdrawn(card(used=6 * GIB, holders=holders))
    assert ledger.overdrawn(card(used=6 * GIB + 1, holders=holders))


HOLDER = st.builds(
    Holder,
    name=st.just("m"),
    reserved=st.integers(0, 9 * GIB),
    ours=st.none() | st.integers(0, 9 * GIB),
    released=st.integers(0, 9 * GIB),
    taken=st.integers(0, 9 * GIB),
)
ANY = st.builds(
    DeviceFacts,
    id=st.just("gpu-0"),
    state=st.sampled_from(["ok", "blind", "lost", "unknown"]),
    total=st.none() | st.integers(0, 48 * GIB),
    driver_reserved=st.integers(0, GIB),
    used=st.none() | st.integers(0, 48 * GIB),
    headroom=st.integers(0, 2 * GIB),
    holders=st.lists(HOLDER, max_size=4).map(tuple),
    cap=st.none() | st.integers(1, 48 * GIB),
    age_s=st.none() | st.floats(0, 100),
    margin=st.integers(0, GIB),
    blind_takes_work=st.booleans(),
)


@given(ANY)
def test_nothing_is_ever_negative_and_never_more_than_could_be(facts: DeviceFacts) -> None:
    free, most = ledger.available(facts), ledger.capacity(facts)
    assert free is None or (most is not None and 0 <= free <= most)
    foreign = ledger.foreign(facts)
    assert foreign is None or 0 <= foreign <= (facts.used or 0)
    if free and facts.total is not None:
        promised = sum(holder.reserved for holder in facts.holders)
        assert promised + free + (foreign or 0) + facts.driver_reserved + facts.headroom <= facts.total


@given(ANY, st.integers(0, 8 * GIB))
def test_more_memory_never_leaves_less(facts: DeviceFacts, more: int) -> None:
    if facts.total is None:
        return
    bigger = msgspec.structs.replace(facts, total=facts.total + more)
    before, after = ledger.available(facts), ledger.available(bigger)
    assert (before is None) == (after is None)
    assert before is None or (after is not None and after >= before)


@given(ANY, st.integers(0, 4), st.integers(0, 8 * GIB))
def test_one_more_promise_leaves_exactly_that_much_less(facts: DeviceFacts, place: int, size: int) -> None:
    before = ledger.available(facts)
    if before is None or size > before or not facts.holders:
        return
    fresh = (*facts.holders, Holder("new", size))
    assert ledger.available(msgspec.structs.replace(facts, holders=fresh)) == before - size
