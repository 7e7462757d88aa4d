"""A lane that computes far slower than it usually does, without an error: it is found, left, and tried again.

The built-in model computes 40 units a second; the simulated accelerator makes of that four.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from house import House, kept, until
from upstreams import built_in

from runners.devices.simulated import SimulatedDevice
from store.writer import Writer

LONG = "tell me something long"
POLICY = """
[policy]
slow_factor = 0.2
slow_after_s = 1.0
breaker_cooldown_s = 1.0
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
return_to_gpu = false
"""


@contextmanager
def paced(root: Path, policy: str = POLICY) -> Iterator[House]:
    """A service of 40 units a second, whose GPU lane is known to be so fast."""
    home = House(root, config=policy)
    with kept(home):
        home.start({"FAILSOFT_NULL_TPS": "40"})
        home.runner("gpu")
        assert home.settled(home.submit("as usual", max_tokens=100))["lane"] == "gpu"
        until(lambda: usual(home) > 0, "the usual rate to be known")
        home.runner("cpu")
        yield home


def usual(home: House) -> float:
    rows = home.rows("SELECT json_extract(usual, '$.tps') FROM rates WHERE lane='gpu'")
    return float(rows[0][0]) if rows and rows[0][0] else 0.0


def slow(home: House, factor: float) -> None:
    SimulatedDevice(home.paths.sim / "sim-0.json").set_slow(factor)


def under_way(home: House, **fields: Any) -> str:
    request_id = home.submit(LONG, **({"max_tokens": 120} | fields))
    until(lambda: home.units(request_id) >= 14, "the first words")
    return request_id


def openings(home: House) -> list[tuple[str, str]]:
    rows = home.rows(
        "SELECT json_extract(data, '$.reason'), json_extract(data, '$.decision.rule') FROM events "
        "WHERE type='BreakerOpened' ORDER BY seq"
    )
    return [(reason, rule) for reason, rule in rows]


def slow_faults(home: House, request_id: str) -> list[dict[str, Any]]:
    return [e["data"] for e in home.events(request_id) if e["type"] == "FaultSeen" and e["data"]["fault"] == "slow"]


def test_work_leaves_it_new_work_goes_elsewhere_and_only_a_quick_canary_brings_it_back(tmp_path: Path) -> None:
    with paced(tmp_path / "data") as home:
        before = usual(home)
        request_id = under_way(home)
        slow(home, 10.0)
        view = home.settled(request_id)
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        assert view["output"]["text"] == built_in(LONG, 120)
        assert view["degraded"]["rule"] == "continue-identical"
        (fault,) = slow_faults(home, request_id)
        assert (fault["kind"], fault["blames_input"]) == ("slow", False)
        seen, expected = fault["evidence"]["units_per_s"], fault["evidence"]["usual_units_per_s"]
        assert seen < 0.2 * expected
        assert fault["evidence"]["for_s"] >= 1.0
        assert openings(home)[0] == ("slow", "slow")
        assert home.settled(home.submit("meanwhile", max_tokens=4))["lane"] == "cpu"
        until(lambda: ("canary-slow", "canary-slow") in openings(home), "a canary that is right and slow")
        assert not home.rows("SELECT 1 FROM events WHERE type='BreakerClosed'")
        assert usual(home) == before, "what was slow is no part of it"
        slow(home, 1.0)
        until(lambda: home.serves("gpu"), "the lane to be quick again")
        assert home.settled(home.submit("and now", max_tokens=4))["lane"] == "gpu"
        assert home.verify().ok
        assert home.replay(request_id)["decisions"][-1]["same"]


@pytest.mark.prove
def test_it_goes_on_where_no_other_lane_is_faster_and_that_is_said_once(tmp_path: Path) -> None:
    with paced(tmp_path / "data") as home:
        # All that is known of the CPU lane: it is slower still.
        writer = Writer(home.paths)
        sql = "INSERT INTO rates (lane, model, decode_tps, updated_us) VALUES ('cpu','null',0.5,1)"
        writer.run(lambda tx: tx.execute(sql).rowcount)
        writer.close()
        request_id = under_way(home, max_tokens=32)
        slow(home, 10.0)
        view = home.settled(request_id)
        assert (view["state"], view["lane"], slow_faults(home, request_id)) == ("completed", "gpu", [])
        assert openings(home) == []
        assert home.log.read_text().count("it goes on, since no other lane is known to be faster") == 1


@pytest.mark.prove
def test_who_may_not_move_goes_on_and_new_work_goes_elsewhere(tmp_path: Path) -> None:
    with paced(tmp_path / "data") as home:
        request_id = under_way(home, failover="never", max_tokens=64)
        slow(home, 10.0)
        until(lambda: slow_faults(home, request_id), "the fault to be seen")
        assert home.settled(home.submit("meanwhile", max_tokens=4))["lane"] == "cpu"
        view = home.settled(request_id)
        assert (view["state"], view["lane"], view["attempt"]) == ("completed", "gpu", 1)
        assert len(slow_faults(home, request_id)) == 1
