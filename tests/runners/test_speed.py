"""One runner's speed over its requests: who is compared with what. 100 units a second are usual for one alone."""

import time

import pytest

from core.policy import Policy
from core.slowness import Usual
from runners.speed import Speed

USUAL = Usual("engine/1", 100.0, 640, 500.0)
EIGHT = [f"q{n}" for n in range(8)]


def speed_of(*requests: str) -> Speed:
    made = Speed("gpu", "engine/1", Policy(slow_factor=0.2, slow_after_s=1.0))
    for one in requests:
        made.began(one, USUAL)
    for one in requests:
        made.ready(one)
    return made


def chunk(speed: Speed, request_id: str, units: int, took_s: float, *, held: bool = False) -> None:
    speed.chunk(request_id, units, took_s, began=time.monotonic(), context=500, threads=1, held=held)


def test_one_alone_at_an_eighth_of_the_usual_rate_is_slow() -> None:
    speed = speed_of("q0")
    for _ in range(3):
        chunk(speed, "q0", 10, 0.8)
    spell = speed.slow()
    assert spell is not None
    assert (spell.tps, spell.expected_tps) == (pytest.approx(12.5), 100.0)


def test_one_of_eight_at_an_eighth_is_not_even_if_the_others_end_before_its_chunk_does() -> None:
    speed = speed_of(*EIGHT)
    for _ in range(3):
        chunk(speed, "q0", 10, 0.8)
    for one in EIGHT[1:]:
        speed.ended(one)
    chunk(speed, "q0", 10, 0.8)
    assert not speed.doubtful()
    chunk(speed, "q0", 10, 0.8)
    assert speed.doubtful(), "now it was alone all the while"


def test_who_joins_for_a_part_of_a_chunk_counts_for_it() -> None:
    speed = speed_of("q0")
    for one in EIGHT[1:]:
        speed.began(one, USUAL)
        speed.ready(one)
        speed.ended(one)
    seen = speed.chunk("q0", 10, 0.4, began=time.monotonic(), context=500, threads=1)
    assert seen is not None
    assert seen.at_once == 2, "one after the other, never more than two at once"


def test_answers_by_a_grammar_do_not_make_a_lane_slow_whose_grammars_were_never_measured() -> None:
    speed = speed_of("q0")
    for _ in range(9):
        chunk(speed, "q0", 10, 0.8, held=True)
    assert speed.slow() is None
