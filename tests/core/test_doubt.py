"""Signs of nonsense in an answer, by hand; and what a sound answer looks like."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.decision import SafepointFacts
from core.doubt import sign
from core.safepoint import decide

BANG = b"!"
WORDS = [b" the", b" keeper", b" wrote", b" what", b" the", b" sea", b" had", b" done"]
PARROT = "\U0001f99c".encode()
"""Four bytes, which many vocabularies know only one by one."""


def seen(*pieces: bytes, ended: bool = False) -> str | None:
    """Units are numbered by their bytes: the same bytes are the same unit."""
    names = sorted(set(pieces))
    return sign([names.index(piece) for piece in pieces], pieces, ended=ended)


@pytest.mark.parametrize(
    ("pieces", "ended", "told"),
    [
        ([BANG] * 23, False, None),
        ([BANG] * 24, False, "repeated"),
        ([*WORDS, *[BANG] * 23], False, None),
        ([*WORDS, *[BANG] * 24], False, "repeated"),
        ([*[BANG] * 24, *WORDS], False, None),
        ([BANG] * 7, True, None),
        ([BANG] * 8, True, "one-unit"),
        ([*WORDS, *[BANG] * 8], True, None),
        (WORDS * 3, True, None),
        ([], True, None),
        # 24 units of half a character each, then twelve of them among twelve words, then eleven among thirteen.
        ([b"\xff", b"\xfe"] * 12, False, "unreadable"),
        ([*WORDS, *[b"\xff", b"\xfe"] * 12], False, "unreadable"),
        ([b"a", b"\xff"] * 12, False, "unreadable"),
        ([b" a", b"\xff"] * 12, False, None),
        # 24 units of a byte each: six parrots; and the same from the middle of one to the middle of another.
        ([bytes([byte]) for byte in PARROT] * 6, False, None),
        ([bytes([byte]) for byte in PARROT[2:] + PARROT * 6 + PARROT[:2]], False, None),
    ],
)
def test_signs(pieces: list[bytes], ended: bool, told: str | None) -> None:
    assert seen(*pieces, ended=ended) == told


def test_units_that_no_vocabulary_has_say_nothing() -> None:
    assert sign(range(900_000, 900_024), [b""] * 24, ended=False) == "empty"
    assert sign(range(900_000, 900_023), [b""] * 23, ended=False) is None


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), min_size=24))
def test_whole_characters_are_never_unreadable(text: str) -> None:
    """However long the answer is, one byte to a unit, and wherever the newest ones begin and end."""
    raw = text.encode()
    for end in range(24, len(raw) + 1):
        pieces = [bytes([byte]) for byte in raw[:end]]
        assert sign(list(raw[:end]), pieces, ended=False) in {None, "repeated"}


@pytest.mark.parametrize(
    ("units", "failover"), [(0, "auto"), (9, "auto"), (9, "never"), (9, "boundary"), (9, "gpu-only")]
)
def test_what_is_in_doubt_waits_on_its_lane_whatever_the_caller_allows(units: int, failover: str) -> None:
    facts = SafepointFacts("host", "output-in-doubt", "gpu", units, failover, "none", True, 0, 2)  # type: ignore[arg-type]
    assert (decide(facts).action, decide(facts).rule) == ("requeue", "asked-first")


def test_a_cancel_wins_over_a_doubt() -> None:
    facts = SafepointFacts("host", "output-in-doubt", "gpu", 9, "auto", "none", True, 0, 2, cancel_asked=True)
    assert decide(facts).action == "cancel"
