"""Who may talk to us at all, decided before any handler runs.

1. The `Host` must name a loopback address or the configured host: a page elsewhere that was rebound to our address is
   refused.
2. A call that changes something and says where it comes from (`Origin`) must come from our own pages.
3. Under `/api` and `/v1` a call that changes something carries JSON; a form of another site cannot.

Not here: forms of the dashboard (they carry a CSRF token), keys.
"""

from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from core.loopback import is_loopback
from web.problems import Refusal

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PROGRAMS: Final = ("/api/", "/v1/")
_JSON: Final = "application/json"


def host_of(authority: str) -> str | None:
    """The host in `host`, `host:port` or `[v6]:port`, or None when it is none of these."""
    try:
        parts = urlsplit(f"//{authority}")
        _ = parts.port  # raises where it is no number
    except ValueError:
        return None
    if parts.netloc != authority or "@" in authority:
        return None
    return parts.hostname


@lru_cache(maxsize=64)
def _names_us(authority: str, own: str) -> bool:
    """Whether a Host header names a loopback address or our own name. The same few come with every call."""
    host = host_of(authority)
    return host is not None and (is_loopback(host) or host == own)


class Guard(ASGIMiddleware):
    """The three rules above."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, host: str) -> None:
        self._host = host.lower().strip("[]")

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Raise `Refusal`, or pass the call on."""
        headers = Headers.from_scope(scope)
        authority = headers.get("host", "")
        if not _names_us(authority, self._host):
            raise Refusal(
                403,
                f"the Host header names {authority[:80]!r}; address this service by its own name",
                code="host_refused",
            )
        method = str(scope.get("method", "GET"))
        if method not in _SAFE:
            _same_origin(headers, authority)
            if f"/{str(scope['path']).lstrip('/')}".startswith(_PROGRAMS):  # routing forgives slashes in front
                _json(headers)
        await next_app(scope, receive, send)


def _same_origin(headers: Headers, authority: str) -> None:
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != authority.lower():
        raise Refusal(403, f"calls from {origin[:80]!r} are refused; only our own pages may", code="origin_refused")


def _json(headers: Headers) -> None:
    kind = headers.get("content-type")
    if kind is None:
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return
        raise Refusal(415, "the body has no Content-Type; send application/json", code="unsupported_media_type")
    if kind.partition(";")[0].strip().lower() != _JSON:
        raise Refusal(415, f"{kind[:80]!r} is not read here; send application/json", code="unsupported_media_type")
