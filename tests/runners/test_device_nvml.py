"""Readings of real cards, through the real pynvml over a fake library. Sizes are from what people reported."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_nvml import GIB, MIB, NONE, FakeCard, FakeEvent, FakeNvml, FakeSlice
from house import until

from core.hostbudget import HostReading
from runners.devices.base import MigPlace, Reading
from runners.devices.codes import meaning
from runners.devices.finder import Finder
from runners.devices.nvml import Card, Driver
from runners.devices.processes import marked, share

HOST = HostReading(121 * GIB, 40 * GIB, "memory")


class Desk:
    """A fake library with cards, and a driver session over it."""

    def __init__(self, *cards: FakeCard, ours: Callable[[int], bool] | None = None, **said: bool) -> None:
        self.nvml = FakeNvml(*cards)
        self.nvml.install()
        self.driver = Driver(said_unified=said, ours=ours, host=lambda: HOST)
        self.driver.open()
        self.cards = self.driver.cards()

    def look(self) -> Reading:
        (reading,) = self.cards[0].look().values()
        return reading


@pytest.fixture
def make() -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def made(*cards: FakeCard, **rest: Any) -> Desk:
        desks.append(Desk(*cards, **rest))
        return desks[-1]

    with FakeNvml().installed():
        yield made
        for desk in desks:
            desk.nvml.release()


def card(**rest: Any) -> FakeCard:
    return FakeCard("GPU-af7b61d8", **rest)


# ---- numbers ----


def test_version_2_counts_the_drivers_share_apart(make: Callable[..., Desk]) -> None:
    """The 8 GB card of which 7745 MiB could be used."""
    seen = make(card(total=8151 * MIB, reserved=406 * MIB, used=1000 * MIB)).look()
    assert (seen.state, seen.total, seen.reserved, seen.used, seen.free) == (
        "ok",
        8151 * MIB,
        406 * MIB,
        1000 * MIB,
        6745 * MIB,
    )
    assert (seen.name, seen.pci, seen.driver) == ("NVIDIA Fake 4090", "00000000:01:00.0", "999.10")


@pytest.mark.parametrize("how", [{"version2": False}, {"codes": {"nvmlDeviceGetMemoryInfo_v2": 3}}])
def test_version_1_has_it_in_used(make: Callable[..., Desk], how: dict[str, Any]) -> None:
    seen = make(card(total=8151 * MIB, reserved=406 * MIB, used=1000 * MIB, **how)).look()
    assert (seen.used, seen.reserved, seen.free) == (1406 * MIB, None, 6745 * MIB)


def test_two_to_the_64_minus_1_is_unknown(make: Callable[..., Desk]) -> None:
    seen = make(card(raw={"used": NONE})).look()
    assert (seen.state, seen.used, seen.total) == ("blind", None, 16 * GIB)
    assert make(card(raw={"reserved": NONE})).look().reserved is None


def test_not_supported_is_no_data_and_never_zero(make: Callable[..., Desk]) -> None:
    codes = {"nvmlDeviceGetMemoryInfo_v2": 3, "nvmlDeviceGetMemoryInfo": 3}
    seen = make(card(codes=codes)).look()
    assert (seen.state, seen.total, seen.used, seen.free, seen.unified) == ("blind", None, None, None, False)


def test_a_card_is_its_uuid_in_whatever_order(make: Callable[..., Desk]) -> None:
    cards = [card(pci="00000000:41:00.0"), FakeCard("GPU-other", pci="00000000:05:00.0", used=GIB)]
    desk = make(*cards)
    other = desk.cards[1]
    desk.nvml.memory.cards.reverse()
    desk.driver.renew()
    assert other.look()["GPU-other"].used == GIB


# ---- whose bytes ----


def test_bytes_of_our_processes_and_of_others(make: Callable[..., Desk]) -> None:
    desk = make(
        card(used=5 * GIB, processes={10: 2 * GIB, 11: GIB}, drawing={12: 512 * MIB, 10: 2 * GIB}),
        ours=lambda pid: pid == 10,
    )
    seen = desk.look()
    assert seen.processes == {10: 2 * GIB, 11: GIB, 12: 512 * MIB}
    assert (seen.ours, seen.foreign) == (2 * GIB, 3 * GIB)


def test_an_empty_list_beside_memory_in_use_says_nothing_about_ours(make: Callable[..., Desk]) -> None:
    """As in a container: 7325 MiB used, nobody listed."""
    seen = make(card(used=7325 * MIB), ours=lambda _: True).look()
    assert (seen.processes, seen.ours, seen.foreign) == ({}, None, None)


def test_pids_mean_nothing_in_another_namespace(make: Callable[..., Desk]) -> None:
    seen = make(card(used=5 * GIB, processes={10: 2 * GIB}), ours=None).look()
    assert (seen.ours, seen.foreign, seen.processes) == (None, None, None)


@pytest.mark.parametrize(
    ("used", "processes", "expected"),
    [
        (GIB, {7: 2 * GIB}, (2 * GIB, 0)),
        (GIB, {7: None}, (None, None)),
        (GIB, {8: None}, (0, GIB)),
        (None, {7: GIB}, (GIB, None)),
        (4 * MIB, {}, (0, 4 * MIB)),
        (GIB, None, (None, None)),
    ],
)
def test_shares(used: int | None, processes: Any, expected: tuple[int | None, int | None]) -> None:
    assert share(used, processes, lambda pid: pid == 7) == expected


def test_ours_are_those_with_our_mark(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, env={"FAILSOFT_INSTANCE": str(tmp_path)}) as mine,
        subprocess.Popen(command, stdin=subprocess.PIPE, env={"FAILSOFT_INSTANCE": str(tmp_path / "x")}) as other,
    ):
        ours = marked(tmp_path)
        until(lambda: ours(mine.pid), "the mark of a started process")
        assert not ours(other.pid)
        assert not ours(os.getpid())
        mine.communicate(b"\n")
        other.communicate(b"\n")
        assert not ours(mine.pid)


def test_no_permission_for_the_list_leaves_the_rest(make: Callable[..., Desk]) -> None:
    codes = {"nvmlDeviceGetComputeRunningProcesses": 4}
    seen = make(card(used=GIB, codes=codes), ours=lambda _: True).look()
    assert (seen.state, seen.used, seen.processes, seen.ours) == ("ok", GIB, None, None)


# ---- codes ----


@pytest.mark.parametrize(
    ("code", "state"),
    [(4, "blind"), (9, "lost"), (15, "lost"), (16, "reset-required"), (17, "blind"), (18, "blind"), (28, "lost")],
)
def test_what_a_code_makes_of_a_card(make: Callable[..., Desk], code: int, state: str) -> None:
    desk = make(card())
    desk.nvml.memory.cards[0].code = code
    seen = desk.look()
    assert (seen.state, seen.code, seen.total, seen.used) == (state, code, None, None)
    assert seen.reason
    assert seen.advice == meaning(code).advice


@pytest.mark.parametrize("code", [10, 999])
def test_passing_codes_are_asked_again_a_few_times_and_then_the_card_is_out(
    make: Callable[..., Desk], code: int
) -> None:
    desk = make(card())
    (fake,) = desk.nvml.memory.cards
    fake.code = code
    assert [desk.look().state for _ in range(4)] == ["unknown", "unknown", "lost", "lost"]
    assert "container" in (desk.look().advice or "")
    fake.code = 0
    assert desk.look().state == "ok"
    fake.code = code
    assert desk.look().state == "unknown"


def test_any_other_code_never_takes_a_card_out(make: Callable[..., Desk]) -> None:
    desk = make(card())
    desk.nvml.memory.cards[0].code = 77
    assert {desk.look().state for _ in range(10)} == {"unknown"}


def test_a_lost_card_comes_back_with_a_new_initialisation_only(make: Callable[..., Desk]) -> None:
    desk = make(card())
    desk.look()
    (fake,) = desk.nvml.memory.cards
    fake.code = 15
    assert desk.look().state == "lost"
    fake.code = 0
    assert desk.look().state == "lost"
    assert desk.driver.renew()
    assert desk.look().state == "ok"


# ---- recovery action ----


@pytest.mark.parametrize(
    ("action", "state"),
    [
        (None, "ok"),
        (0, "ok"),
        (1, "reset-required"),
        (2, "lost"),
        (3, "ok"),
        (4, "reset-required"),
        (5, "ok"),
        (6, "reset-required"),
        (7, "lost"),
    ],
)
def test_the_drivers_recovery_action(make: Callable[..., Desk], action: int | None, state: str) -> None:
    seen = make(card(recovery=action)).look()
    assert (seen.state, seen.recovery) == (state, action)
    assert bool(seen.advice) is bool(action)


# ---- Xids ----


def strike(desk: Desk, *codes: int, **rest: Any) -> Reading:
    """The driver reports Xids; the reading after they were heard."""
    desk.look()
    for code in codes:
        desk.nvml.memory.cards[0].events.append(FakeEvent(code, **rest))
        desk.cards[0].wait(5)
    return desk.look()


@pytest.mark.parametrize(
    ("xid", "state", "kind"),
    [
        (13, "ok", "app"),
        (31, "ok", "app"),
        (43, "ok", "app"),
        (94, "ok", "app"),
        (63, "ok", "info"),
        (999, "ok", "unknown"),
        (48, "reset-required", "check"),
        (119, "reset-required", "reset"),
        (79, "lost", "lost"),
        (154, "lost", "lost"),
    ],
)
def test_an_xid_by_its_class(make: Callable[..., Desk], xid: int, state: str, kind: str) -> None:
    before = time.time_ns() // 1000
    seen = strike(make(card()), xid)
    assert seen.state == state
    assert [(x.code, x.kind) for x in seen.xids] == [(xid, kind)]
    assert before <= seen.xids[0].at <= time.time_ns() // 1000
    document = msgspec.json.decode(msgspec.json.encode(seen))
    assert document["xids"][0].keys() == {"code", "class", "at"}


def test_a_latched_card_stays_out_though_it_answers(make: Callable[..., Desk]) -> None:
    desk = make(card())
    assert strike(desk, 79).reason == "Xid 79 (the card fell off the bus)"
    assert desk.driver.renew()
    assert desk.look().state == "lost"


def test_a_latched_card_is_back_when_it_was_away_and_was_enumerated_anew(make: Callable[..., Desk]) -> None:
    desk = make(card())
    strike(desk, 79)
    (fake,) = desk.nvml.memory.cards
    fake.code = 15
    assert (desk.look().state, desk.look().code) == ("lost", 15)
    fake.code = 0
    assert desk.look().state == "lost"
    assert desk.driver.renew()
    assert desk.look().state == "ok"
    assert [x.code for x in desk.look().xids] == [79]


def test_a_latched_card_is_back_when_the_driver_needs_no_recovery(make: Callable[..., Desk]) -> None:
    desk = make(card(recovery=1))
    strike(desk, 119)
    desk.nvml.memory.cards[0].recovery = 0
    assert desk.look().state == "reset-required"
    assert desk.driver.renew()
    assert desk.look().state == "ok"


def test_an_enumeration_from_before_an_xid_does_not_count(make: Callable[..., Desk]) -> None:
    desk = make(card(recovery=0))
    desk.look()
    assert desk.driver.renew()
    assert strike(desk, 119).state == "reset-required"
    assert desk.look().state == "reset-required"
    assert desk.driver.renew()
    assert desk.look().state == "ok"


def test_together_they_are_one_incident_with_the_last_ones_advice(make: Callable[..., Desk]) -> None:
    """Fell off the bus, then 154: the worst state, the last reason."""
    seen = strike(make(card()), 79, 154, 119)
    assert seen.state == "lost"
    assert seen.reason == "Xid 119 (the card's system processor does not answer)"
    assert [x.code for x in seen.xids] == [79, 154, 119]


@pytest.mark.parametrize(
    ("xid", "action", "state"),
    [
        (109, None, "reset-required"),
        (109, 0, "ok"),
        (109, 1, "reset-required"),
        (154, None, "lost"),
        (154, 0, "ok"),
        (154, 1, "reset-required"),
        (154, 2, "lost"),
        (154, 3, "ok"),
        (119, 0, "reset-required"),
        (119, 2, "lost"),
        (79, 1, "lost"),
    ],
)
def test_the_drivers_word_beside_an_xid(make: Callable[..., Desk], xid: int, action: int | None, state: str) -> None:
    """Of 109 and 154 the driver is asked; the others hold whatever it says, and can only become worse."""
    assert strike(make(card(recovery=action)), xid).state == state


def test_the_advice_is_the_drivers_where_it_gives_one(make: Callable[..., Desk]) -> None:
    seen = strike(make(card(recovery=2)), 79, 154)
    assert (seen.state, seen.reason) == ("lost", "Xid 79 (the card fell off the bus)")
    assert seen.advice == "Reboot this machine."


def test_a_card_is_out_for_its_own_xids_only(make: Callable[..., Desk]) -> None:
    desk = make(card(), FakeCard("GPU-second", pci="00000000:02:00.0"))
    first, second = desk.cards
    first.look(), second.look()
    desk.nvml.memory.cards[1].events.append(FakeEvent(79))
    first.wait(0.05)
    second.wait(5)
    assert first.look()["GPU-af7b61d8"].state == "ok"
    assert second.look()["GPU-second"].state == "lost"


def test_what_was_before_the_registration_is_not_told(make: Callable[..., Desk]) -> None:
    desk = make(card(events=[FakeEvent(79)]))
    desk.look()
    desk.cards[0].wait(0.05)
    assert (desk.look().state, desk.look().xids) == ("ok", ())


def test_after_an_unknown_error_the_set_is_made_anew_and_hears_again(make: Callable[..., Desk]) -> None:
    desk = make(card())
    seen = strike(desk, 0, code=999)
    assert (seen.state, seen.xids) == ("ok", ())
    assert desk.nvml.calls.count("nvmlEventSetCreate") == 2
    assert desk.nvml.calls.count("nvmlEventSetFree") == 1
    assert [x.code for x in strike(desk, 13).xids] == [13]


def test_other_events_end_the_wait_and_say_no_more(make: Callable[..., Desk]) -> None:
    desk = make(card())
    began = time.monotonic()
    desk.look()
    desk.nvml.memory.cards[0].events.append(FakeEvent(0, kind=0x8000))
    desk.cards[0].wait(60)
    assert time.monotonic() - began < 30
    assert desk.look().xids == ()


@pytest.mark.parametrize("how", [{"event_kinds": 0}, {"codes": {"nvmlDeviceGetSupportedEventTypes": 3}}])
def test_without_events_there_are_readings(make: Callable[..., Desk], how: dict[str, Any]) -> None:
    desk = make(card(used=GIB, **how))
    assert desk.look().used == GIB
    desk.cards[0].wait(0.01)
    assert desk.look().used == GIB
    assert "nvmlEventSetWait_v2" not in desk.nvml.calls


def test_only_the_last_few_are_kept(make: Callable[..., Desk]) -> None:
    codes = [13, 31, 13, 43, 45, 13, 31, 13, 43, 8]
    assert [x.code for x in strike(make(card()), *codes).xids] == codes[-8:]


# ---- slices ----


def test_a_slice_has_its_own_size_and_uuid(make: Callable[..., Desk]) -> None:
    """16 GiB of a card of 141."""
    slices = [
        FakeSlice("MIG-one", 16 * GIB, used=3 * GIB, gpu_instance=7, processes={10: 3 * GIB}),
        FakeSlice("MIG-two", 32 * GIB, gpu_instance=9),
    ]
    desk = make(card(total=141 * GIB, used=99 * GIB, slices=slices), ours=lambda pid: pid == 10)
    seen = desk.cards[0].look()
    assert seen.keys() == {"MIG-one", "MIG-two"}
    one = seen["MIG-one"]
    assert (one.total, one.used, one.free, one.ours, one.foreign) == (16 * GIB, 3 * GIB, 13 * GIB, 3 * GIB, 0)
    assert one.mig == MigPlace("GPU-af7b61d8", 7, 0)
    assert (seen["MIG-two"].total, seen["MIG-two"].ours) == (32 * GIB, 0)


def test_a_card_cut_up_without_slices_cannot_be_used(make: Callable[..., Desk]) -> None:
    seen = make(card(slices=[])).look()
    assert (seen.state, seen.total) == ("blind", None)
    assert "nvidia-smi mig" in (seen.advice or "")


def test_a_slice_that_was_taken_away_is_lost_and_the_others_are_not(make: Callable[..., Desk]) -> None:
    desk = make(card(slices=[FakeSlice("MIG-one", 16 * GIB), FakeSlice("MIG-two", 16 * GIB)]))
    desk.cards[0].look()
    del desk.nvml.memory.cards[0].slices[0]  # type: ignore[union-attr]
    seen = desk.cards[0].look()
    assert {uuid: reading.state for uuid, reading in seen.items()} == {"MIG-one": "lost", "MIG-two": "ok"}


def test_slices_share_the_fate_of_their_card(make: Callable[..., Desk]) -> None:
    desk = make(card(slices=[FakeSlice("MIG-one", 16 * GIB), FakeSlice("MIG-two", 16 * GIB)]))
    desk.cards[0].look()
    desk.nvml.memory.cards[0].code = 15
    seen = desk.cards[0].look()
    assert {uuid: (reading.state, reading.total) for uuid, reading in seen.items()} == {
        "MIG-one": ("lost", None),
        "MIG-two": ("lost", None),
    }


def test_a_programs_failure_on_one_slice_is_not_anothers(make: Callable[..., Desk]) -> None:
    slices = [FakeSlice("MIG-one", GIB, gpu_instance=7), FakeSlice("MIG-two", GIB, gpu_instance=9)]
    desk = make(card(slices=slices))
    desk.cards[0].look()
    desk.nvml.memory.cards[0].events += [FakeEvent(31, gpu_instance=9), FakeEvent(63, gpu_instance=9)]
    desk.cards[0].wait(5)
    desk.cards[0].wait(5)
    seen = desk.cards[0].look()
    assert [x.code for x in seen["MIG-one"].xids] == [63]
    assert [x.code for x in seen["MIG-two"].xids] == [31, 63]


# ---- memory of the host's ----

NO_MEMORY = {"nvmlDeviceGetMemoryInfo_v2": 3, "nvmlDeviceGetMemoryInfo": 3}


def test_a_word_about_links_does_not_hide_that_memory_is_unknown(make: Callable[..., Desk]) -> None:
    seen = make(card(recovery=3, codes=NO_MEMORY)).look()
    assert (seen.state, seen.recovery) == ("blind", 3)


@pytest.mark.parametrize(
    "how",
    [
        {"name": "NVIDIA GB10", "codes": NO_MEMORY, "aperture": None},
        {"name": "NVIDIA GB10", "total": 121 * GIB, "aperture": None},
        {"name": "NVIDIA GB10", "total": 0},
        {"name": "Orin (nvgpu)", "codes": NO_MEMORY},
        {"name": "NVIDIA N1X", "total": 8128 * MIB},
        {"name": "NVIDIA Next Chip", "codes": NO_MEMORY, "aperture": None},
        {"name": "NVIDIA Next Chip", "total": 121 * GIB, "aperture": 0},
    ],
)
def test_a_system_on_a_chip_shares_the_hosts_memory(make: Callable[..., Desk], how: dict[str, Any]) -> None:
    """Reported of one and the same chip: no memory told on one box, the host's size on another."""
    seen = make(card(processes={10: GIB}, **how), ours=lambda pid: pid == 10).look()
    assert (seen.state, seen.unified) == ("ok", True)
    assert (seen.total, seen.free, seen.used) == (121 * GIB, 40 * GIB, 81 * GIB)
    assert (seen.ours, seen.foreign) == (GIB, None)


