"""Somebody who is told: an HTTP server as a process of its own, which writes down what it gets before it answers.

`/ok` takes it. `/flaky/N` answers 500 to the first N attempts of each key. `/status/N` answers N. `/hang` never does.
`/redirect` sends elsewhere, to `/trap`. `/huge` answers 200 and an endless body, `/heads` an endless head. `/later/N`
answers 503 to the first attempt of each key and asks to be asked again after N seconds. `/mood` does what
`Receiver.mood` was told last, by one of these names; `/ok` at first.
"""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self

FOREVER_S = 3600


class Handler(BaseHTTPRequestHandler):
    file: Path
    seen: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name is the base's
        """Nothing to the terminal."""

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length).decode()
        if len(body.encode()) < length:  # who sent it died over it; that is no delivery
            self.close_connection = True
            return
        key = self.headers.get("webhook-id", "")
        names = ("host", "webhook-id", "webhook-timestamp", "webhook-signature", "content-type")
        line = {"path": self.path, "body": body} | {name: self.headers.get(name) for name in names}
        with self.lock:
            self.seen[key] += 1
            times = self.seen[key]
            with self.file.open("a") as out:
                out.write(json.dumps(line) + "\n")
        path = self.file.with_name("mood").read_text() if self.path == "/mood" else self.path
        what, _, number = path.strip("/").partition("/")
        if what == "hang":
            time.sleep(FOREVER_S)
        elif what == "huge":
            self.send_response(200)
            self.end_headers()
            self._pour(b"x" * 65536)
        elif what == "heads":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            self._pour(b"X-Y: " + b"z" * 1000 + b"\r\n")
        else:
            status = {"flaky": 500 if times <= int(number or 0) else 200, "redirect": 307}.get(what, 204)
            status = 503 if what == "later" and times == 1 else status
            self.send_response(int(number) if what == "status" else status)
            if what == "redirect":
                self.send_header("location", "/trap")
            if what == "later":
                self.send_header("retry-after", number)
            self.send_header("content-length", "0")
            self.end_headers()

    def _pour(self, part: bytes) -> None:
        try:
            while True:
                self.wfile.write(part)
        except OSError:
            self.close_connection = True


class Receiver:
    """The process, and what it was told so far. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "told.jsonl"
        self.file.touch()
        self.mood("/ok")
        command = [sys.executable, __file__, str(self.file)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def mood(self, path: str) -> None:
        """What `/mood` does from now on."""
        draft = self.file.with_name("mood.new")
        draft.write_text(path)
        draft.replace(self.file.with_name("mood"))

    def told(self) -> list[dict[str, Any]]:
        """Everything it got, in order."""
        return [json.loads(line) for line in self.file.read_text().splitlines()]


if __name__ == "__main__":
    Handler.file = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()
