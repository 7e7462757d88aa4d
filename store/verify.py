"""Is the record whole? The chain link by link, every transition by the table, every projection rebuilt and compared.

Every prompt and output is compared with its digest in the chain (`store.keepsakes`).

Names the first bad seq. A cut tail is found by the anchors: (seq, hash) lines written to a file of their own from time
to time, since a chain alone cannot show what was cut off its end. A line there that is not whole is no anchor.
"""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from core import events as ev
from core.breaker import Breaker
from core.breaker import apply as apply_breaker
from core.errors import IllegalEvent
from core.events import Recorded
from core.machine import apply
from core.state import RequestState
from store.database import Paths, read_engine
from store.journal import FIELDS, REQUEST_TYPES, chain, record_of
from store.keepsakes import misfit
from store.projections import columns

ANCHOR: Final = re.compile(r"^(\d+) ([0-9a-f]{64})$", re.MULTILINE)
_Device = tuple[str, int, int | None, str, str | None, int, int, Breaker]
"""Columns of a row of `devices` after its id, and its breaker."""


class Verdict(msgspec.Struct, frozen=True):
    """`bad_seq` is where the record stops being whole, or None; `problem` says how."""

    events: int
    requests: int
    head: str
    bad_seq: int | None = None
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return self.problem is None


class _Broken(Exception):
    def __init__(self, seq: int, problem: str) -> None:
        super().__init__(problem)
        self.seq = seq
        self.problem = problem


def anchors_file(paths: Paths) -> Path:
    """Where anchors are kept, one `seq hash` a line."""
    return paths.root / "anchors.txt"


def anchor(paths: Paths) -> None:
    """Write down where the chain ends now, so that a tail that is cut off later is missed."""
    with read_engine(paths).connect() as connection:
        seq, link = connection.exec_driver_sql("SELECT seq, hash FROM head WHERE id=1").one()
    with anchors_file(paths).open("a") as file:
        file.write(f"{seq} {link}\n")


def verify(paths: Paths) -> Verdict:
    """Read the whole store once, in one read transaction."""
    with read_engine(paths).connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.execute("BEGIN")
        states: dict[str, RequestState] = {}
        seq, link = 0, ""
        try:
            devices: dict[str, _Device] = {}
            seq, link = _chain(driver, _anchors(paths), states, devices)
            _projections(driver, states, devices, seq)
            _contents(driver, states, seq)
        except _Broken as broken:
            return Verdict(broken.seq - 1 if seq == 0 else seq, len(states), link, broken.seq, broken.problem)
        return Verdict(seq, len(states), link)


def _contents(driver: sqlite3.Connection, states: dict[str, RequestState], seq: int) -> None:
    try:
        found = misfit(driver, states)
    except sqlite3.Error as error:
        raise _Broken(seq, f"the contents cannot be read: {error}") from error
    if found is not None:
        raise _Broken(*found)


def _anchors(paths: Paths) -> dict[int, str]:
    file = anchors_file(paths)
    text = file.read_text(errors="replace") if file.exists() else ""
    return {int(seq): link for seq, link in ANCHOR.findall(text)}


