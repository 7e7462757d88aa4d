"""What a caller may do: to a request cancel, resume, erase; to a device try it again; to the service drain it."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from litestar import Response, delete, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from core.errors import Conflict, Malformed, Reduced
from core.words import ACTIVE
from store import breakers, commands, house
from web import admit
from web.api.answers import Call, answer, read_raw, request_headers
from web.machineviews import device_view
from web.services import OWNER, Services

MAX_REASON: Final = 500
_LOOK_S: Final = 0.05
_GONE: Final = frozenset({"lost", "reset-required"})
"""States of a reading in which nothing computes on the device."""
ACTOR: Final = f"caller-{OWNER}"


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A body with nothing to say."""


class ResumeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"origin": "from"}):
    """From where, and until when."""

    origin: Literal["checkpoint", "start"] = "checkpoint"
    deadline_s: admit.Deadline | None = None


async def _value(request: Call, services: Services) -> Any:
    """The body's value; an absent body is an empty object."""
    raw = await read_raw(request, services.settings.policy.max_body_bytes)
    return admit.read_json(raw) if raw.strip() else {}


@post("/api/requests/{request_id:str}/cancel")
async def cancel(request: Call, services: NamedDependency[Services], request_id: FromPath[str]) -> Response[bytes]:
    """Ask a request to stop: 202; at once when nobody works on it. Repeats answer the same."""
    admit.convert(await _value(request, services), Nothing)
    state = await services.write(lambda tx: commands.cancel(tx, request_id, actor=ACTOR))
    return answer(await services.view(state), 202, request_headers(state))


@post("/api/requests/{request_id:str}/resume")
async def resume(request: Call, services: NamedDependency[Services], request_id: FromPath[str]) -> Response[bytes]:
    """Take a resumable error up again: 202 and the version of its `Resumed`. Repeats answer the same."""
    body = admit.convert(await _value(request, services), ResumeBody)
    state = await services.write(lambda tx: commands.resume(tx, request_id, body.origin, body.deadline_s, actor=ACTOR))
    view = await services.view(state) | {"resumed_version": state.resumed_version}
    return answer(view, 202, request_headers(state))


@delete("/api/requests/{request_id:str}/content")
async def erase(services: NamedDependency[Services], request_id: FromPath[str]) -> None:
    """Erase prompt and output of a settled request: 204."""
    await services.write(lambda tx: commands.erase(tx, request_id, actor=ACTOR))


class DrainBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why, for the record."""

    reason: str = "it was asked for"


@post("/api/drain")
async def drain(request: Call, services: NamedDependency[Services]) -> Response[bytes]:
    """Accept nothing new and bring everything to safety: 200 only when nothing runs any more. Repeats wait on.

    Raises `Reduced` when that takes longer than a call may wait.
    """
    body = admit.convert(await _value(request, services), DrainBody)
    check_reason(body.reason)
    await services.write(lambda tx: house.ask_drain(tx, body.reason.strip(), actor=ACTOR))
    until = time.monotonic() + services.settings.policy.max_wait_s
    while running := await services.reader.running():
        if time.monotonic() > until:
            raise Reduced(
                f"{running} requests still run; ask again, they stop at their next checkpoint", code="draining"
            )
        await asyncio.sleep(_LOOK_S)
    counts = await services.reader.counts()
    return answer({"drained": True, "waiting": sum(counts.get(state, 0) for state in ACTIVE), "requests": counts})


class ResetBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why the device is to be tried now."""

    reason: str


@post("/api/devices/{device:str}/reset-breaker")
async def reset_breaker(request: Call, services: NamedDependency[Services], device: FromPath[str]) -> Response[bytes]:
    """Try a device now, whatever holds its breaker: 200 and the device. It takes work once canaries are answered."""
    body = admit.convert(await _value(request, services), ResetBody)
    await try_now(services, device, body.reason)
    row = next((row for row in await services.reader.devices() if row["id"] == device), None)
    return answer({"id": device} if row is None else device_view(row, now_us=services.now_us()))


async def try_now(services: Services, device: str, why: str) -> None:
    """Have a device tried. Raises `Conflict` while the latest reading says that it is gone: it would be lost again."""
    check_reason(why)
    row = next((row for row in await services.reader.devices() if row["id"] == device), None)
    if row is not None and row["state"] != "ok" and _says_gone(row):
        raise Conflict("the device is still lost; there is nothing to try until it answers", code="device-lost")
    await services.write(lambda tx: breakers.reset(tx, device, why.strip(), actor=ACTOR))


def _says_gone(row: Mapping[str, Any]) -> bool:
    """Whether the latest reading does; one from before the record last changed says nothing about now."""
    return bool(row["reading"]) and row["read_us"] > row["since_us"] and row["reading"].get("state") in _GONE


def check_reason(text: str) -> None:
    """Raise `Malformed` for a reason that says nothing, or too much."""
    if not 1 <= len(text.strip()) <= MAX_REASON or not text.strip().isprintable():
        raise Malformed(f"a reason has 1 to {MAX_REASON} characters, all of them printable", param="reason")


HANDLERS: Final = [cancel, resume, erase, drain, reset_breaker]
