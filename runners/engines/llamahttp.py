"""Talks to a llama-server: one connection for each question, answers checked before anybody believes them.

1. Whatever the other side does, the caller gets an answer of the right shape or an `EngineFault` with the cause.
2. Nothing is waited for longer than `SILENCE_S` without a word about the work; the server's "still here" lines are
   none.
3. Closing a connection is how a server is told to stop. A stream is noticed as closed within a token or a batch, a
   call that is answered whole within a second.
4. Proxies of the environment are not asked: prompts go to the named host and nowhere else.
"""

import contextlib
import http.client
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from core.errors import EngineFault, Unworkable

SILENCE_S: Final = 300.0
"""Longest silence. A batch of a large model on a slow processor takes a minute; the runner's own hang watch is far
stricter about what it has seen to be quick."""
_CONNECT_S: Final = 10.0
_POLL_S: Final = 0.2
_WRONG_QUESTION: Final = 400
_ERROR_CHARS: Final = 300

_T = TypeVar("_T")


class Progress(msgspec.Struct, frozen=True):
    """How far the prompt is; `cache` tokens of it were there before."""

    total: int
    cache: int
    processed: int


class Timings(msgspec.Struct, frozen=True):
    """What the server says it did for a call."""

    cache_n: int
    """Tokens of the prompt that were there before."""
    prompt_n: int
    """Tokens of the prompt that were evaluated."""


class Event(msgspec.Struct, frozen=True):
    """One line of a streamed answer, or all of an answer in one piece."""

    stop: bool = False
    content: str = ""
    tokens: tuple[int, ...] = ()
    tokens_predicted: int = 0
    """Tokens drawn in this call so far. A stream does not name those whose text ends inside a character."""
    prompt_progress: Progress | None = None
    stop_type: str = ""
    """`eos`: an end of the model's own, which is the last of the tokens; `limit`: as many as were asked for."""
    timings: Timings | None = None
    id_slot: int = -1
    truncated: bool = False


class _Line(msgspec.Struct, frozen=True):
    error: Any = None


class Address:
    """Where a server is, and what it wants to be told before it answers."""

    def __init__(self, url: str, key: str = "") -> None:
        """Raises `EngineFault` for what is no http address. A password in the URL is the key."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
            raise EngineFault(f"{url!r} is no address of a server. Give one like http://127.0.0.1:8080.")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self._base = parts.path.rstrip("/")
        self.shown = f"{parts.scheme}://{parts.hostname}" + (f":{port}" if port else "") + self._base
        key = key or parts.password or ""
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._closed = False
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def send(self, method: str, path: str, body: bytes | None = None) -> http.client.HTTPConnection:
        """Ask, without waiting for the answer. Raises `OSError` when nobody is there."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(SILENCE_S)
            self._keep(connection.sock)
            connection.request(method, self._base + path, body, self._headers)
        except BaseException:
            connection.close()
            raise
        return connection

    def _keep(self, one: socket.socket) -> None:
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("the model was closed")
            self._sockets.add(one)

    def close(self) -> None:
        """Break off all that is being asked, in whatever thread, and let nothing more be asked."""
        with self._lock:
            self._closed = True
            for left in list(self._sockets):
                with contextlib.suppress(OSError):
                    left.shutdown(socket.SHUT_RDWR)

    def status(self, path: str) -> int:
        """Only the number of the answer. Raises `OSError` or `http.client.HTTPException` when there is none."""
        connection = self.send("GET", path)
        try:
            with connection.getresponse() as response:
                return response.status
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: bytes | None = None, *, kind: type[_T]) -> _T:
        """The answer to one question. Raises `EngineFault`."""
        return Question(self, method, path, body, kind=kind).answer()


