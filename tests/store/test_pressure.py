"""Memory pressure over the store: which readings count, how full a device is by them, and what the journal hears."""

from functools import partial

from desk import Desk, HandClock

from core.pressure import Pressure
from store import breakers, house, pressure

MIB = 1 << 20
FIVE_S = 5_000_000


def loads(desk: Desk) -> list[tuple[str, float]]:
    return [(load.device, load.share) for load in desk.run(lambda tx: pressure.loads(tx, FIVE_S))]


def test_what_the_driver_keeps_is_not_free_and_an_old_reading_says_nothing(timed: Desk, clock: HandClock) -> None:
    desk = timed
    assert loads(desk) == []
    assert desk.run(house.last_reading_us) is None
    desk.show(total=1000 * MIB, used=700 * MIB, reserved=100 * MIB)
    assert loads(desk) == [("sim-0", 0.8)]
    assert desk.run(house.last_reading_us) == clock.now
    clock.go(5)
    assert loads(desk) == []
    desk.show(total=1000 * MIB, used=None)
    assert loads(desk) == [], "unknown is not zero"


def test_a_lost_device_is_under_no_pressure(desk: Desk) -> None:
    desk.show(total=1000 * MIB, used=700 * MIB)
    desk.run(lambda tx: breakers.device_lost(tx, "sim-0", desk.policy, reason="gone", actor="test"))
    assert loads(desk) == []


def test_the_journal_hears_of_a_change_and_of_nothing_else(desk: Desk) -> None:
    for now in (Pressure(False, 3), Pressure(True, None), Pressure(True, 7), Pressure(False, None)):
        desk.run(partial(pressure.keep, device="sim-0", pressure=now, used=9, total=10))
    assert desk.types("device-sim-0") == ["DeviceFound", "PressureRose", "PressureFell"]
    desk.run(lambda tx: pressure.keep(tx, "GPU-9", Pressure(spilling=True), 9, 10))
    assert desk.ask("SELECT id FROM devices") == [("sim-0",)]
