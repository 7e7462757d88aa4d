"""Submitting, looking at and listing requests."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from core import admission, eta
from core.decision import Rejected
from core.errors import Busy, FailsoftError, Reduced
from core.explain import reason
from core.state import RequestState
from core.words import ALL_STATES, SETTLED
from store.submit import Submitted, submit
from web import admit
from web.api.answers import (
    Call,
    answer,
    count_param,
    etag_matches,
    etag_of,
    prefer_wait,
    read_raw,
    request_headers,
    text_param,
    wait_param,
)
from web.services import OWNER, Services, of_app
from web.views import View, request_view

DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 500
POLL_S: Final = 1
STUCK_POLL_S: Final = 10


def refused(state: RequestState, rejected: Sequence[Rejected] = ()) -> FailsoftError:
    """The error that a refused request is answered with; it names the record of the refusal, and what was rejected."""
    code = state.ended_by or "refused"
    cls = Busy if "queue-full" in code else Reduced
    why = [one.reason for one in rejected if one.action == admission.REROUTE and code == admission.HOST_MEMORY]
    return cls(
        "; ".join([f"Refused because {reason(code)}", *why]) + ".",
        code=code.replace("-", "_"),
        request_id=state.id,
        reason=code,
        retry_after_s=state.retry_after_s,
        rejected=[{"action": one.action, "reason": one.reason} for one in rejected],
    )


def poll_after_s(view: View) -> int:
    """When looking again may show something new: at the next chunk, or when it may be taken up."""
    queue = view["queue"]
    if queue["status"] == "stuck":
        return STUCK_POLL_S
    start_s = queue["eta"]["start_low_s"] if queue["eta"] else None
    return eta.wait_s(start_s) or POLL_S


async def take_in(services: Services, value: Any, key: str | None) -> Submitted:
    """Admit a decoded body, or find it again under its key. Raises what is wrong with it, and refusals."""
    body = admit.read_body(value)
    make = partial(
        admit.submission,
        services.catalog,
        services.settings,
        body,
        owner=OWNER,
        digest=admit.digest_of(value),
        key=key,
    )
    sub = make() if admit.is_quick(body) else await asyncio.to_thread(make)
    submitted = await services.write(lambda tx: submit(tx, sub, services.settings.policy))
    if submitted.outcome == "refused":
        raise refused(submitted.state, submitted.rejected)
    return submitted


@post("/api/requests")
async def create(request: Call) -> Response[bytes]:
    """Accept a request: 202 once it is durable. `Prefer: wait=N` waits for it to settle."""
    services = of_app(request.app.state)  # the busiest call: resolving a dependency costs as much as a commit's share
    policy = services.settings.policy
    key = admit.read_key(request.headers.get("idempotency-key"))
    value = admit.read_json(await read_raw(request, policy.max_body_bytes))
    submitted = await take_in(services, value, key)
    state = submitted.state
    wait_s = prefer_wait(request, policy.max_wait_s)
    if wait_s is not None:
        state = await services.wait(state.id, state.version, wait_s, settled=True)
    headers = request_headers(state) | {"location": f"/api/requests/{state.id}"}
    if wait_s is not None:
        headers["preference-applied"] = f"wait={wait_s:g}"
    if submitted.outcome == "replayed":
        headers["idempotent-replayed"] = "true"
    known = state.version == submitted.state.version
    view = await (services.view_at(state, submitted.position) if known else services.view(state))
    return answer(view, 202, headers)


@get("/api/requests/{request_id:str}")
async def show(request: Call, services: NamedDependency[Services], request_id: FromPath[str]) -> Response[bytes]:
    """A request as it is now; `?wait=N` waits for a change, from what `If-None-Match` names or from now on."""
    wait_s = wait_param(request, services.settings.policy.max_wait_s)
    state = await services.reader.state(request_id)
    view = await services.view(state)
    etag = etag_of(view)
    behind = "if-none-match" in request.headers and not etag_matches(request, etag)
    if wait_s and not behind and state.state not in SETTLED:
        state = await services.wait(request_id, state.version, wait_s)
        view = await services.view(state)
        etag = etag_of(view)
    headers = request_headers(state) | {"etag": etag}
    if state.state not in SETTLED:
        headers["retry-after"] = str(poll_after_s(view))
    if etag_matches(request, etag):
        return Response(b"", status_code=304, headers=headers)
    return answer(view, 200, headers)


@get("/api/requests")
async def list_all(request: Call, services: NamedDependency[Services]) -> Response[bytes]:
    """Requests, newest first, in pages."""
    filters = {
        "state": text_param(request, "state", ALL_STATES),
        "lane": text_param(request, "lane", ("gpu", "cpu")),
        "workload": text_param(request, "workload", admit.WORKLOADS),
        "model": text_param(request, "model"),
    }
    limit = count_param(request, "limit", least=1, most=MAX_PAGE) or DEFAULT_PAGE
    page = await services.reader.requests(
        {name: value for name, value in filters.items() if value is not None}, text_param(request, "cursor"), limit
    )
    states: list[RequestState] = page.items
    texts = await services.reader.texts(states)
    now_us = services.now_us()
    outlooks = await services.reader.outlooks(states, now_us)
    views = [
        request_view(state, text=texts[state.id], now_us=now_us, outlook=outlooks.get(state.id)) for state in states
    ]
    return answer({"items": views, "next": page.next}, headers={"cache-control": "private, no-cache"})


HANDLERS: Final = [create, show, list_all]
