"""What holds the CPU lane to its budget: limits, cgroups, and what processes are seen to hold."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.hostbudget import HostReading, limits
from core.policy import Policy
from runners import cgroups
from runners.cgroups import Group, NoGroup
from runners.devices.host import left_in, observe_host
from runners.hostbudget import SLACK, HostBudget
from runners.process import proportional, size_of, with_descendants
from store.database import Paths

MIB = 1 << 20
GIB = 1 << 30


def test_the_limits_by_hand() -> None:
    """20 GiB of 24 available, 3 of them mapped by workers that hold 5: with nothing of theirs it would be 22."""
    reading = HostReading(24 * GIB, 20 * GIB, "memory")
    free = limits(Policy(host_floor=0.25), reading, held=5 * GIB, mapped=3 * GIB)
    assert (free.soft, free.hard, free.limited_by) == (16 * GIB, 19 * GIB, "memory")
    fixed = limits(Policy(host_floor=0.25, cpu_budget_bytes=10 * GIB), reading, held=5 * GIB, mapped=3 * GIB)
    assert (fixed.soft, fixed.hard, fixed.limited_by) == (9 * GIB, 10 * GIB, "cpu_budget_bytes")
    short = limits(Policy(host_floor=0.25, cpu_budget_bytes=90 * GIB), reading, held=0, mapped=0)
    assert (short.soft, short.hard) == (14 * GIB, 17 * GIB), "a fixed budget is no memory"
    none = limits(Policy(host_floor=0.5), HostReading(8 * GIB, GIB, "memory"), held=0, mapped=0)
    assert (none.soft, none.hard) == (0, 0)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "memory.max": "1000",
                "memory.current": "700",
                "memory.stat": "anon 400\nactive_file 120\ninactive_file 80",
            },
            (1000, 500),
        ),
        ({"memory.max": "max", "memory.current": "700", "memory.stat": "anon 1"}, None),
        (
            {
                "memory.limit_in_bytes": "1000",
                "memory.usage_in_bytes": "900",
                "memory.stat": "active_file 1\ntotal_active_file 30\ntotal_inactive_file 70",
            },
            (1000, 200),
        ),
        ({}, None),
    ],
)
def test_what_a_cgroup_leaves(tmp_path: Path, files: dict[str, str], expected: tuple[int, int] | None) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    assert left_in(tmp_path) == expected


def test_the_host_is_never_larger_than_the_kernel_says() -> None:
    info = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    reading = observe_host()
    assert 0 < reading.available <= reading.total <= int(info["MemTotal"].split()[0]) * 1024


# ---- a group of our own: the files and their order; the kernel's part is in the test below ----


@pytest.fixture
def handed(tmp_path: Path) -> Path:
    """A folder with the files of a cgroup that was handed to this process alone."""
    here = tmp_path / "own"
    here.mkdir()
    for name, text in (
        ("cgroup.controllers", "cpu memory pids"),
        ("cgroup.type", "domain"),
        ("cgroup.procs", f"{os.getpid()}\n"),
        ("cgroup.subtree_control", ""),
    ):
        (here / name).write_text(text)
    return here


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("cgroup.controllers", None, "cgroup v2 is not in use"),
        ("cgroup.controllers", "cpu pids", "memory controller"),
        ("cgroup.type", None, "root cgroup"),
        ("cgroup.procs", "1\n", "other programs"),
    ],
)
def test_no_group_is_made_where_it_is_not_ours_to_make(handed: Path, file: str, text: str | None, why: str) -> None:
    (handed / file).unlink() if text is None else (handed / file).write_text(text)
    before = sorted(handed.rglob("*"))
    with pytest.raises(NoGroup, match=why):
        Group.make("x", GIB, handed)
    assert sorted(handed.rglob("*")) == before


def test_what_the_kernel_refuses_leaves_nothing_behind(handed: Path) -> None:
    """In an ordinary folder a new group has no files, as where the kernel refuses to hand the controller on."""
    with pytest.raises(NoGroup, match="No such file"):
        Group.make("x", GIB, handed)
    assert [path for path in handed.iterdir() if path.is_dir()] == []


def test_a_kill_in_the_group_is_told_once(tmp_path: Path) -> None:
    group = Group(tmp_path, "x")
    group.folder.mkdir()
    assert not group.killed()
    (group.folder / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 1\n")
    assert group.killed()
    assert not group.killed()


HOG = "import sys; taken = [b'x' * (1 << 20) for _ in range(int(sys.argv[1]))]; print(len(taken))"


@pytest.mark.skipif(cgroups.refusal(cgroups.own_levels()[0]) is not None, reason="no cgroup was handed to this process")
def test_the_kernel_holds_a_group_to_its_limit() -> None:
    """Only where this process has a delegated cgroup v2 for itself, such as under `systemd-run -p Delegate=yes`."""
    group = Group.make("failsoft-test", 64 * MIB)
    try:
        with subprocess.Popen([sys.executable, "-c", f"input(); {HOG}", "200"], stdin=subprocess.PIPE) as child:
            group.take(child.pid)
            child.communicate(b"\n")
        assert child.returncode == -9
        assert group.killed()
    finally:
        group.close()
    assert not group.folder.exists()


# ---- without one ----


def test_a_worker_gets_no_more_than_the_hard_limit_and_the_slack(empty: Paths) -> None:
    budget = HostBudget(empty, Policy(cpu_budget_bytes=64 * MIB))
    if budget.by == "cgroup":
        budget.close()
        pytest.skip("the kernel holds it here, by a cgroup")
    assert budget.why
    most = (64 * MIB + SLACK) // MIB
    for size, comes in ((most // 2, True), (most, False)):
        program = [sys.executable, "-c", f"input(); {HOG}", str(size)]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            budget.hold(child.pid)
            out, errors = child.communicate(b"\n")
        assert (child.returncode == 0) is comes
        assert (out.strip() == str(size).encode()) is comes
        assert (b"MemoryError" in errors) is not comes


def test_what_processes_hold_is_seen_with_all_that_they_started() -> None:
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOG + '; input()'!r}, '80'])"
    with subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"80\n"
        pids = with_descendants(child.pid)
        assert pids[0] == child.pid
        assert len(pids) == 2
        size = size_of(pids)
        assert size.own > 80 * MIB
        assert size_of(pids[:1]).own < 40 * MIB
        assert 80 * MIB < proportional(pids) <= size.resident
        child.communicate(b"\n")
    assert size_of(pids).resident == proportional(pids) == 0
    assert with_descendants(pids[0]) == pids[:1]
