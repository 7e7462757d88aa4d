"""An OpenAI-compatible server without a model, as a process of its own, whose faults can be ordered.

`python -m fake_upstream --port PORT [--faults JSON] [--children FILE]`, or `FakeUpstream` in a test.

1. Token k of the answer to a question is one character, by arithmetic: `token_at`. A conversation's question is its
   last message of the user; a raw text's is what stands before the last `>`, or the last user's line in the way the
   built-in model writes conversations. What follows the question is the answer so far.
2. It goes on with an answer only in the ways named by `continues`; asked in another way it begins anew, as many do.
3. `POST /faults` with a JSON object replaces the faults; `GET /seen` answers the bodies of all requests for an answer.
4. What the service asks every model from time to time (`CANARY`) it answers as the built-in model does: counting on is
   what all models agree in. With `wrong` it answers everything with words that are nobody's answer.
5. `GET /health` says 200 whatever happens, unless `health` says otherwise.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from null_answer import answer_to

LETTERS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ .,"
CANARY = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,"
WIDE = "aé漢😀b ñ語🎈c "


class Faults(msgspec.Struct, forbid_unknown_fields=True):
    """What goes wrong, and how it answers when nothing does. -1: never."""

    models: tuple[str, ...] = ("fake-1",)
    continues: tuple[str, ...] = ("tokens", "completion", "message")
    letters: str = LETTERS
    wrong: bool = False
    """Each token is another than it should be."""
    version: str = ""
    stop_at: int = -1
    """Ends the answer by itself after so many tokens."""
    counts_more: int = 0
    """Tokens of the prompt that it counts too many, as with a second BOS."""
    needs_key: str = ""
    health: int = 200
    listing: int = 200
    slow_ms: float = 0
    first_ms: float = 0
    ignore: bool = False
    """Accepts the connection and reads nothing of the question."""
    hang_after: int = -1
    pings: bool = False
    """Comments while it hangs."""
    status: int = 200
    times: int = -1
    """How often `status` is answered; -1: always."""
    only_at: str = ""
    """`status` is answered only to questions that hold this."""
    error: str = "something broke"
    reset_after: int = -1
    cut_after: int = -1
    """Closes in order, in the middle of the stream."""
    error_after: int = -1
    """An error as a frame of the stream."""
    holds_mib: int = 0
    """Takes so much memory, once, and keeps it."""
    exit_after: int = -1
    exit_over: int = -1
    """Ends the process when a body is larger."""
    exit_code: int = 139
    garbage: str = ""
    """Answers this with 200 instead."""
    garbage_type: str = "text/html"
    garbage_after: int = -1
    """A frame that is not JSON."""
    no_finish: bool = False
    twice_first: bool = False
    comments: bool = False
    crlf: bool = False
    packet: int = 0
    """Bytes to a packet; 0: a frame."""
    together: int = 1
    """Tokens to a frame."""
    escaped: bool = False
    """Characters beyond the first plane as two halves, each in a frame of its own."""
    replacement: int = -1
    """Ends the answer after so many tokens with half a character, as `\ufffd`."""
    raw: dict[int, str] = {}
    """Texts in place of tokens."""
    delta: dict[str, Any] = {}
    """Further keys of the first frame's delta."""


def _faults(text: str | bytes) -> Faults:
    # Not by msgspec's own reader, which takes no half characters.
    return msgspec.convert(json.loads(text), Faults, strict=False)


def token_at(question: str, place: int, letters: str = LETTERS) -> str:
    return letters[(7 * sum(map(ord, question)) + 3 * place * place + 5 * place) % 61 % len(letters)]


def _another(token: str) -> str:
    return LETTERS[(LETTERS.find(token) + 1) % len(LETTERS)]


def answer(question: str, count: int, letters: str = LETTERS) -> str:
    return "".join(token_at(question, place, letters) for place in range(count))


