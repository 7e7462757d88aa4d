"""The journal by time: whatever the clock did, what is found is what a comparison of each event would find."""

import pytest
from desk import Desk, HandClock

from store import audit
from store.audit import Wanted

S = 1_000_000


@pytest.fixture
def stepped(timed: Desk, clock: HandClock) -> list[int]:
    """Three requests, the second after the clock was set back by 60 s: when each was admitted, in microseconds."""
    times = []
    for by_s in (0, -60, 100):
        clock.now += by_s * S
        timed.submit()
        times.append(clock.now)
    return times


def found(desk: Desk, since_us: int | None, until_us: int | None) -> list[int]:
    """When what was admitted in that time was, in the order of the journal."""
    wanted = Wanted(type="Admitted", since_us=since_us, until_us=until_us)
    return [record.at_us for record in desk.run(lambda tx: audit.oldest(tx, wanted, 0, 10))]


def test_events_out_of_order_are_found_by_their_time(timed: Desk, stepped: list[int]) -> None:
    first, second, third = stepped
    assert second < first < third
    assert found(timed, None, first - 1) == [second]
    assert found(timed, first, None) == [first, third]
    assert found(timed, second, first) == [first, second]
    assert found(timed, third + 1, None) == []


def test_the_index_tells_where_they_can_be(timed: Desk, stepped: list[int]) -> None:
    seqs = [row[0] for row in timed.ask("SELECT seq FROM events WHERE type='Admitted' ORDER BY seq")]
    assert timed.run(lambda tx: audit.span(tx, stepped[1], stepped[0])) == (1, seqs[1]), "the lanes were opened first"
    assert timed.run(lambda tx: audit.span(tx, stepped[2] + 1, None)) == (0, -1)
    plan = timed.ask("EXPLAIN QUERY PLAN SELECT min(seq), max(seq) FROM events WHERE at_us BETWEEN 0 AND 1")
    assert "ix_events_at" in plan[0][-1]
