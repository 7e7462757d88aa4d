"""Asking a server that speaks the OpenAI API, with the standard library alone.

1. A streamed answer is read by a thread of its own, so that whoever awaits it can give signs of life meanwhile, and
   can leave at any moment: leaving closes the connection, which stops the server.
2. Nothing that a server sends is trusted: sizes are bounded, and what is not what was asked for is an `EngineFault`
   that quotes it.
3. The key is in no message: neither ours nor one that quotes the server.
"""

import http.client
import json
import queue
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from core.errors import EngineFault, NoPlace

_BODY_LIMIT: Final = 1 << 20
_LINE_LIMIT: Final = 8 << 20
_READ: Final = 1 << 16
_AHEAD: Final = 256
"""Frames that may wait to be taken; beyond it the server is made to wait."""
_QUOTED: Final = 300


class Address(msgspec.Struct, frozen=True):
    """Where a server is, and the key for it."""

    host: str
    port: int
    secure: bool = False
    prefix: str = ""
    key: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}{self.prefix}"

    def __repr__(self) -> str:
        return f"Address({self})"

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Not connected yet."""
        if self.secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def headers(self) -> dict[str, str]:
        """Of every question."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        return headers | ({"Authorization": f"Bearer {self.key}"} if self.key else {})

    def quoted(self, text: str) -> str:
        """What the server said, fit for a message: short, printable, and without the key."""
        if self.key:
            text = text.replace(self.key, "***")
        return "".join(char if char.isprintable() else " " for char in text.strip()[:_QUOTED])


def address_of(url: str, key: str = "") -> Address:
    """Raises `EngineFault` for what is not an address. A path that ends in `/v1` is understood."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username:
        raise EngineFault(f"{url!r} is not the address of a server. Write it like http://127.0.0.1:8000.")
    if not all("!" <= char <= "~" for char in key):
        raise EngineFault("The key for the server has a space or another sign that no key has. Check its variable.")
    secure = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Address(parts.hostname, port or (443 if secure else 80), secure, prefix, key)


def get(address: Address, path: str, timeout_s: float) -> tuple[int, str, Any]:
    """Status, the server's name for itself, and the JSON it answers (None when it is none).

    Raises `EngineFault` when it does not answer.
    """
    connection = address.connection(timeout_s)
    try:
        connection.request("GET", address.prefix + path, headers=address.headers())
        response = connection.getresponse()
        body = response.read(_BODY_LIMIT)
    except (OSError, http.client.HTTPException) as error:
        raise EngineFault(f"The server {address} does not answer GET {path}: {_cause(error)}.") from error
    finally:
        connection.close()
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    return response.status, response.getheader("Server") or "", found


class Stream:
    """One streamed answer: JSON objects in order."""

    def __init__(self, address: Address, path: str, body: dict[str, Any], connect_s: float) -> None:
        self._address = address
        self._path = path
        self._body = json.dumps(body).encode()
        self._connect_s = connect_s
        self._frames: queue.Queue[dict[str, Any] | EngineFault | None] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name=f"answer-{address.port}", daemon=True)
        self._thread.start()

    def next(self, within_s: float) -> dict[str, Any] | None:
        """The next object, or None when none came in time.

        Raises `EngineFault` when the answer broke off, and `EOFError` after its orderly end.
        """
        try:
            found = self._frames.get(timeout=within_s)
        except queue.Empty:
            if self._closed.is_set():
                raise EngineFault(f"The connection to {self._address} was closed here.") from None
            return None
        if isinstance(found, EngineFault):
            raise found
        if found is None:
            raise EOFError
        return found

    def close(self) -> None:
        """Leave: the server sees the connection end."""
        self._closed.set()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    # ---- in the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        connection = self._address.connection(self._connect_s)
        try:
            connection.connect()
            self._socket = connection.sock
            self._socket.settimeout(None)
            if not self._closed.is_set():
                self._ask(connection)
        except EngineFault as fault:
            self._put(fault)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._put(EngineFault(f"The server {self._address} broke off its answer: {_cause(error)}."))
        finally:
            connection.close()

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        connection.request("POST", self._address.prefix + self._path, self._body, self._address.headers())
        response = connection.getresponse()
        kind = (response.getheader("Content-Type") or "").partition(";")[0].strip().lower()
        if response.status != 200 or kind != "text/event-stream":
            raise self._refusal(response, kind)
        for data in _events(response):
            if data == "[DONE]":
                break
            self._put(self._object(data))
        self._put(None)

    def _refusal(self, response: http.client.HTTPResponse, kind: str) -> EngineFault:
        said = self._address.quoted(_message(response.read(_BODY_LIMIT).decode("utf-8", "replace")))
        if response.status in {429, 503}:
            return NoPlace(f"The server {self._address} is busy ({response.status}): {said}")
        if response.status != 200:
            return EngineFault(f"The server {self._address} answered {response.status}: {said}")
        named = kind or "something without a type"
        return EngineFault(f"The server {self._address} answered {named} instead of a stream of events: {said}")

    def _object(self, data: str) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            said = self._address.quoted(data)
            raise EngineFault(f"The server {self._address} sent what is not JSON in its stream: {said}") from error
        if not isinstance(found, dict) or found.get("error"):
            said = self._address.quoted(_message(data))
            raise EngineFault(f"The server {self._address} ended its answer with an error: {said}")
        return found

    def _put(self, item: dict[str, Any] | EngineFault | None) -> None:
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._frames.put(item, timeout=0.25)
                return


def _events(response: http.client.HTTPResponse) -> Iterator[str]:
    """The data of each server-sent event; comments and other fields are left out."""
    held = b""
    data: list[str] = []
    while part := response.read1(_READ):
        *lines, held = (held + part).split(b"\n")
        if len(held) > _LINE_LIMIT:
            raise http.client.LineTooLong("event")
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8")
            name, _, value = text.partition(":")
            if name in {"data", "error"} and text:
                # Some servers have a field for errors; it is told like one in the data.
                data.append(value.removeprefix(" ") if name == "data" else json.dumps({"error": value.strip()}))
            elif not text and data:
                yield "\n".join(data)
                data = []


def _message(text: str) -> str:
    """The message in an error's body, or the body."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for _ in range(2):
        if isinstance(found, dict):
            found = next((found[key] for key in ("error", "message", "detail") if found.get(key)), found)
    return found if isinstance(found, str) else text


def _cause(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