@pytest.mark.parametrize(
    "how",
    [
        {"total": 121 * GIB},
        {"total": 96 * GIB, "aperture": None},
        {"name": "NVIDIA GB100", "total": 180 * GIB},
        {"name": "NVIDIA GH200 480GB", "total": 96 * GIB},
        {"codes": NO_MEMORY},
        {"total": 121 * GIB, "codes": {"nvmlDeviceGetBAR1MemoryInfo": 4}},
    ],
)
def test_a_size_alone_makes_no_unified_memory(make: Callable[..., Desk], how: dict[str, Any]) -> None:
    assert make(card(**how)).look().unified is False


def test_the_operators_word_on_it_goes_before_everything(make: Callable[..., Desk]) -> None:
    assert make(card(total=121 * GIB), **{"GPU-af7b": True}).look().unified is True
    assert make(card(name="NVIDIA GB10", total=121 * GIB), **{"GPU-af7b": False}).look().unified is False
    assert make(card(total=121 * GIB), **{"GPU-0000": True}).look().unified is False


# ---- the driver ----


def test_the_finder_tells_each_card_once_and_finds_it_again(make: Callable[..., Desk]) -> None:
    desk = make(card())
    driver = Driver()
    desk.nvml.memory.init = 9
    found: list[Card] = []
    finder = Finder(driver, found.append)
    seen = finder.look()["nvml"]
    assert (seen.state, seen.code, found) == ("lost", 9, [])
    desk.nvml.memory.init = 0
    assert finder.look()["nvml"] == Reading("ok", driver="999.10")
    assert finder.look()["nvml"].state == "ok"
    assert [c.uuid for c in found] == ["GPU-af7b61d8"]

    found[0].look()
    desk.nvml.memory.cards[0].code = 15
    assert found[0].look()["GPU-af7b61d8"].state == "lost"
    desk.nvml.memory.cards[0].code = 0
    finder.look()
    assert found[0].look()["GPU-af7b61d8"].state == "ok"


