"""From the call to the last durable unit, with an engine that costs nothing: web, runner and supervisor together."""

import statistics
import time

from bench.acts import alone
from bench.numbers import Figure
from bench.parts import Client, directory, prepared_store, service, settings, until

BODY = {
    "model": "null",
    "messages": [{"role": "user", "content": "Tell me about lighthouse number {n}, and who built it."}],
    "max_tokens": 16,
    "seed": 7,
}


def record_alone(count: int) -> float:
    """Lifecycles a second of the record by itself: one process, 16 requests side by side, no HTTP, no engine."""
    with directory() as paths:
        writer = prepared_store(paths, settings())
        alone(writer, 64)
        began = time.perf_counter()
        alone(writer, count)
        took = time.perf_counter() - began
        writer.close()
    return count / took


def measure(*, quick: bool) -> list[Figure]:
    """Requests a second, as the median over the rounds; a round ends when the last request is durably complete."""
    count, rounds = (300, 3) if quick else (1000, 7)
    reference = record_alone(count)
    rates = []
    with service(config="[policy]\ngpu_queue_limit = 100000\n") as made:
        made.runner("gpu")
        client = Client(16)
        done = 0
        for number in range(-1, rounds):
            began = time.perf_counter()
            client.round(made.port, "/api/requests", BODY, count)
            done += count

            def complete(wanted: int = done) -> bool:
                return bool(made.rows("SELECT count(*) FROM requests WHERE state='completed'")[0][0] == wanted)

            until(complete, "all to complete")
            if number >= 0:
                rates.append(count / (time.perf_counter() - began))
        client.close()
    rate = statistics.median(rates)
    return [
        Figure(
            "whole lifecycle, null engine, 16 slots, 16 tokens (6 events)",
            f"{rate:,.0f} requests/s",
            f"the record alone, without HTTP or engine: {reference:,.0f}/s",
            f"{rate / reference:.0%} of the record alone",
            "≥ 1,000/s",
            met=rate >= 1000,
        )
    ]
