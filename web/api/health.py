"""Alive, ready, healthy: three questions, three answers.

1. Alive: this process answers.
2. Ready: each model to be served has a lane that serves, and no lane is still on its way. A lane that is out and says
   why does not stand in the way.
3. Healthy: `pass`, `warn` (reduced, still answering), `fail` (something asked for cannot be answered). A breaker that
   is not closed is told with the time at which its device is tried again.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency

from core.explain import reason, rough_size
from web.api.answers import answer
from web.machineviews import breaker_of_row, breaker_view, device_label
from web.services import Services
from web.views import time_text

ON_ITS_WAY: Final = frozenset({None, "starting", "loading"})
"""Reasons of a lane that does not serve yet, as against one that is out."""

FULL_BYTES: Final = 4 << 20
"""Less than this, and the next commits may be refused."""
LOW_BYTES: Final = 256 << 20

HEALTH_TYPE: Final = "application/health+json"


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    status: str
    detail: str
    label: str = ""
    """Its name for people, where that is another."""


LOADED: Final = frozenset({"idle", "busy"})
"""States of a runner that has its model."""


def obstacles(
    models: Sequence[str], lanes: Sequence[Mapping[str, Any]], runners: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """Why the service is not ready, in words; empty when it is."""
    found = []
    for model in models:
        own = [row for row in lanes if row["model"] == model]
        coming = [row for row in own if not row["serving"] and row["out_reason"] in ON_ITS_WAY]
        found += [f"the {row['lane'].upper()} lane of {model} is starting" for row in coming]
        if not coming and not any(row["serving"] for row in own):
            found.append(f"no lane serves {model}")
        states = [row["state"] for row in runners if row["model"] == model]
        if states and not LOADED.intersection(states):
            found.append(f"no runner has {model} loaded yet")
    return found


def lane_checks(models: Sequence[str], lanes: Sequence[Mapping[str, Any]]) -> list[Check]:
    """One check per model: warn when a lane of it is out, fail when none serves."""
    checks = []
    for model in models:
        own = [row for row in lanes if row["model"] == model]
        out = [
            f"{row['lane'].upper()} lane: {reason(row['out_reason'] or 'starting')}"
            for row in own
            if not row["serving"]
        ]
        serving = [row["lane"].upper() for row in own if row["serving"]]
        status = "fail" if not serving else "warn" if out else "pass"
        detail = f"served by {' and '.join(serving)}" if serving else "no lane serves it"
        checks.append(Check(f"model {model}", status, "; ".join([detail, *out])))
    return checks


def space_check(root: Path) -> Check:
    """Whether the disk of the data directory can take what is to be kept."""
    try:
        found = os.statvfs(root)
    except OSError as error:
        return Check("disk", "fail", f"the data directory {root} cannot be looked at: {error.strerror}")
    free = found.f_bavail * found.f_frsize
    status = "fail" if free < FULL_BYTES else "warn" if free < LOW_BYTES else "pass"
    advice = "" if status == "pass" else f"; free space for {root}"
    return Check("disk", status, f"{rough_size(free)} free{advice}")


def device_check(row: Mapping[str, Any]) -> Check:
    """Whether a device is there, from a row of `Reader.devices`."""
    label, breaker = device_label(row), breaker_of_row(row).state
    status, detail = "pass", f"{label} is in"
    if row["state"] != "ok":
        status, detail = "warn", f"{label} is out: {reason(row['reason'] or row['state'])}"
    elif breaker != "closed":
        status, detail = "warn", f"{label} is there and takes no work: its breaker is {breaker}"
    return Check(f"device {row['id']}", status, detail, label)


def breaker_check(row: Mapping[str, Any], now_us: int) -> Check | None:
    """What a device's breaker keeps from it, and when that is looked at again; None while it is closed."""
    view = breaker_view(row)
    if view["state"] == "closed":
        return None
    if view["held"]:
        then = "it waits until the device answers again, or until somebody has it tried"
    elif view["next_probe_at"]:
        then = f"the device is tried again {_due(breaker_of_row(row).until_us() or now_us, now_us)}"
    else:
        then = "the device is being tried with canaries"
    detail = f"{view['state']}: {view['reason'] or 'unknown reason'}; {then}"
    return Check(f"breaker {row['id']}", "warn", detail, f"breaker of {device_label(row)}")


def _due(at_us: int, now_us: int) -> str:
    """When something is, for people: how soon, and the time of day."""
    seconds = max(0, (at_us - now_us) // 1_000_000)
    soon = "now" if not seconds else f"in {seconds} s" if seconds < 60 else f"in {seconds // 60} min {seconds % 60} s"
    return f"{soon} ({time_text(at_us)[11:19]} UTC)"


async def all_checks(services: Services, lanes: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Everything that is looked at."""
    devices = await services.reader.devices()
    seq, _hash = await services.reader.head()
    breakers = [check for row in devices if (check := breaker_check(row, services.now_us())) is not None]
    checks = [
        Check("store", "pass", f"{seq} events recorded"),
        *lane_checks(services.settings.models, lanes),
        *map(device_check, devices),
        *breakers,
        await asyncio.to_thread(space_check, services.paths.root),
    ]
    if await services.reader.flag("draining") == "1":
        checks.append(Check("service", "warn", "the service is stopping"))
    return checks


def worst(checks: Sequence[Check]) -> str:
    """The word for all of them."""
    seen = {check.status for check in checks}
    return "fail" if "fail" in seen else "warn" if "warn" in seen else "pass"


@get("/livez")
async def livez() -> Response[bytes]:
    """This process answers."""
    return answer({"status": "pass"})


@get("/readyz")
async def readyz(services: NamedDependency[Services]) -> Response[bytes]:
    """200 when new requests can be answered, else 503 and why not."""
    found = obstacles(services.settings.models, await services.reader.lanes(), await services.reader.runners())
    if await services.reader.flag("draining") == "1":
        found.append("the service is stopping")
    headers = {"cache-control": "no-store"} | ({"retry-after": "1"} if found else {})
    return answer({"ready": not found, "reasons": found}, 503 if found else 200, headers)


@get("/health")
async def health(services: NamedDependency[Services]) -> Response[bytes]:
    """Every check, and what really computes. Reduced is `warn` and 200; only `fail` is 503."""
    lanes = await services.reader.lanes()
    simulated = {row["id"] for row in await services.reader.devices() if row["simulated"]}
    checks = await all_checks(services, lanes)
    status = worst(checks)
    document = {
        "status": status,
        "checks": checks,
        "computes_on": [
            {
                "lane": row["lane"],
                "model": row["model"],
                "engine": row["engine"],
                "device": row["device"],
                "simulated": row["device"] in simulated,
            }
            for row in lanes
            if row["serving"]
        ],
    }
    body = msgspec.json.encode(document)
    code = 503 if status == "fail" else 200
    return Response(body, status_code=code, media_type=HEALTH_TYPE, headers={"cache-control": "no-store"})


HANDLERS: Final = [livez, readyz, health]
