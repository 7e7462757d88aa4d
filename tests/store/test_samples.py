"""The ring of samples: the highest use of each step, a quarter of an hour of it, and nothing more."""

import json
from typing import Any

import pytest
from desk import Desk

from store import house, samples
from store.database import Paths

STEP = samples.STEP_US


@pytest.fixture
def desk(paths: Paths) -> Any:
    made = Desk(paths)
    yield made
    made.close()


def read(desk: Any, at_us: int, device: str = "sim-0", **numbers: int | None) -> None:
    desk.writer.run(lambda tx: house.put_reading(tx, device, at_us, json.dumps(numbers)))


def recent(desk: Any, now_us: int) -> dict[str, list[tuple[int, int | None]]]:
    class At:
        def __init__(self, tx: Any) -> None:
            self.execute, self.now_us = tx.execute, now_us

    found = desk.writer.run(lambda tx: samples.recent(At(tx)))
    return {device: [(one.at_us, one.used) for one in row] for device, row in found.items()}


def test_a_step_keeps_its_highest_use(desk: Any) -> None:
    now = 1_000_000 * STEP
    for offset, used in ((0, 100), (1, 300), (2, 200)):
        read(desk, now + offset, used=used, total=1000)
    assert recent(desk, now + 3) == {"sim-0": [(now, 300)]}


def test_unknown_is_never_zero_and_gives_way_to_what_is_known(desk: Any) -> None:
    now = 1_000_000 * STEP
    read(desk, now, used=None, total=1000)
    assert recent(desk, now) == {"sim-0": [(now, None)]}
    read(desk, now + 1, used=5, total=1000)
    read(desk, now + 2, used=None, total=1000)
    assert recent(desk, now + 2) == {"sim-0": [(now, 5)]}


def test_the_host_uses_what_is_not_available(desk: Any) -> None:
    now = 1_000_000 * STEP
    read(desk, now, "host", total=1000, available=400)
    assert recent(desk, now) == {"host": [(now, 600)]}


def test_the_ring_holds_a_quarter_of_an_hour_however_long_it_turns(desk: Any) -> None:
    first = 1_000_000 * STEP
    for step in range(500):
        read(desk, first + step * STEP, used=step, total=1000)
    # By hand: 15 minutes are 900 seconds, so 180 steps of five; the last is number 499.
    (rows,) = desk.writer.run(lambda tx: tx.execute("SELECT count(*) FROM samples").fetchone())
    assert rows == 180
    assert recent(desk, first + 499 * STEP) == {"sim-0": [(first + n * STEP, n) for n in range(320, 500)]}


def test_a_clock_that_was_set_back_begins_anew(desk: Any) -> None:
    late, early = 2_000_000 * STEP, 1_000_000 * STEP
    read(desk, late, used=900, total=1000)
    read(desk, early, used=1, total=1000)
    assert recent(desk, early) == {"sim-0": [(early, 1)]}


def test_devices_that_are_read_no_more_are_swept_when_a_run_begins(desk: Any) -> None:
    now = desk.writer.run(lambda tx: tx.now_us)
    read(desk, now - samples.SPAN_US - STEP, "gone", used=1, total=2)
    read(desk, now, "here", used=1, total=2)
    desk.writer.run(house.clear_run)
    assert desk.writer.run(lambda tx: [row[0] for row in tx.execute("SELECT device FROM samples")]) == ["here"]