def _rows(driver: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    """Every event with its hash, in order; a row that SQLite cannot read is a problem of the record."""
    seq = 0
    try:
        for row in driver.execute(f"SELECT {FIELDS}, hash FROM events ORDER BY seq"):  # noqa: S608 -- constants
            seq = row[0]
            yield row
    except sqlite3.Error as error:
        raise _Broken(seq + 1, f"event {seq + 1} cannot be read: {error}") from error


def _chain(
    driver: sqlite3.Connection, anchors: dict[int, str], states: dict[str, RequestState], devices: dict[str, _Device]
) -> tuple[int, str]:
    seq, link = 0, ""
    versions: dict[str, int] = {}
    for *fields, stored in _rows(driver):
        if fields[0] != seq + 1:
            raise _Broken(seq + 1, f"event {seq + 1} is missing; the next there is {fields[0]}")
        seq += 1
        link = chain(link, tuple(fields))
        if link != stored:
            raise _Broken(seq, f"event {seq} does not match its hash: it, or its order, was changed")
        if anchors.get(seq, link) != link:
            raise _Broken(seq, f"event {seq} does not match the anchor that was written when it was new")
        _follow(fields, versions, states, devices)
    head = driver.execute("SELECT seq, hash FROM head WHERE id = 1").fetchone()
    if head[0] == seq and head[1] != link:
        raise _Broken(seq, f"the head's hash is not that of event {seq}, the last one: it was changed")
    if head != (seq, link):
        raise _Broken(seq + 1, f"the journal ends at {seq}, but its head says {head[0]}: the tail was cut")
    last = max(anchors, default=0)
    if last > seq:
        raise _Broken(seq + 1, f"the journal ends at {seq}, but an anchor was written at {last}: the tail was cut")
    return seq, link


def _follow(
    fields: list[Any], versions: dict[str, int], states: dict[str, RequestState], devices: dict[str, _Device]
) -> None:
    seq, stream, version = fields[0], fields[2], fields[3]
    if version != versions.get(stream, 0) + 1:
        raise _Broken(seq, f"event {seq} is version {version} of {stream}, expected {versions.get(stream, 0) + 1}")
    versions[stream] = version
    try:
        record = record_of(fields)
        if type(record.event) in REQUEST_TYPES:
            states[stream] = apply(
                states.get(stream), record.event, stream=stream, at_us=record.at_us, attempt=record.attempt
            )
        else:
            _follow_device(record, devices)
    except (IllegalEvent, ValueError, msgspec.MsgspecError) as error:
        raise _Broken(seq, f"event {seq} of {stream}: {error}") from error


def _follow_device(record: Recorded, devices: dict[str, _Device]) -> None:
    id_ = record.stream.removeprefix("device-")
    match record.event:
        case ev.DeviceFound() as event:
            devices[id_] = (event.name, int(event.simulated), event.total_bytes, "ok", None, 1, record.at_us, Breaker())
        case ev.DeviceLost() as event if id_ in devices:
            devices[id_] = (*devices[id_][:3], "lost", event.reason, event.epoch, record.at_us, devices[id_][-1])
        case ev.DeviceBack() as event if id_ in devices:
            devices[id_] = (*devices[id_][:3], "ok", None, event.epoch, record.at_us, devices[id_][-1])
        case _ if id_ in devices and id_ != record.stream:
            devices[id_] = (*devices[id_][:-1], apply_breaker(devices[id_][-1], record.event, record.at_us))
        case _:
            pass


def _projections(
    driver: sqlite3.Connection, states: dict[str, RequestState], devices: dict[str, _Device], seq: int
) -> None:
    stored = driver.execute(
        "SELECT id, state, lane, running, cancel_asked, version, turn_us, not_before_us, deadline_us, updated_us, doc, "
        "owner, workload, model, created_us FROM requests"
    )
    seen = 0
    for id_, *row in stored:
        seen += 1
        if id_ not in states:
            raise _Broken(seq, f"request {id_} has a row but no events")
        state = states[id_]
        if tuple(row) != (*columns(state), state.owner, state.workload, state.model, state.created_us):
            raise _Broken(seq, f"the row of request {id_} differs from what its events say")
    if seen != len(states):
        raise _Broken(seq, f"{len(states) - seen} requests have events but no row")
    kept = {
        id_: (*row, msgspec.json.decode(doc, type=Breaker) if doc else Breaker())
        for id_, *row, doc in driver.execute(
            "SELECT id, name, simulated, total_bytes, state, reason, epoch, since_us, breaker_doc FROM devices"
        ).fetchall()
    }
    for id_ in sorted(kept.keys() | devices.keys()):
        if kept.get(id_) != devices.get(id_):
            raise _Broken(seq, f"the row of device {id_} differs from what its events say")
