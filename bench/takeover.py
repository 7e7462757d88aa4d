"""llama.cpp: what a takeover costs with a saved state and without, and what several at once give.

A prompt of about 3,000 tokens, SIGKILL of the GPU runner at token 40 or just after it; the time is from the signal to
the first new durable token of the CPU lane. One thread for each lane on a small machine.
"""

import time
from typing import Any

from bench.failover import strike
from bench.numbers import Figure, percentile
from bench.parts import Service, service, until
from store.contents import read_chunk

REAL = "smollm2-135m"
SENTENCE = "The keeper of the lighthouse wrote every evening what the sea had done that day, and then he slept. "
LONG = SENTENCE * 141
KILL_AT = 40
CONFIG = "[policy]\nrestart_backoff_s = 0.0001\nbreaker_faults = 0\nreturn_to_gpu = false\n"
MANY = "gpu_slots = 4\npool_tokens = 4096\n" + CONFIG
_POLL_S = 0.0005


BODY: dict[str, Any] = {"model": REAL, "prompt": LONG, "max_tokens": 80, "temperature": 0.0, "seed": 7}
"""The same each time: every answer begins in an empty slot, and the GPU lane's runner is a new one after each kill."""


def tokens_of(made: Service, request_id: str) -> list[int]:
    """The answer's units."""
    rows = made.rows("SELECT body FROM contents WHERE request_id=? AND kind='chunk' ORDER BY n", request_id)
    return [token for (body,) in rows for token in read_chunk(body).tokens]


def settle(made: Service, request_id: str) -> None:
    """Wait for its end."""
    sql = "SELECT 1 FROM requests WHERE id=? AND state IN ('completed','resumable-error')"
    until(lambda: made.rows(sql, request_id), f"{request_id} to end")


def kill_once(made: Service, *, saved: bool) -> tuple[float, str, list[int]]:
    """Milliseconds to the first new durable token, the way that was taken, and the answer."""
    made.runner("gpu")
    made.runner("cpu")
    request_id = made.submit(**BODY)
    sql = "SELECT json_extract(doc, '$.units') FROM requests WHERE id=?"
    until(lambda: (made.rows(sql, request_id)[0][0] or 0) >= KILL_AT, f"{request_id} to reach token {KILL_AT}")
    if not saved:
        for file in made.paths.snapshots.glob("*.kv"):
            file.unlink(missing_ok=True)
    began = time.perf_counter()
    _seconds, version = strike(made, request_id)
    new = "SELECT 1 FROM events WHERE stream=? AND type IN ('Checkpointed','Completed') AND version>?"
    while not made.rows(new, request_id, version):
        time.sleep(_POLL_S)
    took = (time.perf_counter() - began) * 1e3
    settle(made, request_id)
    way = "SELECT json_extract(data, '$.way') FROM events WHERE stream=? AND type='PrefixReady'"
    return took, made.rows(way, request_id)[0][0], tokens_of(made, request_id)


def takeovers(count: int, without: int) -> tuple[list[float], list[float], int, int]:
    """Times with a saved state and without, how many answers were the undisturbed ones, and the prompt's tokens."""
    times: dict[str, list[float]] = {"snapshot": [], "recomputed": []}
    same = 0
    with service(model=REAL, config=CONFIG) as made:
        made.runner("gpu")
        alone = made.submit(**BODY)
        settle(made, alone)
        for number in range(count + without):
            took, way, answer = kill_once(made, saved=number < count)
            times[way].append(took)
            same += answer == tokens_of(made, alone)
        size = made.client.get(f"/api/requests/{alone}").json()["usage"]["prompt_tokens"]
    return times["snapshot"], times["recomputed"], same, size


def throughput(config: str) -> float:
    """Tokens a second over eight requests that are there at once."""
    with service(model=REAL, config=config) as made:
        made.runner("gpu")
        body = {"model": REAL, "max_tokens": 96, "temperature": 0.0, "failover": "gpu-only"}
        made.submit(**body, prompt="Warm up.")
        began = time.perf_counter()
        ids = [made.submit(**body, prompt=f"{number}. {SENTENCE}") for number in range(8)]
        for request_id in ids:
            settle(made, request_id)
        return sum(len(tokens_of(made, i)) for i in ids) / (time.perf_counter() - began)


def measure(*, quick: bool) -> list[Figure]:
    """Takeovers, then several at once."""
    count, without = (4, 1) if quick else (20, 3)
    with_state, anew, same, size = takeovers(count, without)
    p50, p95 = percentile(with_state, 50), percentile(with_state, 95)
    one, four = throughput(CONFIG), throughput(MANY)
    return [
        Figure(
            f"SIGKILL at token {KILL_AT} until the first new durable token, {size} prompt tokens, saved state "
            f"({len(with_state)} kills)",
            f"p50 {p50:.0f} ms, p95 {p95:.0f} ms",
            f"recomputed in the same shapes: p50 {percentile(anew, 50):.0f} ms ({len(anew)} kills)",
            f"{percentile(anew, 50) / p50:.0f} times",
            "p95 ≤ 1,000 ms",
            met=p95 <= 1000,
        ),
        Figure(
            "the same: answers equal token for token to the undisturbed ones",
            f"{same} of {count + without}",
            "-",
            "-",
            "all",
            met=same == count + without,
        ),
        Figure(
            "8 requests at once on 4 slots, one thread",
            f"{four:.1f} tokens/s",
            f"8 in sequence on 1 slot {one:.1f} tokens/s",
            f"{four / one:.2f}",
            "no goal",
            met=None,
        ),
    ]
