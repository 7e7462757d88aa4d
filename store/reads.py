"""Reads of the web process: short, on a read-only connection, everything fetched before it is given back.

A read whose caller went away goes on to its end: broken off, it would cost its connection, and the thread behind it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import Connection, Select, event, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from core.errors import Malformed, NotFound
from core.eta import Eta
from core.events import Recorded
from core.ledger import DeviceFacts
from core.policy import Policy
from core.state import RequestState
from core.words import SETTLED
from store import tables, waits
from store.contents import Spec, StoredChunk, read_chunk, read_spec
from store.database import BUSY_MS, Paths, read_url
from store.journal import FIELDS, Sees, record_of
from store.laneviews import BREAKER_OPEN
from store.projections import state_of
from store.reservations import device_facts
from store.waits import Outlook

_EVENT_COLUMNS: Final = [tables.events.c[name] for name in FIELDS.split(", ")]
MAX_PAGE: Final = 500


T = TypeVar("T")


def async_read_engine(paths: Paths) -> AsyncEngine:
    """Reads of the web process."""
    engine = create_async_engine(read_url("sqlite+aiosqlite", paths), pool_size=4, max_overflow=4)

    @event.listens_for(engine.sync_engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        cursor.execute("PRAGMA wal_autocheckpoint=0")
        cursor.execute("PRAGMA query_only=ON")
        cursor.close()

    return engine


async def _whole(reading: Coroutine[Any, Any, T]) -> T:
    """The outcome of a read that ends by itself, whether or not this call is cancelled."""
    return await asyncio.shield(asyncio.ensure_future(reading))


def row_dict(row: Any) -> dict[str, Any]:
    """A row by its column names."""
    return dict(row._mapping)  # noqa: SLF001 -- SQLAlchemy's public name for it begins so


class _Seen:
    """A look at the store through a connection of this module's engine."""

    def __init__(self, connection: Connection, now_us: int) -> None:
        self._connection = connection
        self.now_us = now_us

    def execute(self, sql: str, params: tuple[Any, ...] = ()) -> Any:
        return self._connection.exec_driver_sql(sql, params)


class Page(msgspec.Struct, frozen=True):
    """Some rows, and the cursor that continues after them, or None at the end."""

    items: list[Any]
    next: str | None


