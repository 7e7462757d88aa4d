"""Whether a form was sent from one of our own pages.

1. A page sets a random value as a cookie that scripts cannot read, and writes the same value into its forms.
2. A form is taken only if both are there and agree: another site can make a browser send the cookie, but not read it.
3. Where the browser says how the form came (`Sec-Fetch-Site`), it came from here.

Host and Origin are checked for every call before (`web.security`).
"""

import hmac
import secrets
from typing import Any, Final

from litestar import Request
from litestar.datastructures import Cookie

from web.problems import Refusal

COOKIE: Final = "failsoft_form"
FIELD: Final = "_form"
_CODE: Final = "form_refused"
_REMEDY: Final = "open the page again and repeat the action there"


def token_of(request: Request[Any, Any, Any]) -> str:
    """The browser's value, or a new one for a first visit."""
    found = request.cookies.get(COOKIE, "")
    return found if 20 <= len(found) <= 100 and found.isascii() else secrets.token_urlsafe(24)


def cookie(token: str, *, secure: bool) -> Cookie:
    """The cookie that goes with a page's forms."""
    return Cookie(key=COOKIE, value=token, path="/", httponly=True, samesite="strict", secure=secure)


def require(request: Request[Any, Any, Any], field: str) -> None:
    """Raise `Refusal` unless the form is ours."""
    if request.headers.get("sec-fetch-site") not in {None, "same-origin", "none"}:
        raise Refusal(403, f"the form was sent from another site; {_REMEDY}", code=_CODE)
    known = request.cookies.get(COOKIE, "")
    if not known or not hmac.compare_digest(known.encode(), field.encode()):
        raise Refusal(
            403, f"the form is not of this browser's visit, or cookies are off; {_REMEDY}", code="form_refused"
        )
