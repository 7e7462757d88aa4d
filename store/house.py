"""The state of the house: what a new run clears away, what is read of devices, whether this run is about to end."""

from typing import Final

import msgspec

from core import events as ev
from store import samples
from store.journal import Sees, Tx

_OF_ONE_RUN: Final = ("runners", "readings", "lanes", "reservations", "releases")


def clear_run(tx: Tx) -> None:
    """Forget what was true of the former run only. Leases stay: whoever held one is told of it first."""
    for table in _OF_ONE_RUN:
        tx.execute(f"DELETE FROM {table}")  # noqa: S608 -- constants
    tx.execute("DELETE FROM service WHERE key='draining'")
    samples.sweep(tx)


def drain(tx: Tx) -> None:
    """From here on nothing new is admitted."""
    tx.execute("INSERT INTO service (key, value) VALUES ('draining','1') ON CONFLICT (key) DO UPDATE SET value='1'")


def ask_drain(tx: Tx, reason: str, *, actor: str) -> None:
    """The same, because somebody wants everything safe; said once in the journal."""
    if not draining(tx):
        tx.append("service", ev.DrainAsked(reason), actor=actor)
        drain(tx)


def draining(tx: Sees) -> bool:
    """Whether nothing new is admitted any more."""
    row = tx.execute("SELECT value FROM service WHERE key='draining'", ()).fetchone()
    return row is not None and row[0] == "1"


def put_reading(tx: Tx, device: str, at_us: int, document: str) -> None:
    """Keep the latest reading of a device, under the time it was taken, not the time it was written."""
    tx.execute(
        "INSERT INTO readings (device, at_us, doc) VALUES (?,?,?) "
        "ON CONFLICT (device) DO UPDATE SET at_us=excluded.at_us, doc=excluded.doc",
        (device, at_us, document),
    )
    samples.keep(tx, device, at_us, document)


def reading_of(tx: Sees, device: str) -> tuple[int, str] | None:
    """The latest reading of a device: when it was taken (wall clock, microseconds), and its document."""
    row = tx.execute("SELECT at_us, doc FROM readings WHERE device=?", (device,)).fetchone()
    return None if row is None else (int(row[0]), str(row[1]))


def last_reading_us(tx: Sees) -> int | None:
    """When the latest reading of anything was taken; None before the first."""
    (at_us,) = tx.execute("SELECT max(at_us) FROM readings", ()).fetchone()
    return None if at_us is None else int(at_us)


def known(tx: Sees, device: str) -> bool:
    """Whether a device was ever used with this record."""
    return tx.execute("SELECT 1 FROM devices WHERE id=?", (device,)).fetchone() is not None


def known_cards(tx: Sees) -> tuple[str, ...]:
    """Ids of the real accelerators that were ever used with this record."""
    sql = "SELECT id FROM devices WHERE simulated=0 AND id NOT LIKE 'upstream:%' ORDER BY id"
    return tuple(row[0] for row in tx.execute(sql, ()).fetchall())


class DeviceSeen(msgspec.Struct, frozen=True):
    """A device by the record, beside its latest reading.

    A reading from before the record last changed says nothing about now: then `seen` is None.
    """

    id: str
    recorded: str
    seen: str | None
    reason: str
    advice: str


def devices_seen(tx: Sees) -> list[DeviceSeen]:
    """Every device that is known."""
    rows = tx.execute(
        "SELECT d.id, d.state, r.doc FROM devices d LEFT JOIN readings r ON r.device = d.id AND r.at_us > d.since_us",
        (),
    ).fetchall()
    found = []
    for device, state, document in rows:
        reading = msgspec.json.decode(document) if document else {}
        why, advice = reading.get("reason") or "no longer answers", reading.get("advice") or ""
        found.append(DeviceSeen(device, state, reading.get("state"), why, advice))
    return found
