"""The reference for admissions: same framework, same server, a route that reads and checks the same body, no store."""

import argparse
import socket

from litestar import Litestar, Response, post

from web import admit
from web.api.answers import Call
from web.app import Server, die_with
from web.doorbell import Doorbell


@post("/bare")
async def bare(request: Call) -> Response[bytes]:
    """Read, check, answer."""
    admit.read_body(admit.read_json(await request.body()))
    return Response(b'{"id":"req_00000000000000000000000000","state":"admitted"}', status_code=202)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    given = parser.parse_args()
    die_with(given.parent)
    app = Litestar(route_handlers=[bare], openapi_config=None, logging_config=None)
    app.state.doorbell = Doorbell()
    Server(app).run(sockets=[socket.socket(fileno=given.fd)])


if __name__ == "__main__":
    main()
