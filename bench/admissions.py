"""Durable admissions over HTTP, beside a bare route of the same framework, in alternating rounds."""

import statistics

from bench.numbers import Figure, percentile
from bench.parts import Client, directory, prepared_store, server, settings
from store import commands
from store.database import checkpoint, write_engine
from store.gate import Gate
from store.journal import Tx

CONNECTIONS = 16
A_ROUND = 240
BODY = {
    "model": "null",
    "messages": [{"role": "user", "content": "Tell me about lighthouse number {n}, and who built it."}],
    "max_tokens": 16,
    "seed": 7,
}


def drain(tx: Tx) -> None:
    """End all that waits, so that every round finds the queue as short."""
    for (request_id,) in tx.execute("SELECT id FROM requests WHERE state='admitted'").fetchall():
        commands.cancel(tx, request_id, actor="bench")


def measure(*, quick: bool) -> list[Figure]:
    """Requests a second and latency, as medians over the rounds."""
    rounds = 6 if quick else 24
    with directory() as paths:
        writer = prepared_store(paths, settings(gpu_queue_limit=2 * A_ROUND))
        gate, engine = Gate(paths.gate), write_engine(paths)
        rates: dict[str, list[float]] = {"/bare": [], "/api/requests": []}
        latencies: dict[str, list[float]] = {"/bare": [], "/api/requests": []}
        with server("bench.bare") as (bare, _), server("web.app", "--data", str(paths.root)) as (ours, _pid):
            client = Client(CONNECTIONS)
            for number in range(-2, rounds):
                for port, path in ((bare, "/bare"), (ours, "/api/requests")):
                    seen = client.round(port, path, BODY, A_ROUND)
                    if number >= 0:
                        rates[path].append(A_ROUND / seen["wall_s"])
                        latencies[path] += seen["latencies_ms"]
                writer.run(drain)
                checkpoint(gate, engine)
            client.close()
        writer.close()
        engine.dispose()
        gate.close()
    shares = [mine / theirs for mine, theirs in zip(rates["/api/requests"], rates["/bare"], strict=True)]
    durable, reference = (statistics.median(rates[path]) for path in ("/api/requests", "/bare"))
    share = statistics.median(shares)
    p50, p99 = (percentile(latencies["/api/requests"], q) for q in (50, 99))
    return [
        Figure(
            "durable admissions over HTTP, 16 connections",
            f"{durable:,.0f}/s; p50 {p50:.1f} ms, p99 {p99:.1f} ms",
            f"bare route {reference:,.0f}/s; p50 {percentile(latencies['/bare'], 50):.1f} ms, "
            f"p99 {percentile(latencies['/bare'], 99):.1f} ms",
            f"{share:.0%} of bare",
            "≥ 40 %, p99 ≤ 15 ms",
            met=share >= 0.4 and p99 <= 15,
        )
    ]