def test_no_card_and_no_library_are_told_apart(make: Callable[..., Desk]) -> None:
    desk = make()
    finder = Finder(Driver(), lambda _: None)
    assert finder.look()["nvml"].reason == "the driver shows no card"
    desk.nvml.memory.init = 12
    assert Finder(Driver(), lambda _: None).look() == {}
    desk.nvml.memory.init = 18
    mismatch = Finder(Driver(), lambda _: None).look()["nvml"]
    assert (mismatch.state, mismatch.code) == ("blind", 18)
    assert "Restart the service" in (mismatch.advice or "")


def test_a_driver_that_went_makes_its_cards_so(make: Callable[..., Desk]) -> None:
    desk = make(card())
    desk.look()
    desk.nvml.memory.init = 18
    with pytest.raises(Exception, match="mismatch"):
        desk.driver.renew()
    assert (desk.look().state, desk.look().code) == ("blind", 18)
    desk.nvml.memory.init = 0
    desk.driver.renew()
    assert desk.look().state == "ok"


def test_a_hanging_call_stops_one_card_and_no_initialisation_is_forced(make: Callable[..., Desk]) -> None:
    desk = make(card(), FakeCard("GPU-second", pci="00000000:02:00.0"))
    first, second = desk.cards
    first.look()
    desk.nvml.memory.cards[0].hangs = ["*"]
    thread = threading.Thread(target=first.look)
    thread.start()
    assert second.look()["GPU-second"].state == "ok"
    assert desk.driver.renew() is False
    assert second.look()["GPU-second"].state == "ok"
    desk.nvml.release()
    thread.join()
    assert desk.driver.renew() is True