class Question(Generic[_T]):
    """A question that was sent and is answered in one piece, some time."""

    def __init__(self, to: Address, method: str, path: str, body: bytes | None = None, *, kind: type[_T]) -> None:
        self._what = f"{method} {path.partition('?')[0]}"
        self._to = to
        self._kind = kind
        self._connection = sent(to, method, path, body)

    def answer(self, meanwhile: Callable[[], None] | None = None) -> _T:
        """Wait for it, calling `meanwhile` now and then. Raises `EngineFault`, and whatever `meanwhile` raises."""
        try:
            if meanwhile is not None:
                self._wait(meanwhile)
            with self._connection.getresponse() as response:
                read = response.read()
            if response.status != 200:
                raise refusal(self._to, self._what, response.status, read)
            return msgspec.json.decode(read, type=self._kind)
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as cause:
            raise lost(self._to, self._what, cause) from cause
        finally:
            self.close()

    def close(self) -> None:
        """Do not wait any more."""
        self._connection.close()

    def _wait(self, meanwhile: Callable[[], None]) -> None:
        ready = select.poll()
        ready.register(self._connection.sock, select.POLLIN)
        until = time.monotonic() + SILENCE_S
        while not ready.poll(_POLL_S * 1000):
            if time.monotonic() > until:
                raise TimeoutError(f"no answer within {SILENCE_S:.0f} s")
            meanwhile()


class Stream:
    """A completion that comes token by token. It is being computed as soon as this exists."""

    def __init__(self, to: Address, body: bytes) -> None:
        self._to = to
        self._connection = sent(to, "POST", "/completion", body)
        self._events = self._read()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        """The next event; the last one has `stop` set. Raises `EngineFault`."""
        return next(self._events)

    def close(self) -> None:
        """Stop the computation, if it is still going on."""
        self._events.close()
        self._connection.close()

    def _read(self) -> Generator[Event, None, None]:
        closing = contextlib.ExitStack()
        try:
            # The socket is the response's from here on; closing the connection would leave it open.
            response = closing.enter_context(self._connection.getresponse())
            if response.status != 200:
                raise refusal(self._to, "POST /completion", response.status, response.read())
            heard = time.monotonic()
            for line in response:
                if not line.startswith(b"data: "):
                    if line.startswith((b"error: ", b"{")):
                        raise refusal(self._to, "POST /completion", 200, line.removeprefix(b"error: "))
                    if time.monotonic() - heard > SILENCE_S:
                        raise TimeoutError(f"no token within {SILENCE_S:.0f} s")
                    continue
                heard = time.monotonic()
                data = line[len(b"data: ") :]
                if b'"error"' in data and msgspec.json.decode(data, type=_Line).error is not None:
                    raise refusal(self._to, "POST /completion", 200, data)
                event = msgspec.json.decode(data, type=Event)
                yield event
                if event.stop:
                    return
            raise ConnectionResetError("the answer broke off")
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as cause:
            raise lost(self._to, "POST /completion", cause) from cause
        finally:
            closing.close()
            self._connection.close()


def sent(to: Address, method: str, path: str, body: bytes | None) -> http.client.HTTPConnection:
    """The connection on which a question was sent. Raises `EngineFault` when nobody takes it."""
    try:
        return to.send(method, path, body)
    except (OSError, http.client.HTTPException) as cause:
        raise lost(to, f"{method} {path.partition('?')[0]}", cause) from cause


def refusal(to: Address, what: str, status: int, read: bytes) -> EngineFault:
    """The server's own words, as a fault."""
    try:
        error = msgspec.json.decode(read, type=_Line).error
        words = str(error.get("message", error)) if isinstance(error, dict) else str(error or "")
    except msgspec.DecodeError:
        words = read[:_ERROR_CHARS].decode("utf-8", "replace")
    advice = " Put its key into the address: http://:KEY@HOST:PORT." if status == 401 else ""
    # 400 is its word for a question that is wrong by itself, and will be wrong again.
    kind = Unworkable if status == _WRONG_QUESTION else EngineFault
    return kind(f"The server at {to.shown} refused {what} ({status}): {words[:_ERROR_CHARS]}.{advice}")


def lost(to: Address, what: str, cause: Exception) -> EngineFault:
    """No answer, or none that can be understood, as a fault."""
    words = str(cause).rstrip(".")[:_ERROR_CHARS] or type(cause).__name__
    return EngineFault(f"The server at {to.shown} gave no usable answer to {what} ({words}). Look at its log.")
