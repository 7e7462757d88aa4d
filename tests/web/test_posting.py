"""One delivery: where it may go, what it carries, and every way in which it can go wrong."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from receiver import Receiver

from core.webhooks import allowed
from store.outbox import Notice
from web.posting import Outcome, Poster, again_after_s

KEY = b"k" * 32
PAYLOAD = '{"type":"request.completed","data":{"id":"req_1"}}'
PATIENCE_S = 60.0
HERE = ("127.0.0.1",)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path) as made:
        yield made


def post(
    url: str,
    listed: tuple[str, ...] = HERE,
    timeout_s: float = PATIENCE_S,
    names: dict[str, list[str]] | None = None,
    asked: list[str] | None = None,
) -> Outcome:
    """Send one notice; `names` are what names resolve to, and `asked` gets those that were looked up."""

    async def resolve(host: str, _port: int) -> Sequence[str]:
        if asked is not None:
            asked.append(host)
        if host not in (names or {}):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return (names or {})[host]

    async def scenario() -> Outcome:
        poster = Poster(KEY, allowed(listed), timeout_s, resolve)
        try:
            return await poster.post(Notice("key-1", "req_1", "request.completed", PAYLOAD, "", 0, 0, url))
        finally:
            await poster.close()

    return asyncio.run(scenario())


def test_it_arrives_signed(receiver: Receiver) -> None:
    assert post(f"{receiver.url}/ok?to=me") == Outcome()
    (told,) = receiver.told()
    assert (told["path"], told["body"], told["webhook-id"]) == ("/ok?to=me", PAYLOAD, "key-1")
    assert told["content-type"] == "application/json"
    assert told["host"] == f"127.0.0.1:{receiver.port}"
    over = f"key-1.{told['webhook-timestamp']}.{PAYLOAD}".encode()
    made = base64.b64encode(hmac.new(KEY, over, hashlib.sha256).digest()).decode()
    assert told["webhook-signature"] == f"v1,{made}"


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/ok", "http://[::ffff:127.0.0.1]:{port}/ok"])
def test_an_address_that_is_not_listed_is_not_called(receiver: Receiver, url: str) -> None:
    outcome = post(url.format(port=receiver.port), listed=())
    assert "webhook_hosts" in str(outcome.error)
    assert receiver.told() == []


@pytest.mark.parametrize("found", [["127.0.0.1"], ["::ffff:127.0.0.1"], ["::1", "10.0.0.1", "169.254.169.254"], []])
def test_a_name_that_leads_inside_is_not_called(receiver: Receiver, found: list[str]) -> None:
    outcome = post(f"http://public.example:{receiver.port}/ok", listed=(), names={"public.example": found})
    assert ("not allowed" if found else "does not resolve") in str(outcome.error)
    assert receiver.told() == []


def test_a_name_is_asked_once_and_that_address_is_called(receiver: Receiver) -> None:
    """A second look might be told something else."""
    asked: list[str] = []
    names = {"hook.example": ["10.9.9.9", "127.0.0.1"]}
    assert post(f"http://hook.example:{receiver.port}/ok", names=names, asked=asked) == Outcome()
    assert asked == ["hook.example"]
    assert [told["host"] for told in receiver.told()] == [f"hook.example:{receiver.port}"]


def test_a_listed_name_may_lead_anywhere(receiver: Receiver) -> None:
    names = {"hook.lan": ["127.0.0.1"]}
    assert post(f"http://hook.lan:{receiver.port}/ok", listed=("hook.lan",), names=names) == Outcome()


def test_a_proxy_of_the_environment_is_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert post(f"{receiver.url}/ok") == Outcome()


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    outcome = post(f"{receiver.url}/redirect")
    assert "redirects are not followed" in str(outcome.error)
    assert [told["path"] for told in receiver.told()] == ["/redirect"]


@pytest.mark.parametrize(("status", "hopeless"), [(400, False), (404, False), (410, True), (429, False), (503, False)])
def test_other_answers_are_failures(receiver: Receiver, status: int, hopeless: bool) -> None:
    assert post(f"{receiver.url}/status/{status}") == Outcome(f"HTTP {status}", hopeless=hopeless)


def test_one_that_hangs_is_left(receiver: Receiver) -> None:
    assert post(f"{receiver.url}/hang", timeout_s=0.5) == Outcome("no answer within 0.5 s")
    assert len(receiver.told()) == 1


def test_an_endless_body_is_not_read(receiver: Receiver) -> None:
    assert post(f"{receiver.url}/huge") == Outcome()


def test_an_endless_head_is_not_read_to_its_end(receiver: Receiver) -> None:
    assert str(post(f"{receiver.url}/heads").error).startswith("no answer: ")


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert str(post(f"http://127.0.0.1:{port}/ok").error).startswith("no answer: ConnectError")
    assert "does not resolve" in str(post("http://nobody.example/").error)


def test_no_tls_there(receiver: Receiver) -> None:
    outcome = post(f"https://127.0.0.1:{receiver.port}/geheim")
    assert str(outcome.error).startswith("TLS failed: ")
    assert "geheim" not in str(outcome.error)


def test_a_certificate_is_checked_against_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need: Callable[[str, str], NoReturn]
) -> None:
    """The connection goes to an address, and still it is the name that must be proved."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=hook.example", "-addext", "subjectAltName=DNS:hook.example"]
    command += ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    except FileNotFoundError:
        need("openssl", "apt-get install openssl")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    got: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(3):
            try:
                plain, _ = listener.accept()
            except OSError:  # the test has ended early
                return
            with plain:
                try:
                    with context.wrap_socket(plain, server_side=True) as secure:
                        got.append(secure.recv(65536))
                        secure.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
                        with contextlib.suppress(OSError):
                            while secure.recv(65536):  # closing with something unread would reset what was sent
                                pass
                except OSError:
                    got.append(b"")

    thread = threading.Thread(target=serve)
    thread.start()
    names = {"hook.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]}
    port: Any = listener.getsockname()[1]
    try:
        assert "TLS failed: CERTIFICATE_VERIFY_FAILED" in str(post(f"https://hook.example:{port}/", names=names).error)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        assert post(f"https://hook.example:{port}/x", names=names) == Outcome()
        assert "TLS failed: CERTIFICATE_VERIFY_FAILED" in str(post(f"https://other.example:{port}/", names=names).error)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        listener.close()
    assert got[1].startswith(b"POST /x HTTP/1.1\r\n")
    assert (got[0], got[2]) == (b"", b"")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        ("0", 0.0),
        ("9" * 40, 1e9),
        ("Wed, 21 Oct 2015 07:29:00 GMT", 60.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),  # it is over already
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("\u0665", None),  # a digit, but not one of HTTP's
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
    ],
)
def test_when_a_receiver_wants_to_be_asked_again(text: str, seconds: float | None) -> None:
    """445,412,480 is 2015-10-21 07:28:00 UTC, counted from 2001-09-09 01:46:40, which is 1,000,000,000."""
    assert again_after_s(text, 1_000_000_000 + 445_412_480) == seconds


def test_what_it_asks_for_is_told_on(receiver: Receiver) -> None:
    assert post(f"{receiver.url}/later/7") == Outcome("HTTP 503", again_s=7.0)
