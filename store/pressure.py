"""Memory pressure of devices: what fresh readings say of it, and what is kept (`core.pressure` judges)."""

import msgspec

from core import events as ev
from core.pressure import Pressure
from store.journal import Sees, Tx


class Load(msgspec.Struct, frozen=True):
    """How full a device is by its latest reading, in bytes, and the pressure that is kept of it."""

    device: str
    kept: Pressure
    used: int
    reserved: int
    """By the driver, beside what is used."""
    total: int

    @property
    def share(self) -> float:
        """Of its memory, what is not free."""
        return (self.used + self.reserved) / self.total


def loads(look: Sees, max_age_us: int) -> list[Load]:
    """Of each sound device that was read lately: an old reading says nothing of now, least of all that it is calm."""
    rows = look.execute(
        "SELECT d.id, d.spilling, d.calm_us, r.doc FROM devices d "
        "JOIN readings r ON r.device = d.id WHERE d.state='ok' AND r.at_us>?",
        (look.now_us - max_age_us,),
    ).fetchall()
    found = []
    for device, spilling, calm_us, document in rows:
        reading = msgspec.json.decode(document)
        used, total = reading.get("used"), reading.get("total")
        if used is not None and total:
            found.append(Load(device, Pressure(bool(spilling), calm_us), used, reading.get("reserved") or 0, total))
    return found


def keep(tx: Tx, device: str, pressure: Pressure, used: int, total: int) -> None:
    """Keep a device's pressure; the journal hears of it when spilling begins or ends."""
    row = tx.execute("SELECT spilling FROM devices WHERE id=?", (device,)).fetchone()
    if row is None:
        return
    tx.execute(
        "UPDATE devices SET spilling=?, calm_us=? WHERE id=?", (int(pressure.spilling), pressure.calm_us, device)
    )
    if bool(row[0]) != pressure.spilling:
        event = ev.PressureRose(used, total) if pressure.spilling else ev.PressureFell(used, total)
        tx.append(f"device-{device}", event, actor="supervisor")
