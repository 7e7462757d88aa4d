"""A caller of the service over HTTP: answers as values, refusals and broken connections as words with a remedy.

1. Nobody answering at all is told at once. A connection that breaks later is tried again for `patience_s`: the web
   process may have died, and it is started again behind the same listening socket.
2. Only calls that may be repeated are repeated: reads, and submissions, which always carry an idempotency key.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import httpx
import msgspec

from web.commands.address import is_loopback, start_hint
from web.commands.failed import REFUSED, UNWELL, USAGE, CommandFailed, of_status

T = TypeVar("T")

DEFAULT_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.2
_SILENCE_S: Final = 75.0
"""A stream sends a comment every 15 s, and a call waits at most 60 s."""


class Client:
    """One service at one base URL."""

    def __init__(self, url: str, patience_s: float = DEFAULT_PATIENCE_S) -> None:
        self.url = url
        self.patience_s = patience_s
        limits = httpx.Timeout(_SILENCE_S, connect=10.0)
        self._http = httpx.Client(base_url=url, timeout=limits, trust_env=not is_loopback(url))

    def get(self, path: str, **params: Any) -> Any:
        """The answer's value. Raises `CommandFailed`."""
        given = {name: value for name, value in params.items() if value is not None}
        return self.patiently(lambda: self._call("GET", path, params=given))

    def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """The answer's value; called once. Raises `CommandFailed`."""
        return self._told(lambda: self._call("POST", path, json=dict(body), headers=dict(headers or {})))

    def submit(self, body: Mapping[str, Any], key: str) -> Any:
        """The view of the accepted request. The key makes one request of however many tries this takes."""
        headers = {"idempotency-key": key}
        return self.patiently(lambda: self._call("POST", "/api/requests", json=dict(body), headers=headers))

    def events(self, request_id: str, after: int) -> Iterator[dict[str, Any] | None]:
        """Frames beyond a version as they come, and None for any other sign of life, until the service ends the stream.

        Raises `httpx.TransportError` when it breaks, `CommandFailed` when it is refused.
        """
        headers = {"accept": "text/event-stream", "last-event-id": str(after)}
        with self._http.stream("GET", f"/api/requests/{request_id}/events", headers=headers) as response:
            if response.status_code >= 400:
                response.read()
                raise self._refusal(response)
            yield None
            for line in response.iter_lines():
                yield msgspec.json.decode(line.removeprefix("data:")) if line.startswith("data:") else None

    def patiently(self, call: Callable[[], T]) -> T:
        """Repeat a call while the connection breaks; not when nobody listens at the first try."""
        give_up = time.monotonic() + self.patience_s
        first = True
        while True:
            try:
                return call()
            except httpx.TransportError as error:
                if (first and isinstance(error, httpx.ConnectError)) or time.monotonic() > give_up:
                    raise self.unreachable(error) from error
            first = False
            time.sleep(_PAUSE_S)

    def unreachable(self, error: httpx.TransportError) -> CommandFailed:
        """What a broken connection means."""
        if isinstance(error, httpx.ConnectError):
            hint = f"no service answers at {self.url}; start one with `{start_hint()}`, or name another with --url"
            return CommandFailed(USAGE, hint, {"code": "unreachable"})
        why = str(error) or type(error).__name__
        return CommandFailed(
            USAGE, f"the connection to {self.url} broke ({why}); look at the service's log", {"code": "broken"}
        )

    def _told(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except httpx.TransportError as error:
            raise self.unreachable(error) from error

    def _call(self, method: str, path: str, **options: Any) -> Any:
        response = self._http.request(method, path, **options)
        if response.status_code >= 400:
            raise self._refusal(response)
        try:
            return msgspec.json.decode(response.content)
        except msgspec.DecodeError as error:
            raise CommandFailed(USAGE, f"what answers at {self.url} is not failsoft; name it with --url") from error

    def _refusal(self, response: httpx.Response) -> CommandFailed:
        try:
            document = msgspec.json.decode(response.content, type=dict[str, Any])
            detail = str(document["detail"])
        except (msgspec.DecodeError, KeyError):
            what = f"what answers at {self.url} is not failsoft (HTTP {response.status_code}); name it with --url"
            return CommandFailed(USAGE if response.status_code < 500 else UNWELL, what)
        code = of_status(response.status_code)
        if code == REFUSED and (again := response.headers.get("retry-after")):
            detail += f" Try again in {again} s."
        return CommandFailed(code, detail, document)
