"""The cost model against rows that FlexGen published (T4 with 16 GB, 208 GB of host memory, a disk; 32 tokens)."""

import msgspec
import pytest

from core.errors import Malformed
from core.tiers import T4, Bandwidths, Placed, Speed, Work, expected_speed, hybrid_rate

GIB = float(1 << 30)
OFFLOADED = {"cache": Placed(0, 1), "hidden": Placed(0, 1)}
FAST_DISK = msgspec.structs.replace(T4, disk_read=2.015 * GIB)


def opt(layers: int, width: int, batch: int, prompt: int = 512) -> Work:
    return Work(layers=layers, width=width, inner=4 * width, batch=batch, prompt=prompt, answer=32)


def opt_30b(batch: int = 144, prompt: int = 512, device: float = 0.2) -> Speed:
    work = opt(48, 7168, batch, prompt)
    return expected_speed(work, weights=Placed(device, 1 - device), **OFFLOADED, rates=T4)


def opt_175b(batch: int, prompt: int, *, fast: bool) -> Speed:
    work = opt(96, 12288, batch, prompt)
    rates = FAST_DISK if fast else T4
    return expected_speed(work, weights=Placed(0, 0.5), cache=Placed(0, 0), hidden=Placed(0, 1), rates=rates)


def test_opt_30b_is_met() -> None:
    """Published 7.32 tokens/s; the model's own authors' program says 7.14, with 210.7 s of prefill, 14.04 s a step."""
    found = opt_30b()
    assert found.tokens_per_second == pytest.approx(7.14, rel=0.01)
    assert found.tokens_per_second == pytest.approx(7.32, rel=0.03)
    assert found.prefill_seconds == pytest.approx(210.7, abs=0.1)
    assert found.step_seconds == pytest.approx(14.04, rel=0.01)
    assert found.bound == "compute"
    assert found.limits == ()


def test_short_prompts() -> None:
    """Published 16.01; the model says 12.97."""
    found = opt_30b(320, 256, 0.1)
    assert found.tokens_per_second == pytest.approx(12.97, rel=0.01)
    assert found.tokens_per_second == pytest.approx(16.01, rel=0.2)


@pytest.mark.parametrize(
    ("batch", "prompt", "fast", "model", "published"),
    [(256, 512, False, 0.154, 0.69), (256, 512, True, 0.556, 0.69), (512, 256, True, 1.093, 1.36)],
)
def test_the_disk_decides(batch: int, prompt: int, *, fast: bool, model: float, published: float) -> None:
    """OPT-175B: the shipped disk constant does not describe the machine that was measured; the model says so."""
    found = opt_175b(batch, prompt, fast=fast)
    assert found.tokens_per_second == pytest.approx(model, rel=0.015)
    assert (abs(found.tokens_per_second / published - 1) < 0.2) == fast
    assert "disk" in found.limits[0]
    assert fast or found.bound == "disk read"


def test_all_on_the_device_is_outside_the_model_and_says_so() -> None:
    """OPT-6.7B, published 25.26 tokens/s; the model says 60.8."""
    here = Placed(1, 0)
    found = expected_speed(opt(32, 4096, 2), weights=here, cache=here, hidden=here, rates=T4)
    assert found.tokens_per_second == pytest.approx(60.8, rel=0.01)
    assert "launch overheads" in found.limits[0]


def test_more_on_the_device_is_never_slower() -> None:
    speeds = [opt_30b(device=part / 10).step_seconds for part in range(11)]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] > speeds[-1]


@pytest.mark.parametrize(("device", "host"), [(-0.1, 0.5), (0.7, 0.7), (1.1, 0)])
def test_parts_of_a_whole(device: float, host: float) -> None:
    with pytest.raises(Malformed, match="fractions"):
        Placed(device, host)


def test_a_hybrid_reads_each_tier_once_for_a_token() -> None:
    found = Bandwidths(device=100 * GIB, host=10 * GIB, disk=1 * GIB)
    rates = {
        "device": hybrid_rate(device_bytes=5 << 30, host_bytes=0, host_free=None, bandwidths=found),
        "both": hybrid_rate(device_bytes=5 << 30, host_bytes=5 << 30, host_free=6 << 30, bandwidths=found),
        "spilled": hybrid_rate(device_bytes=5 << 30, host_bytes=5 << 30, host_free=4 << 30, bandwidths=found),
    }
    assert rates == {
        "device": pytest.approx(20),
        "both": pytest.approx(1 / 0.55),
        "spilled": pytest.approx(1 / 5.05),
    }


def test_an_unmeasured_bandwidth_makes_the_speed_unknown() -> None:
    found = Bandwidths(device=100 * GIB, host=None, disk=None)
    assert hybrid_rate(device_bytes=1, host_bytes=1, host_free=None, bandwidths=found) is None
    assert hybrid_rate(device_bytes=1, host_bytes=0, host_free=None, bandwidths=found) == pytest.approx(100 * GIB)
    assert hybrid_rate(device_bytes=0, host_bytes=0, host_free=None, bandwidths=found) is None
