"""A page as an answer: its headers, its form token, and errors as pages.

1. A page and its moving parts have one address: with `HX-Request` the parts alone are sent.
2. Nothing on a page comes from elsewhere, and no script or style stands in it: the policy in the headers says so.
3. Errors name cause and remedy, and lead back to where one was.
"""

from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException

from core.errors import FailsoftError
from web import problems
from web.dashboard import csrf
from web.dashboard.render import render

Call = Request[Any, Any, Any]

_TITLES: Final = {
    403: "This form was not taken",
    404: "There is nothing here",
    409: "That is not possible now",
    410: "It was erased",
    413: "That is too large",
    422: "This cannot be served here",
    429: "The queues are full",
    503: "Not now",
    507: "The store has no space",
}
_OWN_TITLES: Final = {
    "import_misfit": "This history was not taken in",
    "no_export": "This file is not an exported history",
}
_HEADERS: Final = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "private, no-cache",
    "vary": "HX-Request",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


def sheet(request: Call, whole: str, parts: str, here: str, *, status: int = 200, **names: Any) -> Response[str]:
    """The page, or its parts for htmx; a visit without a form token gets one. `url`, where it is another's page."""
    token = csrf.token_of(request)
    fragment = request.headers.get("hx-request") == "true" and "hx-history-restore-request" not in request.headers
    url = names.pop("url", None) or request.url.path + (f"?{request.url.query}" if request.url.query else "")
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
    return Response(text, status_code=status, media_type=MediaType.HTML, headers=_HEADERS, cookies=cookies)


def _version() -> str:
    return f"Failsoft {version('failsoft')}"


def see(path: str) -> Response[bytes]:
    """Look there next. A reload of that page repeats nothing."""
    return Response(b"", status_code=303, headers={"location": path, "cache-control": "no-store"})


def as_sentence(detail: str) -> str:
    """An error's detail as people read it."""
    return f"{detail[:1].upper()}{detail[1:]}.".replace("..", ".")


def problem(request: Call, error: FailsoftError | HTTPException) -> Response[str]:
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
        title=_OWN_TITLES.get(code) or _TITLES.get(status, "This could not be done"),
        detail=as_sentence(detail),
        status=status,
        code=code,
        back=back,
        back_label="Back to the request" if back != "/" else "Back to the overview",
    )
    return Response(text, status_code=status, media_type=MediaType.HTML, headers=_HEADERS)
