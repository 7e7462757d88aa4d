"""Who is stopped, ended or started anew for the CPU lane's memory: in MiB. 900 is the soft limit, 1000 hard."""

import msgspec
import pytest

from core.hostbudget import Limits, Worker, begins_anew, ends, largest, takes
from core.policy import Policy

MIB = 1 << 20
LIMITS = Limits(900 * MIB, 1000 * MIB, "memory")
GROWTH = Policy(cpu_growth_bytes=100 * MIB)


@pytest.mark.parametrize(
    ("before", "used", "calm_s", "after"),
    [
        (True, 900, 0.0, True),
        (True, 901, 9.0, False),
        (False, 900, 1.9, False),
        (False, 900, 2.0, True),
        (False, 901, 2.0, False),
    ],
)
def test_whether_the_lane_takes_work(before: bool, used: int, calm_s: float, after: bool) -> None:
    assert takes(before, used * MIB, LIMITS, calm_s) is after


def worker(resident: int, **more: object) -> Worker:
    return msgspec.structs.replace(Worker(resident * MIB, resident * MIB), **more)


@pytest.mark.parametrize(
    ("used", "workers", "ended"),
    [
        (1000, {"a": worker(700), "b": worker(300)}, None),
        (1001, {"a": worker(700), "b": worker(301)}, "a"),
        (1001, {"a": worker(301), "b": worker(700)}, "b"),
        (1001, {"a": worker(500), "b": worker(500)}, "a"),
        # One at a time: what it holds comes back first.
        (1001, {"a": worker(700, ending=True), "b": worker(301)}, None),
        # Others have taken the host's memory: 144 MiB is what a worker holds without a model.
        (1001, {"a": worker(144), "b": worker(10)}, None),
        (1001, {"a": worker(145), "b": worker(10)}, "a"),
        (1001, {}, None),
    ],
)
def test_whose_worker_is_ended(used: int, workers: dict[str, Worker], ended: str | None) -> None:
    assert ends(used * MIB, LIMITS, workers) == ended


def rests(own: int, first: int | None, **more: object) -> Worker:
    return worker(own, after_loading=None if first is None else first * MIB, at_rest=True, **more)


SMALL = rests(10, 10)


@pytest.mark.parametrize(
    ("seen", "taking", "stopped_s", "why"),
    [
        (rests(300, 200), True, 0.0, None),
        (rests(301, 200), True, 0.0, "grown"),
        (rests(301, None), True, 0.0, None),
        (rests(301, 200, ending=True), True, 0.0, None),
        (msgspec.structs.replace(rests(301, 200), at_rest=False), True, 0.0, None),
        # 32 MiB are enough while the lane takes nothing more.
        (rests(232, 200), False, 0.0, None),
        (rests(233, 200), False, 0.0, "grown"),
        # And after ten seconds of that the largest goes, whatever it holds; `b` holds 10 MiB.
        (rests(200, 200), False, 9.9, None),
        (rests(200, 200), False, 10.0, "stuck"),
        (rests(9, 9), False, 10.0, None),
    ],
)
def test_who_begins_anew(seen: Worker, taking: bool, stopped_s: float, why: str | None) -> None:
    assert begins_anew(GROWTH, "a", {"a": seen, "b": SMALL}, taking=taking, stopped_s=stopped_s) == why


def test_growth_may_be_no_reason_by_policy() -> None:
    never = Policy(cpu_growth_bytes=0)
    assert begins_anew(never, "a", {"a": rests(9999, 1)}, taking=True, stopped_s=0.0) is None
    assert begins_anew(never, "a", {"a": rests(99, 1)}, taking=False, stopped_s=0.0) == "grown"


def test_there_may_be_no_worker() -> None:
    assert largest({}) is None
