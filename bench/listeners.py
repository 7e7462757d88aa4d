"""Many readers of one stream in a process of their own: raw sockets, and the moment each frame's first byte came.

Prints `ready` once all of them are told the present, then one JSON object when the stream ends: for each version the
arrival times in nanoseconds of `CLOCK_MONOTONIC`.
"""

import asyncio
import json
import sys
import time


class Reader(asyncio.Protocol):
    """One listener."""

    def __init__(self, path: str, port: int, seen: dict[int, list[int]], present: int) -> None:
        self.call = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: text/event-stream\r\n\r\n".encode()
        self.seen, self.rest, self.upto = seen, b"", present
        self.present: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        transport.write(self.call)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Note what came, and when."""
        now = time.monotonic_ns()
        self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        for line in lines:
            if line.startswith(b"id: "):
                version = int(line[4:])
                if version == self.upto:
                    self.present.set_result(None)
                self.seen.setdefault(version, []).append(now)
            elif line.startswith(b"event: Completed"):
                self.ended.set_result(None)


async def main(port: int, path: str, count: int, present: int) -> None:
    loop = asyncio.get_running_loop()
    seen: dict[int, list[int]] = {}
    readers = []
    for _ in range(count):
        reader = Reader(path, port, seen, present)
        await loop.create_connection(lambda made=reader: made, "127.0.0.1", port)
        readers.append(reader)
    await asyncio.gather(*(reader.present for reader in readers))
    print("ready", flush=True)
    await asyncio.gather(*(reader.ended for reader in readers))
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
