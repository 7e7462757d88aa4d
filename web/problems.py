"""Errors as RFC 9457 problems, in a body that OpenAI clients read too. The only place where errors become responses.

1. Each class of `core.errors` has one status. Errors of the framework keep theirs, in the same body.
2. `Retry-After` is there when trying again may help; `x-should-retry: false` when it cannot.
3. An error nobody planned is a 500 that tells nothing; the log gets its type and where it was raised, never its text,
   which may quote what a person wrote.
"""

import logging
import re
import traceback
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import ExceptionHandlersMap
from sqlalchemy.exc import DBAPIError

from core import errors

PROBLEM_TYPE: Final = "application/problem+json"
MAX_RETRY_AFTER_S: Final = 120
"""OpenAI clients do not wait longer than that."""

_log = logging.getLogger("failsoft.web")

_STATUS: Final[tuple[tuple[type[errors.FailsoftError], int], ...]] = (
    (errors.Malformed, 400),
    (errors.NotFound, 404),
    (errors.Conflict, 409),
    (errors.Gone, 410),
    (errors.TooLarge, 413),
    (errors.Impossible, 422),
    (errors.CallerError, 400),
    (errors.Busy, 429),
    (errors.Reduced, 503),
    (errors.NoSpace, 507),
    (errors.ServiceError, 503),
    (errors.ModelFileError, 422),
    (errors.IllegalEvent, 409),
)
_KINDS: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_ID: Final = re.compile(r"req_[0-9A-Za-z_-]{1,64}")
"""What goes into a header: the id of a call's path is what the caller wrote, line ends and all."""
_OWN_MEMBERS: Final = frozenset({"type", "title", "status", "detail", "instance", "request_id", "error"})


class Refusal(errors.CallerError):
    """The call itself was not acceptable, whatever it asked for: wrong host, origin or media type."""

    code = "forbidden"

    def __init__(self, status: int, detail: str, *, code: str) -> None:
        super().__init__(detail, code=code)
        self.status = status


def problem(
    status: int,
    detail: str,
    *,
    code: str,
    instance: str,
    request_id: str | None = None,
    param: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body. `extra` adds members and never replaces one of ours."""
    more = {name: value for name, value in (extra or {}).items() if name not in _OWN_MEMBERS}
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return more | {
        "type": f"urn:failsoft:problem:{code.replace('_', '-')}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
        "request_id": request_id,
        "error": {"message": detail, "type": kind, "param": param, "code": code},
    }


def status_of(error: errors.FailsoftError) -> int:
    """The status that an error of ours is answered with; 500 for those that must never reach a caller."""
    if isinstance(error, Refusal):
        return error.status
    return next((status for cls, status in _STATUS if isinstance(error, cls)), 500)


def _answer(
    request: Request[Any, Any, Any],
    status: int,
    detail: str,
    *,
    code: str,
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response[bytes]:
    more = dict(extra or {})
    known = more.pop("request_id", None) or request.scope.get("path_params", {}).get("request_id")
    request_id = known if isinstance(known, str) and _ID.fullmatch(known) else None
    param = more.pop("param", None)
    sent = dict(headers or {})
    if request_id is not None:
        sent["x-request-id"] = request_id
    body = problem(
        status, detail, code=code, instance=str(request.scope["path"]), request_id=request_id, param=param, extra=more
    )
    return Response(msgspec.json.encode(body), status_code=status, media_type=PROBLEM_TYPE, headers=sent)


def _planned(request: Request[Any, Any, Any], error: errors.FailsoftError) -> Response[bytes]:
    status = status_of(error)
    if status == 500:
        return _unplanned(request, error)
    extra = getattr(error, "extra", {})
    detail = getattr(error, "detail", str(error))
    headers = {}
    if isinstance(error, errors.ServiceError):
        retry_after = extra.get("retry_after_s", error.retry_after)
        if retry_after is None:
            headers["x-should-retry"] = "false"
        else:
            headers["retry-after"] = str(min(MAX_RETRY_AFTER_S, max(1, int(retry_after))))
    else:
        headers["x-should-retry"] = "false"
    return _answer(request, status, detail, code=error.code, extra=extra, headers=headers)


def _framework(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    status = error.status_code
    if status >= 500:
        return _unplanned(request, error)
    detail, extra = error.detail, {}
    if isinstance(error, ValidationException) and isinstance(error.extra, list) and error.extra:
        first = error.extra[0]
        extra["param"] = first.get("key")
        detail = f"{first.get('key')}: {first.get('message')}"
    elif status == 404:
        detail = f"there is nothing at {request.scope['path']}"
    elif status == 405:
        detail = f"{request.method} is not allowed here; see the Allow header"
    code = HTTPStatus(status).phrase.lower().replace(" ", "_")
    headers = {name.lower(): value for name, value in (error.headers or {}).items()} | {"x-should-retry": "false"}
    return _answer(request, status, detail, code=code, extra=extra, headers=headers)


def _unreadable(request: Request[Any, Any, Any], error: DBAPIError) -> Response[bytes]:
    """A read failed in the store itself."""
    _log.error("the store could not be read: %s", type(error.orig).__name__)
    detail = "the store cannot be read now; look at the data directory's disk, then try again"
    return _answer(request, 503, detail, code="store_unreadable", headers={"retry-after": "5"})


def _unplanned(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    where = "".join(traceback.format_tb(error.__traceback__))
    _log.error("unplanned %s in %s\n%s", type(error).__name__, request.method, where)
    detail = "something went wrong here that nobody planned for; the service's log says where"
    return _answer(request, 500, detail, code="internal_error")


HANDLERS: Final[ExceptionHandlersMap] = {
    errors.FailsoftError: _planned,
    HTTPException: _framework,
    DBAPIError: _unreadable,
    Exception: _unplanned,
}
"""For the application's `exception_handlers`."""
