"""Histories out and in: a request's own as a file, and files from elsewhere, checked and kept apart, read-only."""

import asyncio
from typing import Final

import msgspec
from litestar import Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from core.errors import TooLarge
from core.replay import redecide
from store import imports, transfer
from store.imports import Import
from store.transfer import Checked, History, StoredOutput, check
from web import admit
from web.api.answers import Call, answer, count_param, read_raw, request_headers
from web.dashboard.imported import rehearse
from web.services import Services
from web.views import View, replay_view, request_view, time_text

MOST_BYTES: Final = 8 << 20
"""Largest file that is taken in."""


@get("/api/requests/{request_id:str}/export")
async def export(services: NamedDependency[Services], request_id: FromPath[str]) -> Response[bytes]:
    """Everything stored of a request: events with their chain hashes, and contents with the secret of their digests."""
    state = await services.reader.state(request_id)
    spec = None if state.erased else await services.reader.spec(request_id)
    outputs = [
        StoredOutput(epoch, first, chunk.tokens, chunk.text)
        for epoch in range(state.output_epoch + 1)
        for first, chunk in await services.reader.chunks(request_id, epoch)
    ]
    events = await services.reader.see(lambda look: transfer.stored(look, request_id))
    submission = None if spec is None else transfer.submitted(spec)
    history = History(transfer.FORMAT, request_id, state.erased, events, submission, [] if state.erased else outputs)
    name = f'attachment; filename="{request_id}.json"'
    return answer(history, headers=request_headers(state) | {"content-disposition": name})


@post("/api/imports")
async def bring_in(request: Call, services: NamedDependency[Services]) -> Response[bytes]:
    """Take in an exported history: 201, or 200 when it is here already. 422 when it does not fit."""
    id_, new = await take_in(services, await read_file(request))
    view = await import_view(services, id_)
    return answer(view, 201 if new else 200, {"location": f"/api/imports/{id_}"})


@get("/api/imports")
async def listed(services: NamedDependency[Services]) -> Response[bytes]:
    """Imported histories, newest first."""
    found = await services.reader.see(imports.listed)
    return answer({"items": [_row(one) for one in found], "next": None})


@get("/api/imports/{import_id:str}")
async def show(request: Call, services: NamedDependency[Services], import_id: FromPath[str]) -> Response[bytes]:
    """An imported history as it was at a version, with every decision asked again, as a request's replay tells it."""
    return answer(await import_view(services, import_id, count_param(request, "at", least=1)))


@delete("/api/imports/{import_id:str}")
async def remove(services: NamedDependency[Services], import_id: FromPath[str]) -> None:
    """Forget an imported history: 204."""
    await services.write(lambda tx: imports.remove(tx, import_id))


async def read_file(request: Call) -> bytes:
    """The body. Raises `TooLarge`."""
    try:
        return await read_raw(request, MOST_BYTES)
    except TooLarge as error:
        raise too_large() from error


def too_large() -> TooLarge:
    """Why a file is not taken in."""
    return TooLarge(f"an exported history may have {MOST_BYTES >> 20} MiB", limit=MOST_BYTES)


async def take_in(services: Services, raw: bytes) -> tuple[str, bool]:
    """Check a file and keep it: its id, and whether it is new. Raises `Malformed`, `Impossible`, `Conflict`."""
    history = await asyncio.to_thread(_checked, raw)
    return await services.write(lambda tx: imports.put(tx, history))


def _checked(raw: bytes) -> History:
    history = admit.convert(admit.read_json(raw), History)
    asyncio.run(rehearse(check(history)))
    return history


async def opened(services: Services, import_id: str) -> Checked:
    """An imported history, checked again. Raises `NotFound`."""
    document = await services.reader.see(lambda look: imports.document_of(look, import_id))
    return await asyncio.to_thread(imports.opened, document)


async def import_view(services: Services, import_id: str, at: int | None = None) -> View:
    """The import's place in the list, and its replay."""
    found = await opened(services, import_id)
    rows = await services.reader.see(imports.listed)
    row = next(one for one in rows if one.id == import_id)
    at = len(found.records) if at is None else min(at, len(found.records))
    state, records = found.states[at - 1], found.records[:at]
    if found.state.erased:
        state = msgspec.structs.replace(state, erased=True)
    view = request_view(state, text=found.text(state.output_epoch, state.visible_upto), now_us=state.updated_us)
    causes = {record.seq: record for record in records}
    return _row(row) | {"replay": replay_view(view, records, causes, redecide(records))}


def _row(one: Import) -> View:
    return {
        "id": one.id,
        "request_id": one.request_id,
        "events": one.events,
        "imported_at": time_text(one.imported_us),
        "verified": True,
        "links": {"self": f"/api/imports/{one.id}", "page": f"/imports/{one.id}"},
    }


HANDLERS: Final = [export, bring_in, listed, show, remove]