def _parted(text: str) -> tuple[str, str]:
    """The question in a raw text, and the answer so far."""
    if text.startswith(CANARY):
        return CANARY, text.removeprefix(CANARY)
    before, marker, after = text.rpartition("assistant:")
    if marker:
        return re.findall(r"user: (.*)\n", before)[-1], after
    before, _, after = text.rpartition(">")
    return before, after


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults = Faults()
    seen: ClassVar[list[Any]] = []
    held: ClassVar[list[bytes]] = []

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        faults = self.faults
        if self.path == "/health":
            self._json(faults.health, {"status": "ok"})
        elif self.path == "/seen":
            self._json(200, self.seen)
        elif not self._may():
            self._json(401, {"error": {"message": f"wrong key {self.headers.get('Authorization')}"}})
        elif self.path == "/v1/models":
            self._json(faults.listing, {"object": "list", "data": [{"id": name} for name in faults.models]})
        elif self.path == "/version" and faults.version:
            self._json(200, {"version": faults.version})
        else:
            self._json(404, {"error": {"message": "not here"}})

    def do_POST(self) -> None:
        faults = self.faults
        if self.path == "/faults":
            type(self).faults = _faults(self._body())
            self.held.append(b"\1" * (self.faults.holds_mib << 20))  # the kernel counts what was written to
            self.seen.clear()
            return self._json(200, {})
        if faults.ignore:
            time.sleep(600)
        body = self._body()
        if 0 <= faults.exit_over < len(body):
            os._exit(faults.exit_code)
        asked = json.loads(body)
        self.seen.append({"path": self.path, "body": asked})
        if not self._may():
            return self._json(401, {"error": {"message": f"wrong key {self.headers.get('Authorization')}"}})
        if faults.status != 200 and faults.times != 0 and faults.only_at in self._place(asked)[0]:
            faults.times -= 1
            return self._json(faults.status, {"error": {"message": faults.error}})
        if faults.garbage:
            return self._whole(200, faults.garbage.encode(), faults.garbage_type)
        return self._stream(asked)

    def _may(self) -> bool:
        return not self.faults.needs_key or self.headers.get("Authorization") == f"Bearer {self.faults.needs_key}"

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _json(self, status: int, value: object) -> None:
        self._whole(status, json.dumps(value).encode(), "application/json")

    def _whole(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _place(self, asked: dict[str, Any]) -> tuple[str, int, int]:
        """The question, the tokens of its answer that are there already, and those of the prompt."""
        if self.path == "/v1/chat/completions":
            turns = asked["messages"]
            question = [turn["content"] for turn in turns if turn["role"] == "user"][-1]
            last = turns[-1]
            done = len(last["content"]) if last["role"] == "assistant" and "message" in self.faults.continues else 0
            written = "".join(f"{turn['role']}: {turn['content']}\n" for turn in turns) + "assistant:"
            return question, done, len(written.encode())
        prompt = asked["prompt"]
        way = "completion" if isinstance(prompt, str) else "tokens"
        raw = prompt.encode() if isinstance(prompt, str) else bytes(prompt)
        question, so_far = _parted(raw.decode())
        return question, len(so_far) if way in self.faults.continues else 0, len(raw)

    def _stream(self, asked: dict[str, Any]) -> None:
        faults = self.faults
        question, done, prompt_tokens = self._place(asked)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        time.sleep(faults.first_ms / 1000)
        chat = self.path == "/v1/chat/completions"
        if chat:
            for _ in range(2 if faults.twice_first else 1):
                self._frame({"delta": {"role": "assistant", "content": None}, "finish_reason": None})
        left, sent, finish = asked["max_tokens"], 0, "length"
        extra = dict(faults.delta)
        while sent < left:
            place = done + sent
            if 0 <= faults.stop_at <= place:
                finish = "stop"
                break
            self._go_wrong(sent)
            if sent == faults.replacement:
                self._text(chat, "\ufffd", {})
                break
            count = min(faults.together, left - sent)
            places = range(place, place + count)
            text = "".join(faults.raw.get(at) or _token(question, at, faults) for at in places)
            for part in _halves(text) if faults.escaped else (text,):
                self._text(chat, part, extra)
            extra = {}
            sent += count
            time.sleep(faults.slow_ms / 1000)
        if not faults.no_finish:
            self._frame({"delta" if chat else "text": {} if chat else "", "finish_reason": finish})
        if asked.get("stream_options", {}).get("include_usage"):
            self._send(json.dumps({"choices": [], "usage": {"prompt_tokens": prompt_tokens + faults.counts_more}}))
        self._send("[DONE]")
        self._chunk(b"")

    def _go_wrong(self, sent: int) -> None:
        faults = self.faults
        if sent == faults.exit_after:
            os._exit(faults.exit_code)
        if sent == faults.hang_after:
            while True:
                if faults.pings:
                    self._chunk(b": ping\n\n")
                time.sleep(0.05)
        if sent == faults.reset_after:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.wfile.flush()
            # What was sent before is to arrive: a reset throws away what the other side has not read.
            time.sleep(0.2)
            self.connection.close()
            raise ConnectionResetError
        if sent == faults.cut_after:
            self.connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        if sent == faults.error_after:
            self._send(json.dumps({"error": {"message": faults.error}}))
        if sent == faults.garbage_after:
            self._send("{not json")

    def _text(self, chat: bool, text: str, extra: dict[str, Any]) -> None:
        said = {"delta": {"content": text, **extra}} if chat else {"text": text, **extra}
        self._frame({**said, "finish_reason": None})

    def _frame(self, choice: dict[str, Any]) -> None:
        self._send(json.dumps({"id": "x", "choices": [{"index": 0, **choice}]}, ensure_ascii=self.faults.escaped))

    def _send(self, data: str) -> None:
        end = "\r\n" if self.faults.crlf else "\n"
        comment = f": still here{end}{end}event: message{end}" if self.faults.comments else ""
        self._chunk(f"{comment}data: {data}{end}{end}".encode())

    def _chunk(self, data: bytes) -> None:
        size = self.faults.packet or max(1, len(data))
        for start in range(0, len(data), size):
            part = data[start : start + size]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
            if self.faults.packet:
                time.sleep(0.0002)
        if not data:
            self.wfile.write(b"0\r\n\r\n")


def _token(question: str, place: int, faults: Faults) -> str:
    token = answer_to(CANARY, place + 1)[place] if question == CANARY else token_at(question, place, faults.letters)
    return _another(token) if faults.wrong else token


def _halves(text: str) -> tuple[str, ...]:
    """Its UTF-16 units, one by one: characters beyond the first plane fall in two."""
    raw = text.encode("utf-16-le", "surrogatepass")
    return tuple(raw[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(raw), 2))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Connections that break off are what this server is for."""


class FakeUpstream:
    """One as a process; a test closes it."""

    def __init__(self, **faults: Any) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "fake_upstream", "--port", str(self.port), "--faults", json.dumps(faults)]
        self.process = subprocess.Popen(command, cwd=Path(__file__).parent)
        deadline = time.monotonic() + 60
        while True:
            try:
                self._call("GET", "/health")
            except OSError:
                assert self.process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            else:
                return

    def set(self, **faults: Any) -> None:
        self._call("POST", "/faults", faults)

    def seen(self) -> list[dict[str, Any]]:
        return list(self._call("GET", "/seen"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _call(self, method: str, path: str, body: object = None) -> Any:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, json.dumps(body).encode())
            response = connection.getresponse()
            assert response.status < 400, response.read()
            return json.loads(response.read())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--faults", default="{}")
    parser.add_argument("--children", type=Path, help="start two children, and write all pids there")
    args = parser.parse_args()
    _Handler.faults = _faults(args.faults)
    if args.children is not None:
        sleep = ["sleep", "3600"]
        pids = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]
        args.children.with_suffix(".new").write_text(" ".join(map(str, (os.getpid(), *pids))))
        args.children.with_suffix(".new").replace(args.children)
    threading.Thread(target=_Server(("127.0.0.1", args.port), _Handler).serve_forever).run()


if __name__ == "__main__":
    main()
