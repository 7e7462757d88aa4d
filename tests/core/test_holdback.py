"""What may be shown, over all ways of cutting an answer into pieces."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.holdback import units_until_stop, visible


def first_stop(text: str, stops: list[str]) -> str:
    """By the plain definition: grow the text by one character at a time until it ends with a stop string."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


def shown(raw: bytes, stops: list[str]) -> list[str]:
    """What is shown after each byte, and at the end."""
    steps = [visible(raw[:n], stops, final=False).text for n in range(len(raw) + 1)]
    return [*steps, visible(raw, stops, final=True).text]


ALPHABET = st.sampled_from("ab🦜é\n")
TEXTS = st.text(ALPHABET, max_size=30).map(str.encode)
NOISE = st.lists(st.sampled_from([b"a", b"b", b"\xf0\x9f", b"\xa6\x9c", b"\xff", b"\xc3"]), max_size=20).map(b"".join)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=3)


@settings(max_examples=400, deadline=None)
@given(TEXTS | NOISE, STOPS)
@example(b"aaab", ["aab"])
@example(b"xabcd", ["abcd", "bc"])
@example(b"ababac", ["abac"])
@example("🦜🦜".encode(), ["🦜🦜🦜", "\n"])
def test_every_split(raw: bytes, stops: list[str]) -> None:
    steps = shown(raw, stops)
    for earlier, later in pairwise(steps):
        assert later.startswith(earlier), "what was shown is taken back"
    assert steps[-1] == first_stop(raw.decode(errors="replace"), stops)
    for text in steps:
        assert not any(stop in text for stop in stops), "a stop string leaks"


@settings(max_examples=300, deadline=None)
@given(TEXTS, STOPS)
def test_nothing_is_held_longer_than_needed(raw: bytes, stops: list[str]) -> None:
    for n in range(len(raw) + 1):
        step = visible(raw[:n], stops, final=False)
        whole = raw[:n].decode(errors="ignore")
        held = whole[len(step.text) :]
        if not step.stopped:
            assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([b"a", b"b", b"ab", b"aab", b"\xf0\x9f", b"\xa6\x9c", b""]), max_size=25), STOPS)
def test_the_unit_that_completes_a_stop_string(pieces: list[bytes], stops: list[str]) -> None:
    found = units_until_stop(pieces, stops)
    reached = [n for n in range(1, len(pieces) + 1) if visible(b"".join(pieces[:n]), stops, final=False).stopped]
    assert found == (reached[0] if reached else None)


def test_a_parrot_in_three_pieces() -> None:
    pieces = [b"\xf0\x9f", b"\xa6", b"\x9c"]
    assert [visible(b"".join(pieces[:n]), [], final=False).text for n in range(4)] == ["", "", "", "🦜"]
    assert visible(b"\xf0\x9f\xa6", [], final=True).text == "\ufffd"


def test_a_false_start_is_released() -> None:
    assert shown(b"<en>", ["<end>"])[:-1] == ["", "", "", "", "<en>"]


def test_a_stop_string_inside_a_repetition_of_itself() -> None:
    assert shown(b"aaab", ["aab"]) == ["", "", "", "a", "a", "a"]


def test_of_two_stop_strings_the_one_that_is_whole_first_counts() -> None:
    assert visible(b"xabcd", ["abcd", "bc"], final=False) == visible(b"xabc", ["abcd", "bc"], final=False)
    assert visible(b"xabcd", ["abcd", "bc"], final=True).text == "xa"


def test_of_two_that_end_together_the_longer_counts() -> None:
    assert visible(b"xabc", ["bc", "abc"], final=False).text == "x"


@pytest.mark.parametrize("stops", [[], [""]])
def test_no_stop_strings(stops: list[str]) -> None:
    assert visible(b"abc", stops, final=False).text == "abc"
    assert units_until_stop([b"abc"], stops) is None
