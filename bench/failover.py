"""SIGKILL of the GPU runner: how long until the move is durable, and until the first new word is; and after that?"""

import os
import signal
import time

from bench.numbers import Figure, percentile
from bench.parts import Service, service, until

CONFIG = "[policy]\nrestart_backoff_s = 0.0001\nbreaker_faults = 0\ngpu_queue_limit = 1000\ncpu_queue_limit = 1000\n"
OPENS_AT_ONCE = "[policy]\nbreaker_faults = 1\nbreaker_cooldown_s = 3600.0\nslow_factor = 0\n"
_POLL_S = 0.0005
REAL = "smollm2-135m"
STORY = "The keeper of the lighthouse wrote every evening what the sea had done that day, and then he slept. " * 13


def strike(made: Service, request_id: str) -> tuple[float, int]:
    """Kill the GPU runner under a request that it works on. Seconds until `Rerouted` can be read, and its version."""
    pid = made.runner("gpu")
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    while True:
        rows = made.rows("SELECT version FROM events WHERE stream=? AND type='Rerouted'", request_id)
        if rows:
            return time.perf_counter() - began, rows[0][0]
        if time.perf_counter() - began > 60:
            raise TimeoutError(f"{request_id} was not moved")
        time.sleep(_POLL_S)


def _underway(made: Service, request_id: str, least: int) -> None:
    sql = "SELECT json_extract(doc, '$.units') FROM requests WHERE id=? AND running=1 AND lane='gpu'"

    def far_enough() -> bool:
        rows = made.rows(sql, request_id)
        return bool(rows) and (rows[0][0] or 0) >= least

    until(far_enough, f"{request_id} to be under way")


def reroutes(count: int) -> list[float]:
    """Milliseconds from the signal to the durable move, null engine."""
    took = []
    with service(config=CONFIG) as made:
        for number in range(count):
            made.runner("gpu")
            request_id = made.submit(model="null", prompt=f"[[tps=40]] story {number}", max_tokens=400, seed=7)
            _underway(made, request_id, 2)
            seconds, _version = strike(made, request_id)
            took.append(seconds * 1e3)
            made.client.post(f"/api/requests/{request_id}/cancel", json={})
    return took


def first_words(count: int) -> tuple[list[float], list[float], int]:
    """Milliseconds to the move and to the first new durable unit, real model; and the prompt's tokens."""
    moved, spoke, tokens = [], [], 0
    sql = "SELECT 1 FROM events WHERE stream=? AND type='Checkpointed' AND version>?"
    with service(model=REAL, config=CONFIG) as made:
        for number in range(count):
            made.runner("gpu")
            made.runner("cpu")
            body = {"model": REAL, "prompt": f"{number}. {STORY}", "max_tokens": 400, "seed": 7}
            request_id = made.submit(**body)
            _underway(made, request_id, 14)
            began = time.perf_counter()
            seconds, version = strike(made, request_id)
            while not made.rows(sql, request_id, version):
                time.sleep(_POLL_S)
            spoke.append((time.perf_counter() - began) * 1e3)
            moved.append(seconds * 1e3)
            tokens = made.client.get(f"/api/requests/{request_id}").json()["usage"]["prompt_tokens"]
            made.client.post(f"/api/requests/{request_id}/cancel", json={})
    return moved, spoke, tokens


def detours(count: int) -> tuple[list[float], list[float]]:
    """Milliseconds from `Admitted` to `Started` on the CPU lane: with an open breaker, and with no GPU lane at all."""
    with service(config=OPENS_AT_ONCE) as made:
        made.runner("gpu")
        request_id = made.submit(model="null", prompt="[[tps=40]] the last one there", max_tokens=400, seed=7)
        _underway(made, request_id, 2)
        strike(made, request_id)
        until(lambda: made.rows("SELECT 1 FROM devices WHERE breaker='open'"), "the breaker to open")
        made.client.post(f"/api/requests/{request_id}/cancel", json={})
        beside = _to_cpu(made, count)
    with service(config=OPENS_AT_ONCE, gpu=None) as made:
        return beside, _to_cpu(made, count)


def _to_cpu(made: Service, count: int) -> list[float]:
    """One request after the other; each has started on the CPU lane and nowhere before."""
    took = []
    made.runner("cpu")
    until(lambda: not made.rows("SELECT 1 FROM requests WHERE running=1"), "the lane to be idle")
    sql = "SELECT at_us, json_extract(data, '$.lane') FROM events WHERE stream=? AND type IN ('Admitted', 'Started')"
    for number in range(count):
        request_id = made.submit(model="null", prompt=f"[[tps=0]] {number}", max_tokens=8, seed=7)
        until(lambda one=request_id: len(made.rows(sql, one)) > 1, f"{request_id} to start")  # type: ignore[misc]
        (admitted_us, _), (started_us, lane) = made.rows(f"{sql} ORDER BY version", request_id)
        if lane != "cpu":
            raise AssertionError(f"{request_id} was tried on the {lane} lane")
        took.append((started_us - admitted_us) / 1e3)
        until(lambda: not made.rows("SELECT 1 FROM requests WHERE running=1"), "its end")
    return took


def measure(*, quick: bool) -> list[Figure]:
    """Percentiles over the kills."""
    took = reroutes(8 if quick else 32)
    p50, p99 = percentile(took, 50), percentile(took, 99)
    beside, alone = detours(30 if quick else 200)
    added = percentile(beside, 50) - percentile(alone, 50)
    moved, spoke, tokens = first_words(3 if quick else 6)
    return [
        Figure(
            f"SIGKILL of the GPU runner until `Rerouted` is durable ({len(took)} kills)",
            f"p50 {p50:.0f} ms, p99 {p99:.0f} ms",
            "leases elsewhere: 30 s to 60 min by default",
            "-",
            "p99 ≤ 250 ms",
            met=p99 <= 250,
        ),
        Figure(
            f"the same until the first new token, real model, {tokens} prompt tokens recomputed ({len(spoke)} kills)",
            f"p50 {percentile(spoke, 50):.0f} ms, worst {max(spoke):.0f} ms",
            f"of which until `Rerouted`: p50 {percentile(moved, 50):.0f} ms",
            "-",
            "no goal without KV snapshots",
            met=None,
        ),
        Figure(
            f"`Admitted` until `Started` on the CPU lane while the breaker is open ({len(beside)} requests)",
            f"p50 {percentile(beside, 50):.1f} ms, p99 {percentile(beside, 99):.1f} ms",
            f"a CPU lane alone: p50 {percentile(alone, 50):.1f} ms, p99 {percentile(alone, 99):.1f} ms",
            f"{added:+.1f} ms at p50",
            "< 100 ms added",
            met=added < 100,
        ),
    ]
