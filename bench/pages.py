"""Each page and each list over a store with more than 100,000 requests and a million events: time until it is answered.

One client asks, one page after the other, of a whole service on this store; so the time is the server's, and that of
the loopback. Each page is asked a few times before it counts.
"""

import time
from collections.abc import Iterator

from bench.filled import fill
from bench.numbers import Figure, percentile
from bench.parts import Service, directory, prepared_store, settings

WARM = 3
MIDDLE = "SELECT id, version FROM requests ORDER BY created_us LIMIT 1 OFFSET ?"


def pages(made: Service) -> Iterator[tuple[str, str]]:
    """(name, path) of what is measured; the request is one from the middle of the store."""
    ((count,),) = made.rows("SELECT count(*) FROM requests")
    ((request_id, version),) = made.rows(MIDDLE, count // 2)
    following = made.client.get("/api/requests?limit=100").json()["next"]
    yield "overview", "/"
    yield "overview, completed only", "/?state=completed"
    yield "request", f"/requests/{request_id}"
    yield "time travel", f"/requests/{request_id}?at={version // 2}"
    yield "audit", "/events"
    yield "audit, one type", "/events?type=Completed"
    yield "audit, the oldest by time", "/events?until=1970-01-02T00:00"
    yield "audit, one type and the oldest by time", "/events?type=Completed&until=1970-01-02T00:00"
    yield "what-if, nothing changed", "/what-if"
    yield "what-if, another headroom", "/what-if?headroom_mib=1024"
    yield "models", "/models"
    yield "status", "/status"
    yield "imports", "/imports"
    yield "API: a request", f"/api/requests/{request_id}"
    yield "API: its events", f"/api/requests/{request_id}/events"
    yield "API: requests", "/api/requests?limit=100"
    yield "API: requests, further on", f"/api/requests?limit=100&cursor={following}"
    yield "API: requests of a state", "/api/requests?limit=100&state=completed"
    yield "API: the journal", "/api/events?after=500000&limit=100"
    yield "API: lanes", "/api/lanes"
    yield "API: devices", "/api/devices"


def ask(made: Service, path: str, rounds: int) -> list[float]:
    """Milliseconds for each round."""
    took = []
    for number in range(WARM + rounds):
        began = time.perf_counter()
        answer = made.client.get(path)
        seconds = time.perf_counter() - began
        if answer.status_code != 200:
            raise AssertionError(f"{path} answered {answer.status_code}: {answer.text[:300]}")
        if number >= WARM:
            took.append(seconds * 1e3)
    return took


def measure(*, quick: bool) -> list[Figure]:
    """p95 of each page."""
    events, rounds = (60_000, 20) if quick else (1_000_000, 60)
    with directory() as paths:
        prepared_store(paths, settings()).close()
        fill(paths, events)
        made = Service(paths)
        try:
            ((count,),) = made.rows("SELECT count(*) FROM requests")
            figures = []
            for name, path in pages(made):
                took = ask(made, path, rounds)
                p95 = percentile(took, 95)
                figures.append(
                    Figure(
                        f"{name}, {count:,} requests and {events:,} events",
                        f"p95 {p95:.1f} ms",
                        f"p50 {percentile(took, 50):.1f} ms",
                        "-",
                        "p95 ≤ 50 ms",
                        met=p95 <= 50,
                    )
                )
        finally:
            made.close()
    return figures
