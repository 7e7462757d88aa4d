"""The dashboard's addresses over the record: the journal, other policies, models, histories from elsewhere.

What is shown is made in the modules beside this one.
"""

import asyncio
from typing import Final

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from core.errors import Malformed, TooLarge
from core.events import Recorded
from core.whatif import Tally
from store import audit as journal
from store import imports
from web.api.answers import count_param, text_param
from web.api.history import causes_of
from web.api.journal import wanted_of
from web.api.models import model_detail, model_views
from web.api.transfer import MOST_BYTES, opened, take_in, too_large
from web.api.whatif import moment as time_of
from web.api.whatif import other_policy, tally_of
from web.dashboard.audit import Narrowed, audit, page_of
from web.dashboard.forms import read_form, read_upload
from web.dashboard.imported import import_rows, imported_page
from web.dashboard.models import model_page, model_rows
from web.dashboard.sheet import Call, see, sheet
from web.dashboard.whatif import MOST, form_of, outcome
from web.services import Services


@get("/events")
async def events(request: Call, services: NamedDependency[Services]) -> Response[str]:
    """The journal, newest first."""
    now_us = services.now_us()
    wanted, before = wanted_of(request, now_us), count_param(request, "before", least=1)
    narrowed = Narrowed(**{name: text_param(request, name) or "" for name in Narrowed.__struct_fields__})

    async def newest(place: int | None, most: int) -> list[Recorded]:
        return await services.reader.see(lambda look: journal.newest(look, wanted, place, most))

    lines, more = await page_of(newest, before, fold=wanted.type is None)
    anchor = await asyncio.to_thread(journal.last_anchor, services.paths)
    chain = await services.reader.see(lambda look: journal.chain(look, anchor))
    causes = await causes_of(services, [line[0] for line in lines], [record for line in lines for record in line])
    page = audit(lines, causes, chain, narrowed, before, now_us, more=more)
    return sheet(request, "events.html", "events_live.html", "events", page=page)


@get("/what-if")
async def what_if(request: Call, services: NamedDependency[Services]) -> Response[str]:
    """Recorded decisions under another policy."""
    now_us = services.now_us()
    form = form_of({name: str(value) for name, value in request.query_params.items()}, services.settings.policy)
    since_us = time_of(form.since, now_us, "since") or 0
    tally, more = Tally(), False
    if form.tries:
        tally, more = await tally_of(services, other_policy(form.policy), since_us, now_us, MOST)
    body = msgspec.json.encode({"policy": form.policy, "since": form.since}).decode()
    found = outcome(tally, now_us, more=more)
    return sheet(request, "what_if.html", "what_if_live.html", "what-if", form=form, found=found, body=body)


@get("/models")
async def models(request: Call, services: NamedDependency[Services]) -> Response[str]:
    """The catalog."""
    rows = model_rows(await model_views(services))
    return sheet(request, "models.html", "models.html", "models", rows=rows)


@get("/models/{model_id:str}")
async def model(request: Call, services: NamedDependency[Services], model_id: FromPath[str]) -> Response[str]:
    """One model."""
    page = model_page(await model_detail(services, model_id), services.now_us())
    return sheet(request, "model.html", "model.html", "models", page=page)


@get("/imports")
async def histories(request: Call, services: NamedDependency[Services]) -> Response[str]:
    """Histories from elsewhere, and the form that brings one in."""
    rows = import_rows(await services.reader.see(imports.listed), services.now_us())
    return sheet(request, "imports.html", "imports.html", "imports", rows=rows, most_mib=MOST_BYTES >> 20)


@post("/imports")
async def bring_in(request: Call, services: NamedDependency[Services]) -> Response[bytes]:
    """Take in the file of the form, and show it."""
    try:
        fields = await read_upload(request, MOST_BYTES)
    except TooLarge as error:
        raise too_large() from error
    if not fields.get("file"):
        raise Malformed("choose a file that was exported from a request's page", param="file")
    try:
        import_id, _new = await take_in(services, fields["file"])
    except Malformed as error:
        raise Malformed(f"{error.detail}. Export it from a request's page", code="no_export") from error
    return see(f"/imports/{import_id}")


@get("/imports/{import_id:str}")
async def history(request: Call, services: NamedDependency[Services], import_id: FromPath[str]) -> Response[str]:
    """An imported history after its last event, or with `?at=N` after its event N."""
    page = await imported_page(await opened(services, import_id), count_param(request, "at"))
    base = f"/imports/{import_id}"
    return sheet(request, "request.html", "request_live.html", "imports", page=page, base=base, imported=import_id)


@post("/imports/{import_id:str}/remove")
async def remove(request: Call, services: NamedDependency[Services], import_id: FromPath[str]) -> Response[bytes]:
    """Forget an imported history, and show the others."""
    await read_form(request, services.settings.policy.max_body_bytes)
    await services.write(lambda tx: imports.remove(tx, import_id))
    return see("/imports")


HANDLERS: Final[list[ControllerRouterHandler]] = [
    events,
    what_if,
    models,
    model,
    histories,
    bring_in,
    history,
    remove,
]
