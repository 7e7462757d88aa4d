"""The dashboard's addresses: two pages, three actions. What is shown is made in the modules beside this one.

1. A page and its moving parts have one address: with `HX-Request` the parts alone are sent.
2. An action is a form that carries the page's token, and answers with the page to look at next.
3. Errors come as pages that name cause and remedy; programs have the API.
"""

import asyncio
import re
import secrets
from http import HTTPStatus
from typing import Any, Final, cast

from litestar import MediaType, Request, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from core.errors import FailsoftError, Malformed
from core.words import ALL_STATES, State
from store import commands
from store.submit import Submitted
from web import problems
from web.api.acts import ACTOR
from web.api.requests import take_in
from web.dashboard import csrf
from web.dashboard.forms import number, read_form
from web.dashboard.overview import overview
from web.dashboard.render import render
from web.dashboard.request_page import request_page
from web.services import Services

Call = Request[Any, Any, Any]

_TITLES: Final = {
    403: "This form was not taken",
    404: "There is nothing here",
    409: "That is not possible now",
    410: "It was erased",
    422: "This cannot be served here",
    429: "The queues are full",
    503: "Not now",
    507: "The store has no space",
}
_PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "private, no-cache",
    "vary": "HX-Request",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


def _page(request: Call, whole: str, parts: str, here: str, **names: Any) -> Response[str]:
    """The page, or its parts for htmx; a visit without a form token gets one."""
    token = csrf.token_of(request)
    fragment = request.headers.get("hx-request") == "true" and "hx-history-restore-request" not in request.headers
    url = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    text = render(
        parts if fragment else whole,
        here=here,
        fragment=fragment,
        form_token=token,
        url=url,
        origin=str(request.base_url).rstrip("/"),
        version=_version(),
        **names,
    )
    cookies = [csrf.cookie(token, secure=request.url.scheme == "https")] if csrf.COOKIE not in request.cookies else []
    return Response(text, media_type=MediaType.HTML, headers=_PAGE_HEADERS, cookies=cookies)


def _version() -> str:
    from importlib.metadata import version

    return f"Failsoft {version('failsoft')}"


def _see(path: str) -> Response[bytes]:
    """Look there next. A reload of that page repeats nothing."""
    return Response(b"", status_code=303, headers={"location": path, "cache-control": "no-store"})


@get("/")
async def home(request: Call, services: NamedDependency[Services]) -> Response[str]:
    """The overview."""
    wanted = request.query_params.get("state")
    if wanted is not None and wanted not in ALL_STATES:
        raise Malformed(f"there is no state {wanted[:40]!r}; states are {', '.join(ALL_STATES)}", param="state")
    policy = services.settings.policy
    page = await overview(
        services.reader,
        {"gpu": policy.gpu_queue_limit, "cpu": policy.cpu_queue_limit},
        services.now_us(),
        state=cast("State | None", wanted),
        cursor=request.query_params.get("cursor"),
    )
    return _page(request, "overview.html", "overview_live.html", "overview", page=page, key=secrets.token_urlsafe(16))


@get("/requests/{request_id:str}")
async def show(request: Call, services: NamedDependency[Services], request_id: FromPath[str]) -> Response[str]:
    """A request now, or with `?at=N` as it was after its event N."""
    at = request.query_params.get("at")
    if at is not None and not re.fullmatch(r"[0-9]{1,9}", at):
        raise Malformed("`at` is the number of an event, such as ?at=3", param="at")
    page = await request_page(services.reader, request_id, services.now_us(), None if at is None else int(at))
    return _page(request, "request.html", "request_live.html", "request", page=page)


@post("/submit")
async def submit(request: Call, services: NamedDependency[Services]) -> Response[bytes]:
    """Send what was written in the form, once, and show the request."""
    fields = await read_form(request, services.settings.policy.max_body_bytes)
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
            return _see(f"/requests/{refused}")
        raise
    return _see(f"/requests/{submitted.state.id}")


@post("/requests/{request_id:str}/cancel")
async def cancel(request: Call, services: NamedDependency[Services], request_id: FromPath[str]) -> Response[bytes]:
    """Ask a request to stop, and show it."""
    await read_form(request, services.settings.policy.max_body_bytes)
    state = await services.write(lambda tx: commands.cancel(tx, request_id, actor=ACTOR))
    return _see(f"/requests/{state.id}")


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
    return _see(f"/requests/{state.id}")


def _problem(request: Call, error: FailsoftError | HTTPException) -> Response[str]:
    """An error as a page."""
    if isinstance(error, FailsoftError):
        status, detail, code = problems.status_of(error), error.detail, error.code
    else:
        status, detail, code = error.status_code, error.detail, HTTPStatus(error.status_code).phrase
    if status >= 500 and status not in _TITLES:
        raise error
    request_id = request.path_params.get("request_id")
    back = f"/requests/{request_id}" if request_id and status not in {404, 400} else "/"
    text = render(
        "problem.html",
        here="",
        fragment=False,
        version=_version(),
        title=_TITLES.get(status, "This could not be done"),
        detail=f"{detail[:1].upper()}{detail[1:]}.".replace("..", "."),
        status=status,
        code=code,
        back=back,
        back_label="Back to the request" if back != "/" else "Back to the overview",
    )
    return Response(text, status_code=status, media_type=MediaType.HTML, headers=_PAGE_HEADERS)


routes: Final[list[ControllerRouterHandler]] = [
    Router(
        path="/",
        route_handlers=[home, show, submit, cancel, resume],
        exception_handlers={FailsoftError: _problem, HTTPException: _problem},
    )
]
"""For the application's route handlers."""
