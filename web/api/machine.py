"""What is: the journal, devices, lanes, models, runners, the policy in force."""

import asyncio
from typing import Final

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency

from core.events import TYPES
from web.api.answers import Call, answer, count_param, text_param
from web.api.history import causes_of
from web.machineviews import device_view, host_view, lane_view, model_view, runner_view
from web.services import Services
from web.views import event_view

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 500


@get("/api/events")
async def journal(request: Call, services: NamedDependency[Services]) -> Response[bytes]:
    """The journal after a seq, oldest first, by stream and type if wished."""
    limit = count_param(request, "limit", least=1, most=MAX_PAGE) or DEFAULT_PAGE
    records = await services.reader.journal(
        count_param(request, "after") or 0,
        text_param(request, "stream"),
        text_param(request, "type", tuple(TYPES)),
        limit,
    )
    causes = await causes_of(services, records, records)
    views = [event_view(record, causes.get(record.cause_seq or 0)) for record in records]
    return answer({"items": views, "next": str(records[-1].seq) if len(records) == limit else None})


@get("/api/devices")
async def devices(services: NamedDependency[Services]) -> Response[bytes]:
    """Accelerators and the host, with the ages of their readings and what is promised of them."""
    now_us, policy = services.now_us(), services.settings.policy
    found = []
    for row in await services.reader.devices():
        facts = await services.reader.ledger(row["id"], policy, now_us)
        found.append(device_view(row, now_us=now_us, facts=facts))
    found.append(host_view(await services.reader.reading("host"), now_us=now_us))
    return answer({"items": found, "next": None})


@get("/api/lanes")
async def lanes(services: NamedDependency[Services]) -> Response[bytes]:
    """Lanes, one per model and kind."""
    now_us, policy = services.now_us(), services.settings.policy
    limits = {"gpu": policy.gpu_queue_limit, "cpu": policy.cpu_queue_limit}
    rows = await services.reader.lanes()
    return answer({"items": [lane_view(r, limit=limits[r["lane"]], now_us=now_us) for r in rows], "next": None})


@get("/api/models")
async def models(services: NamedDependency[Services]) -> Response[bytes]:
    """The catalog, and what of it is served and in memory."""
    entries = await asyncio.to_thread(services.catalog.entries)
    lane_rows, runner_rows = await services.reader.lanes(), await services.reader.runners()
    learned = await services.reader.learned()
    served = services.settings.models
    views = [
        model_view(e, served=e.id in served, lanes=lane_rows, runners=runner_rows, learned=learned) for e in entries
    ]
    return answer({"items": views, "next": None})


@get("/api/runners")
async def runners(services: NamedDependency[Services]) -> Response[bytes]:
    """Runner processes."""
    now_us = services.now_us()
    return answer({"items": [runner_view(row, now_us=now_us) for row in await services.reader.runners()], "next": None})


@get("/api/policy")
async def policy(services: NamedDependency[Services]) -> Response[bytes]:
    """All limits and thresholds in force."""
    return answer(msgspec.to_builtins(services.settings.policy))


HANDLERS: Final = [journal, devices, lanes, models, runners, policy]
