"""A device without memory of its own and the CPU lane share one pot: 100 GiB, of which the host keeps 10.

Two models of 50 and 55 GiB fit one at a time, whichever lane each is on.
"""

import msgspec
import pytest
from desk import Desk, lane_row

from core.decision import AdmissionFacts
from core.policy import Policy
from store import hostlane, laneviews, reservations
from store.house import put_reading
from store.journal import Tx

GIB = 1 << 30
POOL = Policy(host_floor=0.1)


def pot(bare: Desk, *, unified: bool, gpu: int = 0, cpu: int = 0, available: int = 100 * GIB) -> Desk:
    """The pot as the monitor reads it, and what the model takes on each lane."""
    bare.policy = POOL
    bare.open_lanes(total=100 * GIB)
    bare.show(total=100 * GIB, used=100 * GIB - available, processes={}, unified=unified)

    def unit(tx: Tx) -> None:
        host = msgspec.json.encode({"total": 100 * GIB, "available": available}).decode()
        put_reading(tx, "host", tx.now_us, host)
        for lane, load in (("gpu", gpu), ("cpu", cpu)):
            row = msgspec.structs.replace(lane_row(lane), load_bytes=load, token_bytes=1, resident=False)  # type: ignore[arg-type]
            laneviews.put_lane(tx, row)

    bare.run(unit)
    return bare


def on_cpu(desk: Desk, model: str, load: int, *, mapped: int = 0, held: int = 0) -> None:
    """Another model whose CPU worker is on its way, or up."""
    desk.run(lambda tx: laneviews.put_lane(tx, msgspec.structs.replace(lane_row("cpu"), model=model, load_bytes=load)))
    memory = hostlane.LaneMemory("watch", "", 0, "memory", held={model: held} if held else {}, mapped=mapped)
    desk.run(lambda tx: hostlane.put(tx, memory))


@pytest.mark.parametrize(("unified", "outcome"), [(True, "refused"), (False, "new")])
def test_what_the_gpu_was_promised_is_not_there_for_the_cpu_lane(bare: Desk, unified: bool, outcome: str) -> None:
    """50 GiB are promised on the device and not taken yet; a model of 55 wants to wake on the CPU lane."""
    desk = pot(bare, unified=unified, gpu=50 * GIB, cpu=55 * GIB)
    desk.run(lambda tx: reservations.promise(tx, "sim-0", "model:other", "other", 50 * GIB))
    desk.run(lambda tx: laneviews.set_serving(tx, "gpu", "null", "load-failed", actor="test"))
    submitted = desk.submit()
    assert submitted.outcome == outcome
    if unified:
        assert submitted.state.ended_by == "host-memory"
        assert any(f"{50 * GIB} are promised on the GPU" in one.reason for one in submitted.rejected)


@pytest.mark.parametrize(
    ("unified", "load", "fits"), [(True, 40, False), (True, 34, True), (False, 40, True), (False, 34, True)]
)
def test_what_the_cpu_lane_has_still_to_take_is_not_there_for_the_gpu(
    bare: Desk, unified: bool, load: int, fits: bool
) -> None:
    """100 less the floor of 10 and 55 for the CPU lane: 35 are left where there is one pot."""
    desk = pot(bare, unified=unified, gpu=load * GIB)
    on_cpu(desk, "other", 55 * GIB)
    admitted = desk.events(desk.admit())[0].event
    decision = admitted.decision  # type: ignore[attr-defined]
    assert isinstance(decision.facts, AdmissionFacts)
    assert decision.facts.device is not None
    assert decision.facts.device.elsewhere == (55 * GIB if unified else 0)
    assert (decision.action == "run-gpu") is fits


def test_what_its_workers_have_mapped_the_kernel_would_give_away_and_we_do_not(bare: Desk) -> None:
    """Of 55 GiB the worker holds 30, of which 20 are a mapped file: 90 are available, and 45 of them are needed."""
    desk = pot(bare, unified=True, gpu=26 * GIB, available=90 * GIB)
    on_cpu(desk, "other", 55 * GIB, held=30 * GIB, mapped=20 * GIB)
    assert desk.picture().elsewhere == 45 * GIB
    assert desk.picture().headroom == 10 * GIB
    # 90 available, 45 needed by the CPU lane, 10 the floor: 35.
    free = desk.submit().state
    assert free.lane == "gpu"


def test_the_floor_of_the_host_is_kept_on_both_sides(bare: Desk) -> None:
    desk = pot(bare, unified=True, gpu=91 * GIB)
    submitted = desk.submit(failover="gpu-only")
    assert (submitted.outcome, submitted.state.ended_by) == ("refused", "never-fits")
