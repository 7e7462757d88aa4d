"""When saving pays, by hand."""

from typing import Any

import pytest

from core.snapshots import SnapshotFacts, blended, due, due_in_s, lost_s

PLAIN: dict[str, Any] = {
    "tokens": 3000,
    "prompt": 3000,
    "saved": 0,
    "prefill_tps": 150.0,
    "decode_tps": 50.0,
    "save_s": None,
    "since_s": 20.0,
    "budget_s": 0.5,
    "share": 0.1,
}


def facts(**changes: Any) -> SnapshotFacts:
    return SnapshotFacts(**(PLAIN | changes))


def test_without_one_the_whole_prefix_is_lost_and_with_one_what_came_after_it() -> None:
    assert lost_s(facts()) == pytest.approx(20.0)
    assert lost_s(facts(tokens=3050)) == pytest.approx(21.0)
    assert lost_s(facts(tokens=3010, saved=3000)) == pytest.approx(0.2)
    assert lost_s(facts(tokens=3010, saved=3000, decode_tps=None)) is None
    assert lost_s(facts(prefill_tps=None)) is None


def test_when_it_may_be_due() -> None:
    """Half a second may be lost and a fifth is; a save of 60 ms is a tenth of 600 ms, of which 100 have passed."""
    assert due_in_s(facts(tokens=3010, saved=3000)) == pytest.approx(0.3)
    assert due_in_s(facts(tokens=3010, saved=3000, save_s=0.06, since_s=0.1)) == pytest.approx(0.5)
    assert due_in_s(facts()) == 0.0
    assert due_in_s(facts(prefill_tps=None)) is None


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        (True, {}),
        (False, {"tokens": 75, "prompt": 75}),  # half a second exactly is within the budget
        (True, {"tokens": 76, "prompt": 76}),
        (False, {"tokens": 3025, "saved": 3000}),  # 25 tokens at 50 a second
        (True, {"tokens": 3026, "saved": 3000}),
        (False, {"prefill_tps": None}),
        (True, {"save_s": 0.05, "since_s": 0.5}),  # a tenth of the time exactly
        (False, {"save_s": 0.051, "since_s": 0.5}),
        (False, {"save_s": 30.0}),
    ],
)
def test_due(wanted: bool, changes: dict[str, Any]) -> None:
    assert due(facts(**changes)) is wanted


def test_rates_follow_what_is_seen() -> None:
    assert blended(None, 40.0) == 40.0
    assert blended(40.0, 50.0) == pytest.approx(43.0)
