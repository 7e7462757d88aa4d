"""The journal over HTTP: pages of JSON in either order, or all that was asked for as lines.

1. Lines (`Accept: application/x-ndjson` or `?format=ndjson`) are oldest first, end where the journal ended when the
   call came, and are at most `MOST_LINES`. Where there are more, a `Link` header with `rel="next"` continues.
2. They are read and sent a page at a time: no read is open while one is sent.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final
from urllib.parse import urlencode

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.response import Stream

from core.errors import Malformed
from core.events import TYPES
from store import audit
from store.audit import Wanted
from web.api.answers import Call, answer, count_param, text_param
from web.api.history import NDJSON, causes_of
from web.api.whatif import moment
from web.services import Services
from web.views import View, event_view

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 500
MOST_LINES: Final = 100_000


def wanted_of(request: Call, now_us: int) -> Wanted:
    """What the query narrows the journal to; an empty value narrows nothing. Raises `Malformed`."""
    given = {name: text_param(request, name) or None for name in ("stream", "type", "since", "until")}
    if given["type"] is not None and given["type"] not in TYPES:
        raise Malformed(f"`type` is one of: {', '.join(sorted(TYPES))}", param="type")
    since, until = moment(given["since"], now_us, "since"), moment(given["until"], now_us, "until")
    if since is not None and until is not None and since > until:
        raise Malformed("`since` lies after `until`", param="since")
    return Wanted(given["stream"], given["type"], since, until)


@get("/api/events")
async def journal(request: Call, services: NamedDependency[Services]) -> Response[bytes] | Stream:
    """The journal after a seq, oldest first (or with `order=newest` before one), by stream, type and time."""
    wanted = wanted_of(request, services.now_us())
    form = text_param(request, "format", ("json", "ndjson"))
    order = text_param(request, "order", ("oldest", "newest"))
    after, before = count_param(request, "after"), count_param(request, "before")
    if form == "ndjson" or (form is None and NDJSON in request.headers.get("accept", "")):
        if order == "newest" or before is not None:
            raise Malformed("lines come oldest first; leave `order` and `before` out", param="order")
        return await _lines(request, services, wanted, after or 0)
    if (before is not None and order != "newest") or (after is not None and order == "newest"):
        raise Malformed("`after` goes with the oldest first, `before` with order=newest", param="order")
    limit = count_param(request, "limit", least=1, most=MAX_PAGE) or DEFAULT_PAGE
    if order == "newest":
        records = await services.reader.see(lambda look: audit.newest(look, wanted, before, limit))
    else:
        records = await services.reader.see(lambda look: audit.oldest(look, wanted, after or 0, limit))
    causes = await causes_of(services, records, records)
    views = [event_view(record, causes.get(record.cause_seq or 0)) for record in records]
    return answer({"items": views, "next": str(records[-1].seq) if len(records) == limit else None})


async def _lines(request: Call, services: Services, wanted: Wanted, after: int) -> Stream:
    head, _hash = await services.reader.head()
    beyond = await services.reader.see(lambda look: audit.bound(look, wanted, after, MOST_LINES))
    headers = {"content-disposition": 'attachment; filename="failsoft-events.ndjson"', "cache-control": "no-store"}
    if beyond is not None and beyond <= head:
        query = [(k, v) for k, v in request.query_params.multi_items() if k not in {"after", "format"}]
        following = urlencode([*query, ("format", "ndjson"), ("after", beyond - 1)])
        headers["link"] = f'</api/events?{following}>; rel="next"'
    last = head if beyond is None else min(head, beyond - 1)
    return Stream(_read(services, wanted, after, last), media_type=NDJSON, headers=headers)


async def _read(services: Services, wanted: Wanted, after: int, last: int) -> AsyncGenerator[bytes, None]:
    while True:
        place = after
        records = await services.reader.see(lambda look: audit.oldest(look, wanted, place, MAX_PAGE))  # noqa: B023
        kept = [record for record in records if record.seq <= last]
        if kept:
            causes = await causes_of(services, kept, kept)
            yield b"".join(
                msgspec.json.encode(event_view(record, causes.get(record.cause_seq or 0))) + b"\n" for record in kept
            )
        if len(kept) < MAX_PAGE:
            return
        after = kept[-1].seq


async def chain_view(services: Services) -> View:
    """Where the chain ends, the last anchor, and whether they fit."""
    anchor = await asyncio.to_thread(audit.last_anchor, services.paths)
    found: View = msgspec.to_builtins(await services.reader.see(lambda look: audit.chain(look, anchor)))
    return found


@get("/api/chain")
async def chain(services: NamedDependency[Services]) -> Response[bytes]:
    """The state of the hash chain, as far as a look can tell; `failsoft verify` reads all of it."""
    return answer(await chain_view(services))


HANDLERS: Final = [journal, chain]
