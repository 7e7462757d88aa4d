"""The simulated accelerator, with real processes as its holders."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from desk import ROOT, HandClock
from house import until

from core.errors import AllocationFailed, DeviceFault
from runners import sim
from runners.devices.simulated import SimulatedDevice, SimulatedState

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sim-0.json"


@pytest.fixture
def device(file: Path, clock: HandClock) -> SimulatedDevice:
    return SimulatedDevice(file, 1000 * MIB, clock)


def used(device: SimulatedDevice) -> int:
    return (device.observe().used or 0) // MIB


@contextmanager
def holder(file: Path, size: int) -> Iterator[Callable[[], None]]:
    """Another process that holds `size` MiB; calling what this yields kills it."""
    program = (
        "import sys; from pathlib import Path; from runners.devices.simulated import SimulatedDevice; "
        f"SimulatedDevice(Path(sys.argv[1])).allocate({size * MIB}); print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(file)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"

        def end() -> None:
            process.kill()
            process.wait()

        yield end
        end()


def test_bytes_by_process_as_a_driver_would_tell(device: SimulatedDevice, file: Path) -> None:
    device.reserve(100 * MIB)
    device.set_foreign(50 * MIB)
    device.allocate(200 * MIB)
    with holder(file, 300) as end:
        seen = device.observe()
        assert sorted((seen.processes or {}).values()) == [200 * MIB, 300 * MIB]
        assert (seen.total, seen.used, seen.ours, seen.foreign, seen.reserved, seen.free) == (
            1000 * MIB,
            550 * MIB,
            500 * MIB,
            50 * MIB,
            100 * MIB,
            350 * MIB,
        )
        assert (seen.state, seen.simulated, seen.name) == ("ok", True, "Simulated accelerator")
        end()
        assert (used(device), len(device.observe().processes or {})) == (250, 1)


def test_what_is_not_free_is_not_given(device: SimulatedDevice) -> None:
    device.reserve(100 * MIB)
    device.allocate(600 * MIB)
    with pytest.raises(AllocationFailed) as refused:
        device.allocate(301 * MIB)
    assert refused.value.extra == {"need": 301 * MIB, "free": 300 * MIB}
    device.allocate(300 * MIB)
    assert used(device) == 900
    device.release()
    assert used(device) == 0


def test_a_neighbour_over_time(device: SimulatedDevice, clock: HandClock) -> None:
    device.script_foreign([(10, 800 * MIB), (20, 100 * MIB), (5, 300 * MIB)])
    seen = []
    for _ in range(5):
        seen.append((device.observe().foreign or 0) // MIB)
        clock.go(5)
    assert seen == [0, 300, 800, 800, 100]
    device.set_foreign(0)
    assert used(device) == 0


def test_a_load_takes_its_peak_first(device: SimulatedDevice, clock: HandClock) -> None:
    device.set_peak(300 * MIB, 4)
    device.allocate(500 * MIB)
    assert (used(device), device.observe().ours) == (800, 800 * MIB)
    clock.go(3.9)
    assert used(device) == 800
    clock.go(0.2)
    assert used(device) == 500
    with pytest.raises(AllocationFailed, match="cannot give"):
        device.allocate(250 * MIB)  # it would fit, and its peak does not
    device.set_peak(0, 0)
    device.allocate(250 * MIB)
    assert used(device) == 750


def test_released_memory_comes_back_late(device: SimulatedDevice, clock: HandClock, file: Path) -> None:
    device.set_lag(2)
    device.allocate(100 * MIB)
    device.release()
    seen = device.observe()
    assert (seen.used, seen.ours, seen.foreign) == (100 * MIB, 0, 100 * MIB)
    clock.go(2.1)
    assert used(device) == 0
    with holder(file, 300) as end:
        assert used(device) == 300
        end()
        assert (used(device), device.observe().ours) == (300, 0)
        clock.go(1)
        assert used(device) == 300
        clock.go(1.1)
        assert used(device) == 0


def test_fragments(device: SimulatedDevice) -> None:
    device.fragment(64 * MIB)
    assert device.observe().free == 1000 * MIB
    with pytest.raises(AllocationFailed, match="blocks of at most"):
        device.allocate(65 * MIB)
    device.allocate(64 * MIB)
    device.fragment(None)
    device.allocate(900 * MIB)


def test_planned_failures(device: SimulatedDevice) -> None:
    device.fail_allocations(2)
    for _ in range(2):
        with pytest.raises(AllocationFailed, match="by plan"):
            device.allocate(1)
    device.allocate(1)
    device.fail_above(10 * MIB)
    for _ in range(3):
        with pytest.raises(AllocationFailed, match="by plan"):
            device.allocate(10 * MIB + 1)
    device.allocate(10 * MIB)
    device.fail_above(None)
    device.allocate(10 * MIB + 1)


@pytest.mark.parametrize(("strike", "state", "code"), [("lose", "lost", 15), ("require_reset", "reset-required", 16)])
def test_out_and_back(device: SimulatedDevice, strike: str, state: str, code: int) -> None:
    device.allocate(100 * MIB)
    device.check()
    getattr(device, strike)("as ordered")
    seen = device.observe()
    assert (seen.state, seen.reason, seen.code, seen.used) == (state, "as ordered", code, None)
    for use in (device.check, lambda: device.allocate(1)):
        with pytest.raises(DeviceFault, match="as ordered"):
            use()
    device.restore()
    device.check()
    assert used(device) == 0


def test_each_release_leaves_some_behind_until_the_process_ends(device: SimulatedDevice, file: Path) -> None:
    """300 MiB with every load and unload, as people saw."""
    device.set_leak(30 * MIB)
    for cycle in range(1, 6):
        device.allocate(100 * MIB)
        assert used(device) == 100 + 30 * (cycle - 1)
        device.release()
        assert used(device) == 30 * cycle
    assert device.observe().ours == 150 * MIB
    program = (
        "import sys; from pathlib import Path; from runners.devices.simulated import SimulatedDevice; "
        "d = SimulatedDevice(Path(sys.argv[1])); d.allocate(100 << 20); d.release(); print(d.observe().used)"
    )
    told = subprocess.run([sys.executable, "-c", program, str(file)], cwd=ROOT, capture_output=True, check=True)
    assert int(told.stdout) == 180 * MIB
    assert used(device) == 150


def test_a_release_with_nothing_held_leaves_nothing(device: SimulatedDevice) -> None:
    device.set_leak(30 * MIB)
    device.release()
    assert used(device) == 0


def test_slow_work_takes_longer_by_the_factor(device: SimulatedDevice) -> None:
    def steps() -> float:
        device.check()
        began = time.monotonic()
        for _ in range(5):
            time.sleep(0.01)
            device.check()
        return time.monotonic() - began

    device.set_slow(20)
    assert steps() > 5 * 0.01 * 20 * 0.99
    device.set_slow(1)
    device.check()
    assert device.state().slow == 1


def test_looking_changes_nothing_in_the_file(device: SimulatedDevice, file: Path) -> None:
    device.allocate(1)
    before = file.stat().st_mtime_ns
    device.observe()
    assert file.stat().st_mtime_ns == before


def test_a_file_of_before_is_read(file: Path) -> None:
    """Unknown fields do not stop it, and what is missing is as if never ordered."""
    file.write_text('{"total": 1024, "holders": {}, "lost": null, "fail_allocations": 0, "something": 1}')
    assert SimulatedDevice(file).observe().total == 1024


def test_processes_that_allocate_at_once_lose_nothing(device: SimulatedDevice, file: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from runners.devices.simulated import SimulatedDevice; "
        "d = SimulatedDevice(Path(sys.argv[1])); [d.allocate(1 << 20) for _ in range(40)]; "
        "print('done', flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(file)]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    try:
        assert [process.stdout.readline() for process in running if process.stdout] == ["done\n"] * 3
        assert used(device) == 120
    finally:
        for process in running:
            process.communicate("\n")
    assert used(device) == 0


# ---- the command ----


def orders(root: Path) -> SimulatedState:
    return msgspec.json.decode((root / "sim" / "sim-0.json").read_bytes(), type=SimulatedState)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sim").mkdir()
    SimulatedDevice(tmp_path / "sim" / "sim-0.json", 1000 * MIB)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("fail-alloc 3", "fail_allocations", 3),
        ("fail-above 512MiB", "fail_above", 512 * MIB),
        ("fail-above 0", "fail_above", None),
        ("fragment 64MiB", "largest_block", 64 * MIB),
        ("peak 300MiB 2.5", "peak", 300 * MIB),
        ("peak 300MiB 2.5", "peak_s", 2.5),
        ("lag 1.5", "lag_s", 1.5),
        ("leak 30MiB", "leak", 30 * MIB),
        ("slow 10", "slow", 10.0),
        ("garble", "garbage", True),
        ("garble off", "garbage", False),
        ("reserve 406MiB", "reserved", 406 * MIB),
    ],
)
def test_each_act_of_the_command(root: Path, words: str, field: str, value: object) -> None:
    assert sim.main([*words.split(), "--data", str(root)]) == 0
    assert getattr(orders(root), field) == value


def test_a_neighbour_over_time_by_command(root: Path) -> None:
    assert sim.main(["foreign", "0:100MiB", "0.5:1KiB", "--data", str(root)]) == 0
    assert [(step.after_s, step.size) for step in orders(root).foreign] == [(0.0, 100 * MIB), (0.5, 1024)]
    device = SimulatedDevice(root / "sim" / "sim-0.json")
    until(lambda: device.observe().used == 1024, "the second step")


@pytest.mark.parametrize("words", ["foreign x:1MiB", "foreign -1:1MiB", "foreign", "slow nan", "lag inf", "peak much"])
def test_what_the_command_does_not_understand(root: Path, words: str) -> None:
    try:
        code: object = sim.main([*words.split(), "--data", str(root)])
    except SystemExit as usage:
        code = usage.code
    assert code == 2
    assert orders(root) == SimulatedState(1000 * MIB)


def test_the_command_tells_what_stands(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim.main(["slow", "10", "--data", str(root)])
    sim.main(["require-reset", "--reason", "pulled", "--data", str(root)])
    capsys.readouterr()
    assert sim.main(["status", "--data", str(root)]) == 1
    assert "must be reset: pulled" in capsys.readouterr().out
    assert sim.main(["restore", "--json", "--data", str(root)]) == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    assert (told["state"], told["orders"]) == ("ok", {"slow": 10.0})
    assert sim.main(["status", "--data", str(root)]) == 0
    assert "slow 10" in capsys.readouterr().out
