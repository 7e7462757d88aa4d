"""What a runner's exit says: each code is one thing only."""

import pytest

from core.words import FaultClass
from runners import stops
from runners.children import Exit, RunnerSpec
from runners.deaths import fault_of

SPEC = RunnerSpec("gpu", "null", "sim-0", "null/1")
CODES = {name: value for name, value in vars(stops).items() if name.isupper()}


def test_no_two_ends_share_a_code() -> None:
    assert len(set(CODES.values())) == len(CODES)


@pytest.mark.parametrize(
    ("code", "kind", "fault"),
    [
        (stops.ENGINE_FAILED, "exited", "worker"),
        (stops.DEVICE_LOST, "device-lost", "device"),
        (stops.NO_MEMORY, "allocation-failed", "size"),
        (stops.GARBAGE, "garbage", "worker"),
        (stops.OVER_BUDGET, "over-budget", "host"),
        (stops.SLOW, "slow", "slow"),
    ],
)
def test_what_each_code_says(code: int, kind: str, fault: FaultClass) -> None:
    seen = fault_of(SPEC, "gpu-1", Exit(signal=None, code=code), None)
    assert (seen.kind, seen.fault) == (kind, fault)
