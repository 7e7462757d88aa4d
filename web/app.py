"""The composition root of the web process, and its entry: `python -m web.app --data DIR --fd N --parent PID`.

1. One process, one event loop, on a listening socket that its parent made and hands down.
2. One lifespan manager owns all that must be closed: writer, reader, tailer, deliveries.
3. It dies with its parent: the kernel is told so first, and then the parent is looked at, since it may be gone already.
4. Being told to stop ends streams and waits at once; running calls get `GRACE_S` to finish.
"""

import argparse
import asyncio
import ctypes
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from litestar import Litestar, Response, get
from litestar.di import Provide
from litestar.plugins.jinja import JinjaTemplateEngine
from litestar.static_files import create_static_files_router
from litestar.template import TemplateConfig

from core.errors import FailsoftError, Malformed, NotFound
from core.loopback import is_loopback
from store import settings as store_settings
from store.database import Paths
from store.models.catalog import Catalog
from store.outbox import Outbox
from store.reads import Reader, async_read_engine
from store.settings import Settings
from store.tailer import Tailer
from store.writer import Writer
from web import problems
from web.api import (
    acts,
    health,
    history,
    journal,
    machine,
    models,
    notices,
    pressure,
    requests,
    streams,
    transfer,
    whatif,
)
from web.doorbell import Doorbell
from web.outbox import Deliveries
from web.security import Guard
from web.services import Services

GRACE_S: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_HERE: Final = Path(__file__).parent
_HEADERS: Final = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


def require_loopback(settings: Settings) -> None:
    """Refuse to be reachable from elsewhere without keys. Raises `Malformed`."""
    if not is_loopback(settings.host):
        raise Malformed(
            f"host {settings.host} is reachable from other machines, and there are no API keys yet; "
            "use 127.0.0.1, and a tunnel or a proxy with a login for access from elsewhere"
        )


def create_app(paths: Paths, settings: Settings) -> Litestar:
    """The application; `app.state.services` is there while its lifespan runs. Raises `Malformed` for an open host."""
    require_loopback(settings)
    doorbell = Doorbell()

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        doorbell.open()
        engine = async_read_engine(paths)
        writer = Writer(paths)
        box = Outbox(engine)
        deliveries = Deliveries(paths, settings.policy, settings.webhook_hosts, writer, box)

        def ring(seq: int) -> None:
            doorbell.ring(seq)
            deliveries.ring()

        tailer = Tailer(paths, ring, lambda: doorbell.listening)
        app.state.services = Services(paths, settings, writer, Reader(engine), Catalog(paths.models), doorbell)
        app.state.outbox = box
        tailer.start()
        deliveries.start()
        try:
            yield
        finally:
            doorbell.close()
            await asyncio.to_thread(tailer.close)
            await deliveries.close()
            await asyncio.to_thread(writer.close)
            await engine.dispose()

    def services() -> Services:
        found: Services = app.state.services
        return found

    app = Litestar(
        route_handlers=[*_api(), *_dashboard(), htmx, _static()],
        lifespan=[lifespan],
        dependencies={"services": Provide(services, sync_to_thread=False)},
        middleware=[Guard(settings.host)],
        exception_handlers=problems.HANDLERS,
        template_config=TemplateConfig(directory=_HERE / "templates", engine=JinjaTemplateEngine),
        response_headers=_HEADERS,
        request_max_body_size=None,
        openapi_config=None,
        logging_config=None,
        debug=False,
    )
    app.state.doorbell = doorbell
    return app


def _api() -> list[Any]:
    modules = (requests, acts, history, journal, machine, models, notices, pressure, transfer, whatif, health, streams)
    return [handler for module in modules for handler in module.HANDLERS]


def _dashboard() -> list[Any]:
    if importlib.util.find_spec("web.dashboard.pages") is None:
        return []
    return list(importlib.import_module("web.dashboard.pages").routes)


def _static() -> Any:
    return create_static_files_router(path="/static", directories=[_HERE / "static"])


@get("/static/vendor/htmx.min.js", sync_to_thread=False)
def htmx() -> Response[bytes]:
    """The installed htmx."""
    spec = importlib.util.find_spec("js_lib_htmx")
    if spec is None or spec.origin is None:
        raise NotFound("htmx is not installed; run: pip install django-js-lib-htmx")
    file = Path(spec.origin).parent / "static" / "htmx" / "htmx.min.js"
    headers = {"cache-control": "public, max-age=86400"}
    return Response(file.read_bytes(), media_type="text/javascript; charset=utf-8", headers=headers)


class Server(uvicorn.Server):
    """Ends streams and waits the moment it is told to stop."""

    def __init__(self, app: Litestar) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                log_config=None,
                lifespan="on",
                server_header=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._doorbell: Doorbell = app.state.doorbell

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop came."""
        self._doorbell.close()
        super().handle_exit(sig, frame)


def die_with(parent: int) -> None:
    """Be killed when the parent's starting thread ends; end at once when it is gone already."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent that started this process is gone")


def main(arguments: list[str] | None = None) -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m web.app", description="The web process; started by the service.")
    parser.add_argument("--data", type=Path, required=True, help="the data directory")
    parser.add_argument("--fd", type=int, required=True, help="the listening socket, inherited")
    parser.add_argument("--parent", type=int, help="pid of the process to die with")
    given = parser.parse_args(arguments)
    if given.parent is not None:
        die_with(given.parent)
    logging.basicConfig(level=logging.WARNING, format="web %(levelname)s %(name)s: %(message)s")
    paths = Paths(given.data)
    try:
        app = create_app(paths, store_settings.in_force(paths))
    except FailsoftError as error:
        sys.exit(f"failsoft: {error.detail}")
    # Made from the descriptor alone, the socket knows its protocol, and asyncio turns Nagle's delay off only then.
    Server(app).run(sockets=[socket.socket(fileno=given.fd)])


if __name__ == "__main__":
    main()
