"""What is: devices, lanes, runners, the policy in force."""

from typing import Final

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency

from web.api.answers import answer
from web.machineviews import device_view, host_view, lane_view, runner_view
from web.services import Services


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


@get("/api/runners")
async def runners(services: NamedDependency[Services]) -> Response[bytes]:
    """Runner processes."""
    now_us = services.now_us()
    return answer({"items": [runner_view(row, now_us=now_us) for row in await services.reader.runners()], "next": None})


@get("/api/policy")
async def policy(services: NamedDependency[Services]) -> Response[bytes]:
    """All limits and thresholds in force."""
    return answer(msgspec.to_builtins(services.settings.policy))


HANDLERS: Final = [devices, lanes, runners, policy]
