"""Whether a form was sent from one of our own pages: double submit, and what the browser says of the origin.

1. A page sets a random value as a cookie that scripts cannot read, and writes the same value into its forms.
2. A form is taken only if both are there and agree. Another site can make a browser send the cookie, but not read it.
3. Where the browser names the origin, it must be ours; `Sec-Fetch-Site` must not say `cross-site` or `same-site`.
"""

import hmac
import secrets
from typing import Any, Final
from urllib.parse import urlsplit

from litestar import Request
from litestar.datastructures import Cookie

from core.errors import CallerError

AnyRequest = Request[Any, Any, Any]

COOKIE: Final = "failsoft_form"
FIELD: Final = "_form"


class Forbidden(CallerError):
    """The form did not come from one of our pages."""

    code = "forbidden"


def token_of(request: AnyRequest) -> str:
    """The browser's value, or a new one for a first visit."""
    found = request.cookies.get(COOKIE, "")
    return found if 20 <= len(found) <= 100 else secrets.token_urlsafe(24)


def cookie(token: str, *, secure: bool) -> Cookie:
    """The cookie that goes with a page's forms."""
    return Cookie(key=COOKIE, value=token, path="/", httponly=True, samesite="strict", secure=secure)


def require(request: AnyRequest, field: str) -> None:
    """Raise `Forbidden` unless the form is ours."""
    remedy = "open the page again and repeat the action there"
    site = request.headers.get("sec-fetch-site")
    if site not in {None, "same-origin", "none"}:
        raise Forbidden(f"the form was sent from another site; {remedy}")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise Forbidden(f"the form was sent from another origin; {remedy}")
    known = request.cookies.get(COOKIE, "")
    if not known or not hmac.compare_digest(known.encode(), field.encode()):
        raise Forbidden(f"the form is older than this browser's visit, or cookies are off; {remedy}")
