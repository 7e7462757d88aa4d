"""A cheap HTTP client in a process of its own: raw sockets under asyncio, so that the server is what is measured.

It reads orders from standard input, one JSON object a line, and answers each with one line on standard output:

    {"port": P, "path": "/x", "body": "...", "count": N}   ->   {"wall_s": S, "latencies_ms": [...], "statuses": {...}}

`count` calls are spread over `--connections` connections that stay open between orders; each connection sends its next
call when the answer to its last one is whole. In the body `{n}` becomes the number of the call.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any


class Connection(asyncio.Protocol):
    """One kept-alive connection."""

    def __init__(self) -> None:
        self.buffer = b""
        self.answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to send."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Take bytes; answer the call once headers and body are whole."""
        self.buffer += data
        head, gap, body = self.buffer.partition(b"\r\n\r\n")
        if not gap:
            return
        at = head.lower().index(b"content-length:") + 15
        length = int(head[at : at + 20].partition(b"\r\n")[0])
        if len(body) >= length and self.answer is not None:
            self.buffer = body[length:]
            self.answer.set_result(int(head[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the call that waits."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error or ConnectionError("closed"))

    async def call(self, raw: bytes) -> int:
        """Send a call and wait for its answer's status."""
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(raw)  # type: ignore[attr-defined]
        return await self.answer


def request(port: int, path: str, body: bytes) -> bytes:
    """The bytes of a call."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def _work(connection: Connection, calls: Iterator[bytes], latencies: list[float], seen: Counter[int]) -> None:
    for raw in calls:
        began = time.perf_counter()
        seen[await connection.call(raw)] += 1
        latencies.append((time.perf_counter() - began) * 1e3)


async def _round(connections: list[Connection], order: dict[str, Any]) -> dict[str, Any]:
    body = order["body"]
    calls = iter(
        [request(order["port"], order["path"], body.replace("{n}", str(n)).encode()) for n in range(order["count"])]
    )
    latencies: list[float] = []
    seen: Counter[int] = Counter()
    began = time.perf_counter()
    await asyncio.gather(*(_work(connection, calls, latencies, seen) for connection in connections))
    return {"wall_s": time.perf_counter() - began, "latencies_ms": latencies, "statuses": dict(seen)}


async def main(count: int) -> None:
    loop = asyncio.get_running_loop()
    pools: dict[int, list[Connection]] = {}
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        port = order["port"]
        if port not in pools:
            made = [await loop.create_connection(Connection, "127.0.0.1", port) for _ in range(count)]
            pools[port] = [protocol for _transport, protocol in made]
        print(json.dumps(await _round(pools[port], order)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=16)
    asyncio.run(main(parser.parse_args().connections))
