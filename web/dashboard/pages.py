"""The dashboard's first addresses: overview and request, and their actions; those over the record are in `records`.

1. What is shown is made in the modules beside this one; pages and errors become answers in `sheet`.
2. An action is a form that carries the page's token, and answers with the page to look at next.
"""

import asyncio
import re
import secrets
from typing import Any, Final, cast

import msgspec
from litestar import Response, Router, get, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from core.errors import CallerError, FailsoftError, Malformed
from core.words import ALL_STATES, State
from store import commands
from store.submit import Submitted
from web import problems
from web.api.acts import ACTOR
from web.api.pressure import pressure_of
from web.api.requests import take_in
from web.dashboard import machine, records, texts
from web.dashboard.forms import number, read_form
from web.dashboard.overview import overview
from web.dashboard.request_page import request_page
from web.dashboard.sheet import Call, as_sentence, problem, see, sheet
from web.dashboard.strip import strip
from web.services import Services


@get("/")
async def home(request: Call, services: NamedDependency[Services]) -> Response[str]:
    """The overview."""
    return await _home(request, services, Typed())


class Typed(msgspec.Struct, frozen=True):
    """What the form holds, and what is wrong with it; `param` names the field."""

    prompt: str = ""
    model: str = ""
    max_tokens: str = "64"
    wrong: str = ""
    param: str = ""


async def _home(request: Call, services: Services, typed: Typed, status: int = 200) -> Response[str]:
    wanted = request.query_params.get("state")
    if wanted is not None and wanted not in ALL_STATES:
        raise Malformed(f"there is no state {wanted[:40]!r}; states are {', '.join(ALL_STATES)}", param="state")
    policy = services.settings.policy
    page = await overview(
        services.reader,
        {"gpu": policy.gpu_queue_limit, "cpu": policy.cpu_queue_limit},
        services.now_us(),
        served=services.settings.models,
        state=cast("State | None", wanted),
        cursor=request.query_params.get("cursor"),
        fallback=services.settings.fallback,
    )
    drawn = strip(await pressure_of(services))
    key = secrets.token_urlsafe(16)
    return sheet(
        request,
        "overview.html",
        "overview_live.html",
        "overview",
        status=status,
        page=page,
        strip=drawn,
        key=key,
        typed=typed,
        canaries=policy.breaker_canaries,
        url="/" if typed.wrong else None,
    )


@get("/requests/{request_id:str}")
async def show(request: Call, services: NamedDependency[Services], request_id: FromPath[str]) -> Response[str]:
    """A request now, or with `?at=N` as it was after its event N."""
    at = request.query_params.get("at")
    if at is not None and not re.fullmatch(r"[0-9]{1,9}", at):
        raise Malformed("`at` is the number of an event, such as ?at=3", param="at")
    page = await request_page(services.reader, request_id, services.now_us(), None if at is None else int(at))
    base = f"/requests/{request_id}"
    return sheet(request, "request.html", "request_live.html", "request", page=page, base=base, imported="")


@post("/submit")
async def submit(request: Call, services: NamedDependency[Services]) -> Response[Any]:
    """Send what was written in the form, once, and show the request; or the form again, with what is wrong in it."""
    fields = await read_form(request, services.settings.policy.max_body_bytes)
    try:
        return await _submit(services, fields)
    except CallerError as error:
        asked = {name: fields.get(name, "") for name in ("prompt", "model", "max_tokens")}
        typed = Typed(**asked, wrong=as_sentence(error.detail), param=str(error.extra.get("param") or ""))
        return await _home(request, services, typed, problems.status_of(error))


async def _submit(services: Services, fields: dict[str, str]) -> Response[bytes]:
    prompt, model = fields.get("prompt", "").replace("\r\n", "\n"), fields.get("model", "")
    if not prompt.strip():
        raise Malformed("the prompt is empty; write something in the form", param="prompt")
    entry = await asyncio.to_thread(services.catalog.get, model)
    asked = {"messages": [{"role": "user", "content": prompt}]} if entry.has_template else {"prompt": prompt}
    value = {"model": model, "max_tokens": number(fields, "max_tokens")} | asked
    try:
        submitted: Submitted = await take_in(services, value, fields.get("key") or None)
    except FailsoftError as error:
        refused = error.extra.get("request_id")
        if isinstance(refused, str) and problems.status_of(error) in {429, 503}:
            return see(f"/requests/{refused}")
        raise
    return see(f"/requests/{submitted.state.id}")


@post("/requests/{request_id:str}/cancel")
async def cancel(request: Call, services: NamedDependency[Services], request_id: FromPath[str]) -> Response[bytes]:
    """Ask a request to stop, and show it."""
    await read_form(request, services.settings.policy.max_body_bytes)
    state = await services.write(lambda tx: commands.cancel(tx, request_id, actor=ACTOR))
    return see(f"/requests/{state.id}")


@post("/requests/{request_id:str}/resume")
async def resume(request: Call, services: NamedDependency[Services], request_id: FromPath[str]) -> Response[bytes]:
    """Take a resumable error up again from where the button said, and show it."""
    fields = await read_form(request, services.settings.policy.max_body_bytes)
    origin = fields.get("from")
    if origin == "checkpoint":
        state = await services.write(lambda tx: commands.resume(tx, request_id, "checkpoint", None, actor=ACTOR))
    elif origin == "start":
        state = await services.write(lambda tx: commands.resume(tx, request_id, "start", None, actor=ACTOR))
    else:
        raise Malformed("choose where to resume: from `checkpoint` or from `start`", param="from")
    return see(f"/requests/{state.id}")


routes: Final[list[ControllerRouterHandler]] = [
    Router(
        path="/",
        route_handlers=[home, show, submit, cancel, resume, *records.HANDLERS, *machine.HANDLERS, *texts.HANDLERS],
        exception_handlers={FailsoftError: problem, HTTPException: problem},
    )
]
"""For the application's route handlers."""
