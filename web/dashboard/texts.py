"""Outputs whole, as plain text: what a page shows only the end of."""

from collections.abc import Sequence
from typing import Final

from litestar import MediaType, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from core import events as ev
from core.errors import Gone, NotFound
from core.events import Recorded
from store.reads import Reader
from web.api.answers import count_param
from web.api.transfer import opened
from web.dashboard.imported import Imported
from web.dashboard.outputs import shown_upto
from web.dashboard.sheet import Call
from web.dashboard.spans import course
from web.services import Services


@get("/requests/{request_id:str}/output")
async def of_request(request: Call, services: NamedDependency[Services], request_id: FromPath[str]) -> Response[str]:
    """The output, or with `?run=N` an earlier run's; with `?at=N` as far as it was shown after event N."""
    history = await services.reader.history(request_id)
    if not history or not isinstance(history[0].event, ev.REQUEST_EVENTS):
        raise NotFound(f"there is no request {request_id}; see GET /api/requests for those there are")
    return await _whole(request, services.reader, request_id, history)


@get("/imports/{import_id:str}/output")
async def of_import(request: Call, services: NamedDependency[Services], import_id: FromPath[str]) -> Response[str]:
    """The same of an imported history."""
    found = await opened(services, import_id)
    return await _whole(request, Imported(found), found.state.id, found.records)


async def _whole(request: Call, reader: Reader, request_id: str, history: Sequence[Recorded]) -> Response[str]:
    if (await reader.state(request_id)).erased:
        raise Gone("the output was erased")
    at = count_param(request, "at", least=1, most=len(history)) or len(history)
    shown = shown_upto(course(history[:at], history[at - 1].at_us).states)
    run = count_param(request, "run", least=1, most=max(shown) + 1) or max(shown) + 1
    text = await reader.text(request_id, run - 1, shown.get(run - 1, 0))
    return Response(text, media_type=MediaType.TEXT, headers={"cache-control": "private, no-cache"})


HANDLERS: Final[list[ControllerRouterHandler]] = [of_request, of_import]
