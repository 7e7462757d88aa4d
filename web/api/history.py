"""A request's own record: its events, its replay."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.response import Stream

from core.errors import Malformed
from core.events import Recorded
from core.replay import fold, redecide
from core.words import SETTLED
from web.api.answers import Call, answer, count_param, request_headers
from web.api.streams import EVENT_STREAM, Pings, frame, stream
from web.services import Services
from web.views import View, degraded_changes, frame_view, replay_view, request_view, spans

NDJSON: Final = "application/x-ndjson"
PAGE: Final = 500


async def causes_of(services: Services, records: Sequence[Recorded], known: Sequence[Recorded]) -> dict[int, Recorded]:
    """The records that others name as their causes, by seq; read only where they are not among the known."""
    found = {record.seq: record for record in known}
    missing = {r.cause_seq for r in records if r.cause_seq is not None and r.cause_seq not in found}
    return found | (await services.reader.records(sorted(missing)) if missing else {})


async def frames_after(services: Services, history: Sequence[Recorded], after: int) -> list[View]:
    """The frames of a history's versions beyond `after`, with the text each made visible."""
    fresh = [record for record in history if record.version > after]
    if not fresh:
        return []
    causes = await causes_of(services, fresh, history)
    degraded = degraded_changes(history, after)
    added = {version: span for version, span in spans(history).items() if version > after}
    texts: dict[tuple[int, int], str] = {}
    for epoch in {span.epoch for span in added.values()}:
        first = min(span.first for span in added.values() if span.epoch == epoch)
        chunks = await services.reader.chunks(fresh[0].stream, epoch, first)
        texts |= {(epoch, unit): chunk.text for unit, chunk in chunks}
    views = []
    for record in fresh:
        span = added.get(record.version)
        text = texts.get((span.epoch, span.first)) if span else None
        view = frame_view(record, causes.get(record.cause_seq or 0), span, text)
        views.append(view | {"degraded": degraded[record.version]} if record.version in degraded else view)
    return views


async def follow(services: Services, request_id: str, after: int) -> AsyncGenerator[bytes, None]:
    """The request's frames beyond `after` as they become durable; ends once it has settled."""

    async def form(history: Sequence[Recorded], beyond: int) -> list[bytes]:
        views = await frames_after(services, history, beyond)
        return [frame(view, id_=view["version"], event=view["type"]) for view in views]

    pings = Pings(asyncio.get_running_loop().time)
    telling = services.tellings.join(request_id, services.reader.history, form)
    with services.doorbell.listen() as listener:
        while True:
            await telling.catch_up()
            over = telling.over
            for told in telling.frames[after:]:
                after += 1
                pings.sent()
                yield told
            if over or services.doorbell.closing:
                return
            if pings.due():
                yield b": ping\n\n"
            await listener.wait()


@get("/api/requests/{request_id:str}/events")
async def events(
    request: Call, services: NamedDependency[Services], request_id: FromPath[str]
) -> Response[bytes] | Stream:
    """The request's events after a version: a JSON page, NDJSON, or a stream that ends once it has settled."""
    after = count_param(request, "after") or 0
    accepted = request.headers.get("accept", "")
    state = await services.reader.state(request_id)
    headers = request_headers(state)
    if EVENT_STREAM in accepted:
        last = request.headers.get("last-event-id", "").strip()
        if last and not (last.isascii() and last.isdigit() and len(last) < 16):
            raise Malformed("Last-Event-ID is a version, a whole number", param="Last-Event-ID")
        after = int(last) if last else after
        if last and state.state in SETTLED and after >= state.version:
            return Response(b"", status_code=204, headers=headers)  # tells an EventSource not to come back
        return stream(follow(services, request_id, after), headers)
    views = await frames_after(services, await services.reader.history(request_id), after)
    if NDJSON in accepted:
        lines = b"".join(msgspec.json.encode(view) + b"\n" for view in views)
        return Response(lines, media_type=NDJSON, headers=headers)
    following = str(views[PAGE - 1]["version"]) if len(views) > PAGE else None
    return answer({"items": views[:PAGE], "next": following}, headers=headers)


@get("/api/requests/{request_id:str}/replay")
async def replay(request: Call, services: NamedDependency[Services], request_id: FromPath[str]) -> Response[bytes]:
    """The request as it was at a version, and every decision up to it asked again."""
    now = await services.reader.state(request_id)
    at = count_param(request, "at", least=1, most=now.version) or now.version
    history = await services.reader.history(request_id, upto=at)
    state = fold(history)
    assert state is not None
    if now.erased:
        state = msgspec.structs.replace(state, erased=True)
    text = "" if state.erased else await services.reader.text(request_id, state.output_epoch, state.visible_upto)
    view = request_view(state, text=text, now_us=state.updated_us)
    causes = await causes_of(services, history, history)
    return answer(replay_view(view, history, causes, redecide(history)), headers=request_headers(now))


HANDLERS: Final = [events, replay]
