"""One delivery over HTTP: to the address that was judged, within its time, and nothing of the answer but its status.

1. A name is resolved here, every address judged, and the connection goes to one that passed: nobody resolves again in
   between. Host header and certificate are those of the name.
2. No proxy of the environment is used, since it would resolve names by itself; no redirect is followed.
3. Only the head of an answer is read, which the client bounds; the body is not, and the connection is closed.
4. All of it together has one limit in time. Resolving has threads of its own: a resolver that hangs stops nobody else.
5. What went wrong is told in words of ours: never what the receiver sent, nor the path, which may hold a secret.
6. When the receiver wants to be asked again (`Retry-After`, seconds or a date) is told on; whoever sends bounds it.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Final

import httpx
import msgspec

from core import webhooks
from core.webhooks import Address, Allowed, Target
from store.outbox import Notice
from store.signing import signature

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name, as text. Raises `OSError`."""
GONE: Final = 410
_RESOLVERS: Final = 4
_MAX_DIGITS: Final = 9


class Outcome(msgspec.Struct, frozen=True):
    """Whether it arrived; if not, why, and whether trying again is of use."""

    error: str | None = None
    hopeless: bool = False
    again_s: float | None = None
    """Seconds after which the receiver wants to be asked again, as it says."""


class Poster:
    """Sends notices; `close` it in the end."""

    def __init__(self, key: bytes, permitted: Allowed, timeout_s: float, resolve: Resolve | None = None) -> None:
        self._key = key
        self._permitted = permitted
        self._timeout_s = timeout_s
        self._resolve = resolve or self._look_up
        self._threads = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="resolve")
        self._client = httpx.AsyncClient(
            # Certificates by SSL_CERT_FILE where it is set, for receivers with an authority of their own.
            verify=httpx.create_ssl_context(),
            trust_env=False,
            follow_redirects=False,
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """End what is under way."""
        await self._client.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def post(self, notice: Notice) -> Outcome:
        """Send it once."""
        target = webhooks.read_url(notice.url)
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._address(target)
                return found if isinstance(found, Outcome) else await self._send(notice, target, found)
        except (TimeoutError, httpx.TimeoutException):
            return Outcome(f"no answer within {self._timeout_s:g} s")
        except ssl.SSLError as error:
            return Outcome(f"TLS failed: {error.reason or type(error).__name__}")
        except httpx.TransportError as error:
            cause = _tls_in(error)
            return Outcome(f"TLS failed: {cause}" if cause else f"no answer: {type(error).__name__}")
        except OSError as error:
            return Outcome(f"no connection: {error.strerror or type(error).__name__}")

    async def _address(self, target: Target) -> Address | Outcome:
        """The address to connect to."""
        refused = webhooks.refusal(target.host, self._permitted)
        if refused is not None:
            return Outcome(refused)
        literal = webhooks.address_of(target.host)
        if literal is not None:
            return literal
        try:
            names = await self._resolve(target.host, target.port)
        except OSError as error:
            return Outcome(f"the name does not resolve: {error.strerror or type(error).__name__}")
        except UnicodeError:
            return Outcome("the name does not resolve: a part of it is empty or longer than 63 characters")
        return self._judged(target, [found for name in names if (found := webhooks.address_of(name)) is not None])

    def _judged(self, target: Target, found: Sequence[Address]) -> Address | Outcome:
        """The first address that may be told."""
        if found and self._permitted.name(target.host):
            return found[0]
        why = "the name does not resolve: no address"
        for address in found:
            refused = webhooks.address_refusal(address, self._permitted)
            if refused is None:
                return address
            why = f"{target.host} leads to an address that is not allowed: {refused}"
        return Outcome(why)

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        def look() -> list[str]:
            return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

        return await asyncio.get_running_loop().run_in_executor(self._threads, look)

    async def _send(self, notice: Notice, target: Target, address: Address) -> Outcome:
        now_s = int(time.time())
        headers = {
            "host": target.authority(target.host),
            "content-type": "application/json",
            "user-agent": f"failsoft/{version('failsoft')}",
            "webhook-id": notice.key,
            "webhook-timestamp": str(now_s),
            "webhook-signature": signature(self._key, notice.key, now_s, notice.payload),
        }
        request = self._client.build_request(
            "POST",
            f"{target.scheme}://{target.authority(str(address))}{target.path}",
            content=notice.payload.encode(),
            headers=headers,
            extensions={"sni_hostname": target.host},
        )
        answer = await self._client.send(request, stream=True)
        await answer.aclose()
        if answer.is_success:
            return Outcome()
        if answer.is_redirect:
            return Outcome(f"HTTP {answer.status_code}: redirects are not followed; give the final URL")
        again_s = again_after_s(answer.headers.get("retry-after", ""), time.time())
        return Outcome(f"HTTP {answer.status_code}", hopeless=answer.status_code == GONE, again_s=again_s)


def again_after_s(text: str, now_s: float) -> float | None:
    """The seconds that a `Retry-After` asks for; None where it says nothing that can be read."""
    if text.isascii() and text.isdecimal():
        return float(text) if len(text) <= _MAX_DIGITS else 10.0**_MAX_DIGITS
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, OverflowError):
        return None


def _tls_in(error: BaseException) -> str | None:
    """The reason of a TLS error somewhere behind another error."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError):
            return str(seen.reason or type(seen).__name__)
        seen = seen.__cause__ or seen.__context__
    return None
