"""What loads were seen to take replaces the formula at the next load; what they leave behind raises an alarm."""

import pytest
from desk import MODEL, Desk

from core import events as ev
from store.journal import Tx
from store.learned import learn, learned, record_load

MIB = 1 << 20


def seen(desk: Desk, size: int, *, settings: str = "context=4096") -> int:
    def unit(tx: Tx) -> int:
        after = learn(
            tx, runner="r1", engine="e/1", model=MODEL, settings=settings, formula=1000 * MIB, seen=size * MIB
        )
        return after.value // MIB

    return desk.run(unit)


def test_up_at_once_down_slowly_and_told_when_it_changes(desk: Desk) -> None:
    assert [seen(desk, size) for size in (1100, 1100, 1500, 1100, 1100)] == [1100, 1100, 1500, 1450, 1406]
    told = [record.event for record in desk.events("runner-r1")]
    assert [event.value // MIB for event in told if isinstance(event, ev.FootprintLearned)] == [1100, 1500, 1450, 1406]
    kept = desk.run(lambda tx: learned(tx, "e/1", MODEL, "context=4096"))
    assert kept is not None
    assert (kept.formula, kept.last, kept.loads) == (1000 * MIB, 1100 * MIB, 5)


def test_other_settings_are_learned_apart(desk: Desk) -> None:
    seen(desk, 1100)
    assert seen(desk, 2000, settings="context=8192") == 2000
    kept = desk.run(lambda tx: learned(tx, "e/1", MODEL, "context=4096"))
    assert kept is not None
    assert kept.value == 1100 * MIB
    assert desk.run(lambda tx: learned(tx, "e/2", MODEL, "context=4096")) is None


def load(desk: Desk, before: int | None, *, device: str = "sim-0", model: str = MODEL) -> None:
    size = None if before is None else before * MIB
    desk.run(lambda tx: record_load(tx, runner="r1", model=model, device=device, took_us=1, held=MIB, before=size))


def suspicions(desk: Desk) -> list[tuple[int, ...]]:
    found = [record.event for record in desk.events("device-sim-0")]
    return [tuple(size // MIB for size in event.baselines) for event in found if isinstance(event, ev.LeakSuspected)]


def test_300_mib_left_behind_by_each_load_are_seen_by_the_fifth(desk: Desk) -> None:
    for cycle in range(4):
        load(desk, 500 + 300 * cycle)
    assert suspicions(desk) == []
    load(desk, 1700)
    assert suspicions(desk) == [(500, 800, 1100, 1400, 1700)]


@pytest.mark.parametrize("others", [{"device": "gpu-9"}, {"model": "null-b"}])
def test_loads_of_others_do_not_count(desk: Desk, others: dict[str, str]) -> None:
    for cycle in range(5):
        load(desk, 500 + 300 * cycle, **others if cycle == 2 else {})
    assert suspicions(desk) == []


def test_without_numbers_nothing_is_suspected(desk: Desk) -> None:
    for before in (500, 800, None, 1100, 1400, 1700):
        load(desk, before)
    assert suspicions(desk) == []
    load(desk, 2000)
    load(desk, 2300)
    assert suspicions(desk) == [(1100, 1400, 1700, 2000, 2300)]
