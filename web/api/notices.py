"""What is to be sent to webhooks, what was, and what was given up, which can be sent again."""

from typing import Any, Final

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from store import outbox
from store.outbox import State
from web.api.answers import Call, answer, count_param, text_param
from web.services import Services
from web.views import View, time_text

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 500
STATES: Final[tuple[State, ...]] = ("waiting", "done", "dead")


def notice_view(row: dict[str, Any]) -> View:
    """A notice as readers see it: who is told, without the path, which may hold a secret."""
    times = {name: row[f"{name}_us"] for name in ("created", "ended", "next")}
    times["next"] = times["next"] if row["state"] == "waiting" else None
    return {name: row[name] for name in ("key", "request_id", "type", "target", "state", "tries", "error")} | {
        f"{name}_at": None if us is None else time_text(us) for name, us in times.items()
    }


@get("/api/webhooks")
async def notices(request: Call) -> Response[bytes]:
    """Notices, newest first; `?state=dead` for those that were given up, with what went wrong last."""
    state = text_param(request, "state", STATES)
    limit = count_param(request, "limit", least=1, most=MAX_PAGE) or DEFAULT_PAGE
    rows = await request.app.state.outbox.listed(state, limit)
    headers = {"cache-control": "private, no-cache"}
    return answer({"items": [notice_view(row) for row in rows], "next": None}, headers=headers)


@post("/api/webhooks/{key:str}/resend")
async def resend(services: NamedDependency[Services], key: FromPath[str]) -> Response[bytes]:
    """Send a notice again that was given up: 202 and the notice. Repeats answer the same; 409 once it has arrived."""
    row = await services.write(lambda tx: outbox.resend(tx, key))
    return answer(notice_view(row), 202)


HANDLERS: Final = [notices, resend]