class Reader:
    """Everything a page or an API answer needs from the store."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def _rows(self, statement: Select[Any]) -> Sequence[Any]:
        async def read() -> Sequence[Any]:
            async with self._engine.connect() as connection:
                return list((await connection.execute(statement)).fetchall())

        return await _whole(read())

    async def _text(self, sql: str, *params: object) -> Sequence[Any]:
        async def read() -> Sequence[Any]:
            async with self._engine.connect() as connection:
                return (await connection.exec_driver_sql(sql, params)).fetchall()

        return await _whole(read())

    async def state(self, request_id: str) -> RequestState:
        """A request. Raises `NotFound`."""
        rows = await self._rows(select(tables.requests.c.doc).where(tables.requests.c.id == request_id))
        if not rows:
            raise NotFound(f"there is no request {request_id}; see GET /api/requests for those there are")
        return state_of(rows[0][0])

    async def requests(self, filters: dict[str, str], cursor: str | None, limit: int, owner: str | None = None) -> Page:
        """Requests, newest first. `filters` are equalities on state, lane, model, workload."""
        table = tables.requests
        statement = select(table.c.created_us, table.c.id, table.c.doc).order_by(
            table.c.created_us.desc(), table.c.id.desc()
        )
        for name, value in filters.items():
            statement = statement.where(table.c[name] == value)
        if owner is not None:
            statement = statement.where(table.c.owner == owner)
        if cursor is not None:
            at, _, id_ = cursor.partition("~")
            if not (at.isascii() and at.isdigit() and len(at) <= 18):
                raise Malformed(f"cursor {cursor!r} is not one of ours; take it from `next`", param="cursor")
            statement = statement.where(tuple_(table.c.created_us, table.c.id) < (int(at), id_))
        limit = min(limit, MAX_PAGE)
        rows = await self._rows(statement.limit(limit + 1))
        more = len(rows) > limit
        last = rows[limit - 1] if more else None
        return Page([state_of(row[2]) for row in rows[:limit]], f"{last[0]}~{last[1]}" if last else None)

    async def history(self, stream: str, after: int = 0, upto: int | None = None) -> list[Recorded]:
        """A stream's records with version in (after, upto]."""
        table = tables.events
        statement = select(*_EVENT_COLUMNS).where(table.c.stream == stream, table.c.version > after)
        if upto is not None:
            statement = statement.where(table.c.version <= upto)
        return [record_of(row) for row in await self._rows(statement.order_by(table.c.version))]

    async def journal(
        self,
        after: int = 0,
        stream: str | None = None,
        type_: str | None = None,
        limit: int = 100,
        *,
        newest: bool = False,
    ) -> list[Recorded]:
        """The journal with seq > after (or, newest first, seq < after when `after` is not 0)."""
        table = tables.events
        statement = select(*_EVENT_COLUMNS)
        if newest:
            statement = statement.order_by(table.c.seq.desc())
            statement = statement.where(table.c.seq < after) if after else statement
        else:
            statement = statement.where(table.c.seq > after).order_by(table.c.seq)
        if stream:
            statement = statement.where(table.c.stream == stream)
        if type_:
            statement = statement.where(table.c.type == type_)
        return [record_of(row) for row in await self._rows(statement.limit(min(limit, MAX_PAGE)))]

    async def decisions(
        self, type_: str, after: int, last: int, since_us: int, until_us: int, limit: int
    ) -> Sequence[Any]:
        """Events of a type with after < seq <= last and such a time: (seq, stream, version, type, at, data)."""
        return await self._text(
            "SELECT seq, stream, version, type, at_us, data FROM events "
            "WHERE type=? AND seq>? AND seq<=? AND +at_us BETWEEN ? AND ? ORDER BY seq LIMIT ?",
            type_,
            after,
            last,
            since_us,
            until_us,
            limit,
        )

    async def records(self, seqs: Sequence[int]) -> dict[int, Recorded]:
        """Single records by seq, such as the causes of others."""
        if not seqs:
            return {}
        rows = await self._rows(select(*_EVENT_COLUMNS).where(tables.events.c.seq.in_(seqs[:4096])))
        return {record.seq: record for record in map(record_of, rows)}

    async def spec(self, request_id: str) -> Spec | None:
        """A submission, or None when it was erased."""
        rows = await self._content(request_id, "spec", 0)
        return read_spec(rows[0][1]) if rows else None

    async def chunks(
        self, request_id: str, epoch: int, first: int = 0, last: int | None = None
    ) -> list[tuple[int, StoredChunk]]:
        """(first unit, chunk) of an output epoch, in order: those that start at `first` units or later, to `last`."""
        return [(n, read_chunk(body)) for n, body in await self._content(request_id, "chunk", epoch, first, last)]

    async def text(self, request_id: str, epoch: int, visible_upto: int | None = None) -> str:
        """The visible text of an output epoch, up to a number of characters."""
        whole = "".join(chunk.text for _n, chunk in await self.chunks(request_id, epoch))
        return whole if visible_upto is None else whole[:visible_upto]

    async def texts(self, states: Sequence[RequestState]) -> dict[str, str]:
        """The visible texts of several requests, by id."""
        if not states:
            return {}
        # A list of pairs in an IN would be looked for in the whole table.
        wanted = ",".join(["(?,?)"] * len(states))
        rows = await self._text(
            f"WITH wanted (id, epoch) AS (VALUES {wanted}) SELECT c.request_id, c.body FROM wanted w "  # noqa: S608 -- question marks
            "CROSS JOIN contents c WHERE c.request_id=w.id AND c.kind='chunk' AND c.epoch=w.epoch "
            "ORDER BY c.request_id, c.n",
            *(value for state in states for value in (state.id, state.output_epoch)),
        )
        found = {state.id: "" for state in states}
        for request_id, body in rows:
            found[request_id] += read_chunk(body).text
        return {state.id: found[state.id][: state.visible_upto] for state in states}

    async def _content(
        self, request_id: str, kind: str, epoch: int, first: int = 0, last: int | None = None
    ) -> Sequence[Any]:
        table = tables.contents
        statement = select(table.c.n, table.c.body).where(
            table.c.request_id == request_id, table.c.kind == kind, table.c.epoch == epoch, table.c.n >= first
        )
        if last is not None:
            statement = statement.where(table.c.n <= last)
        return await self._rows(statement.order_by(table.c.n))

    async def outlooks(self, states: Sequence[RequestState], now_us: int) -> dict[str, Outlook]:
        """How they stand that have not settled, and how long they may take still, by id.

        Of one that is served as it asked and is worked on there is nothing to look up.
        """
        active = [one for one in states if one.state not in SETTLED and (one.degraded is not None or not one.running)]
        if not active:
            return {}

        def see(connection: Connection) -> dict[str, Outlook]:
            return waits.look(_Seen(connection, now_us), active)

        return await self._look(see)

    async def newcomers(self, now_us: int) -> dict[tuple[str, str], Eta]:
        """When a new request would be taken up, by lane and model."""

        def see(connection: Connection) -> dict[tuple[str, str], Eta]:
            seen = _Seen(connection, now_us)
            rows = seen.execute("SELECT lane, model FROM lanes").fetchall()
            return {(lane, model): waits.newcomer(waits.picture(seen, lane, model), now_us) for lane, model in rows}

        return await self._look(see)

    async def see(self, see: Callable[[Sees], T], now_us: int = 0) -> T:
        """What a look finds out; it runs in one read transaction, and reads `now_us` as the time."""
        return await self._look(lambda connection: see(_Seen(connection, now_us)))

    async def _look(self, see: Callable[[Connection], T]) -> T:
        async def read() -> T:
            async with self._engine.connect() as connection:
                return await connection.run_sync(see)

        return await _whole(read())

    async def lanes(self) -> list[dict[str, Any]]:
        """Lane rows, with how many run and wait and since when the oldest waits.

        A lane is out while its device's breaker is not closed.
        """
        table = tables.lanes
        devices = tables.devices
        joined = select(table, devices.c.breaker).join(devices, devices.c.id == table.c.device, isouter=True)
        rows = [row_dict(row) for row in await self._rows(joined.order_by(table.c.lane.desc(), table.c.model))]
        for row in rows:
            if row["serving"] and row["breaker"] not in {None, "closed"}:
                row |= {"serving": 0, "out_reason": BREAKER_OPEN}
            key = (row["lane"], row["model"])
            counted = await self._text(
                "SELECT count(*), sum(running), min(CASE WHEN running=0 THEN created_us END) FROM requests "
                "WHERE lane=? AND model=? AND state IN ('admitted','running-gpu','checkpointed','rerouted-cpu')",
                *key,
            )
            active, running, oldest = counted[0]
            row |= {"running": running or 0, "waiting": active - (running or 0), "oldest_us": oldest}
        return rows

    async def devices(self) -> list[dict[str, Any]]:
        """Rows of this run's devices, each with its latest reading (`reading`: a dict, `read_us`) or None.

        One that was used before and has neither a lane nor a reading now is not part of this run.
        """
        table, readings = tables.devices, tables.readings
        joined = select(table, readings.c.at_us.label("read_us"), readings.c.doc.label("reading")).join(
            readings, readings.c.device == table.c.id, isouter=True
        )
        here = or_(table.c.id.in_(select(tables.lanes.c.device)), readings.c.at_us.is_not(None))
        rows = [row_dict(row) for row in await self._rows(joined.where(here).order_by(table.c.id))]
        for row in rows:
            row["reading"] = msgspec.json.decode(row["reading"]) if row["reading"] else None
        return rows

    async def ledger(self, device: str, policy: Policy, now_us: int) -> DeviceFacts | None:
        """A device with all promises of it, as deciders see it now; None for an unknown device."""

        def see(connection: Connection) -> DeviceFacts | None:
            return device_facts(_Seen(connection, now_us), device, policy)

        return await self._look(see)

    async def learned(self) -> list[dict[str, Any]]:
        """Learned footprints, as their table holds them."""
        return [row_dict(row) for row in await self._rows(select(tables.learned))]

    async def reading(self, device: str) -> tuple[int, dict[str, Any]] | None:
        """The latest reading of a device or of `host`: (at, document)."""
        rows = await self._rows(
            select(tables.readings.c.at_us, tables.readings.c.doc).where(tables.readings.c.device == device)
        )
        return (rows[0][0], msgspec.json.decode(rows[0][1])) if rows else None

    async def runners(self) -> list[dict[str, Any]]:
        """Runner rows, each with the ids of the requests it holds."""
        rows = [row_dict(row) for row in await self._rows(select(tables.runners).order_by(tables.runners.c.id))]
        held = await self._rows(select(tables.leases.c.runner, tables.leases.c.request_id))
        for row in rows:
            row["requests"] = [request for runner, request in held if runner == row["id"]]
        return rows

    async def head(self) -> tuple[int, str]:
        """(seq, hash) of the last event."""
        rows = await self._rows(select(tables.head.c.seq, tables.head.c.hash))
        return rows[0][0], rows[0][1]

    async def counts(self) -> dict[str, int]:
        """How many requests are in each state."""
        statement = select(tables.requests.c.state, func.count()).group_by(tables.requests.c.state)
        return {row[0]: row[1] for row in await self._rows(statement)}

    async def running(self) -> int:
        """How many requests somebody works on, by the record."""
        statement = select(func.count()).select_from(tables.requests).where(tables.requests.c.running == 1)
        return int((await self._rows(statement))[0][0])

    async def flag(self, key: str) -> str | None:
        """A value of the service table, such as `draining`."""
        rows = await self._rows(select(tables.service.c.value).where(tables.service.c.key == key))
        return rows[0][0] if rows else None
