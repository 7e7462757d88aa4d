"""What the handlers share: reading what a call says beside its body, and answering with JSON."""

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import ClientException, InternalServerException

from core.errors import Malformed, TooLarge
from core.state import RequestState
from web.views import View, served_on

Call = Request[Any, Any, Any]

JSON: Final = "application/json"
_DRAINED_TIMES: Final = 16
_PREFERS: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]+(?:\.[0-9]+)?)", re.IGNORECASE)


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    """A JSON answer."""
    return Response(msgspec.json.encode(value), status_code=status, media_type=JSON, headers=dict(headers or {}))


def request_headers(state: RequestState) -> dict[str, str]:
    """What every answer about a request says in its headers, as known now."""
    headers = {"x-request-id": state.id, "cache-control": "private, no-cache"}
    if (device := served_on(state)) is not None:
        headers["x-served-on"] = device
    if state.degraded is not None:
        headers["x-degraded"] = state.degraded.rule
    return headers


def etag_of(view: View) -> str:
    """A weak validator over the view; what only ages or is estimated anew at each look does not count."""
    steady = dict(view)
    if steady.get("queue"):
        steady["queue"] = steady["queue"] | {"age_s": None, "eta": None}
    if steady.get("degraded"):
        steady["degraded"] = steady["degraded"] | {"eta": None, "takeover_s": None}
    return f'W/"{hashlib.sha256(msgspec.json.encode(steady)).hexdigest()[:32]}"'


def etag_matches(request: Call, etag: str) -> bool:
    """Whether `If-None-Match` names this validator (weakly compared)."""
    given = request.headers.get("if-none-match")
    if given is None:
        return False
    bare = etag.removeprefix("W/")
    return given.strip() == "*" or any(tag.strip().removeprefix("W/") == bare for tag in given.split(","))


async def read_raw(request: Call, limit: int) -> bytes:
    """The body. Raises `TooLarge` beyond `limit` bytes, whatever its length was said to be.

    What is over the limit is read on and dropped up to a bound, so that a client that is still sending gets the answer.
    """
    size, parts = 0, []
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit * _DRAINED_TIMES:
        raise _too_large(limit)
    try:
        async for part in request.stream():
            size += len(part)
            if size <= limit:
                parts.append(part)
            elif size > limit * _DRAINED_TIMES:
                break
    except (ClientException, InternalServerException) as error:  # the latter is how a vanished client is told
        raise Malformed("the body ended early") from error
    if size > limit:
        raise _too_large(limit)
    return b"".join(parts)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body may have {limit} bytes; the limit is max_body_bytes in the policy", limit=limit)


def text_param(request: Call, name: str, allowed: tuple[str, ...] | None = None) -> str | None:
    """A query parameter, or None. Raises `Malformed` when it is none of `allowed`, or twice there."""
    given = request.query_params.getall(name, [])
    if not given:
        return None
    if len(given) > 1:
        raise Malformed(f"`{name}` is there {len(given)} times; send it once", param=name)
    value = str(given[0])
    if allowed is not None and value not in allowed:
        raise Malformed(f"`{name}` is one of: {', '.join(allowed)}", param=name)
    return value


def count_param(request: Call, name: str, *, least: int = 0, most: int = 2**53) -> int | None:
    """A whole number from the query, or None. Raises `Malformed`."""
    value = text_param(request, name)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]{1,16}", value) or not least <= int(value) <= most:
        raise Malformed(f"`{name}` is a whole number from {least} to {most}", param=name)
    return int(value)


def wait_param(request: Call, longest: float) -> float | None:
    """`?wait=` in seconds, no longer than `longest`; None when it is not asked for. Raises `Malformed`."""
    value = text_param(request, "wait")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise Malformed("`wait` is a number of seconds, 0 or more", param="wait")
    return min(seconds, longest)


def prefer_wait(request: Call, longest: float) -> float | None:
    """The `wait` of a `Prefer` header, no longer than `longest`. What cannot be read is no preference (RFC 7240)."""
    found = _PREFERS.search(request.headers.get("prefer", ""))
    return None if found is None else min(float(found[1]), longest)