def test_a_call_known_to_hang_is_not_waited_for(make: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    """Others would have to pause meanwhile."""
    monkeypatch.setattr("runners.devices.nvml._STUCK_S", 0.05)
    desk = make(card(hangs=["nvmlDeviceGetMemoryInfo_v2"]))
    thread = threading.Thread(target=desk.look)
    thread.start()
    time.sleep(0.2)
    began = time.monotonic()
    desk.driver.close(60)
    assert time.monotonic() - began < 30
    desk.nvml.release()
    thread.join()


def test_nothing_but_nvml_is_ever_loaded() -> None:
    """The first CUDA call would take memory on the card."""
    program = "import sys, runners.devices.nvml as n; n.main(); print(sorted(m for m in sys.modules if 'cuda' in m))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    told, modules = done.stdout.splitlines()
    assert modules == "[]"
    assert {"problem", "code", "advice"} <= msgspec.json.decode(told).keys() or "devices" in told


def test_the_command_prints_readings(make: Callable[..., Desk], capsys: pytest.CaptureFixture[str]) -> None:
    from runners.devices import nvml

    desk = make(card(used=GIB, total=8 * GIB))
    assert nvml.main() == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["driver"] == "999.10"
    assert [(d["id"], d["state"], d["total"], d["used"]) for d in told["devices"]] == [
        ("GPU-af7b61d8", "ok", 8 * GIB, GIB)
    ]
    desk.nvml.memory.init = 9
    assert nvml.main() == 1
    assert msgspec.json.decode(capsys.readouterr().out)["code"] == 9
