"""The dashboard's addresses about the machine: how well it is, and a device that somebody wants tried now."""

from typing import Final

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from web.api.acts import try_now
from web.api.health import Check, all_checks, worst
from web.dashboard.forms import read_form
from web.dashboard.sheet import Call, see, sheet
from web.dashboard.wording import Chip
from web.services import Services

_CHIPS: Final = {
    "pass": Chip("check", "well", "good"),
    "warn": Chip("warn", "reduced", "move"),
    "fail": Chip("cross", "failing", "bad"),
}
_TITLES: Final = {
    "pass": "Everything is well",
    "warn": "Reduced, and answering",
    "fail": "Something cannot be answered",
}


class CheckRow(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    chip: Chip
    detail: str


class HealthPage(msgspec.Struct, frozen=True):
    """The page."""

    title: str
    chip: Chip
    rows: tuple[CheckRow, ...]


@get("/status")
async def status(request: Call, services: NamedDependency[Services]) -> Response[str]:
    """What `/health` tells, for people."""
    checks = await all_checks(services, await services.reader.lanes())
    word = worst(checks)
    page = HealthPage(_TITLES[word], _CHIPS[word], tuple(map(_row, checks)))
    return sheet(request, "status.html", "status_live.html", "status", page=page)


@post("/devices/{device:str}/reset-breaker")
async def reset_breaker(request: Call, services: NamedDependency[Services], device: FromPath[str]) -> Response[bytes]:
    """Have a device tried now, whatever holds its breaker, and show the overview."""
    fields = await read_form(request, services.settings.policy.max_body_bytes)
    await try_now(services, device, fields.get("reason", ""))
    return see("/#devices")


def _row(check: Check) -> CheckRow:
    return CheckRow(check.label or check.name, _CHIPS[check.status], check.detail)


HANDLERS: Final[list[ControllerRouterHandler]] = [status, reset_breaker]
"""For the router of pages."""
