"""What the service costs on top of its engine, and what two lanes cost each other, with the real small model."""

import json
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

from bench.numbers import Figure
from bench.parts import ROOT, Service, cpu_s, service, until
from store.contents import read_spec
from store.models.catalog import Catalog

REAL = "smollm2-135m"
UNITS = 96
CONFIG = "[policy]\ngpu_queue_limit = 1\ncpu_queue_limit = 100\n"
TOPICS = ("a lighthouse", "a harbour in winter", "the first railway", "a clock that stopped", "an orchard", "a bridge")


class Bare:
    """The bare engine loop, loaded from the model that the service prepared."""

    def __init__(self, made: Service) -> None:
        entry = Catalog(made.paths.models).get(REAL)
        module = "bench.barellama" if entry.engine == "llamacpp" else "bench.bareengine"
        command = [sys.executable, "-m", module, entry.prepared]
        self.engine = entry.engine
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def generate(self, order: dict[str, Any]) -> dict[str, Any]:
        """Seconds and tokens of one answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def body(topic: str, temperature: float) -> dict[str, Any]:
    """A call."""
    messages = [{"role": "user", "content": f"Write a long story about {topic}."}]
    sampling = {"temperature": temperature, "top_p": 0.95, "seed": 11}
    return {"model": REAL, "messages": messages, "max_tokens": UNITS, **sampling}


def finish(made: Service, request_id: str) -> float:
    """Seconds from the durable admission to the durable end, by the record."""
    sql = "SELECT min(at_us), max(at_us), max(type='Completed') FROM events WHERE stream=?"
    rows = until(lambda: (found := made.rows(sql, request_id))[0][2] and found, f"{request_id} to complete")
    return float(rows[0][1] - rows[0][0]) / 1e6


class Overhead(NamedTuple):
    """Medians: tokens a second through the service and bare, overhead in time for each token and in processor time."""

    ours: float
    theirs: float
    time: float
    cpu: float
    same: int
    """Answers that were the same token for token."""


def overhead(made: Service, temperature: float, rounds: int) -> Overhead:
    """One answer through the service, the same one bare, and so on in turns."""
    bare = Bare(made)
    pids = (made.runner("gpu"), bare.process.pid)
    theirs, ours, over, busy, same = [], [], [], [], 0
    for number in range(-1, rounds):
        used = [cpu_s(pid) for pid in pids]
        request_id = made.submit(**body(TOPICS[number % len(TOPICS)], temperature))
        seconds = finish(made, request_id)
        (row,) = made.rows("SELECT body FROM contents WHERE request_id=? AND kind='spec'", request_id)
        spec = read_spec(row[0])
        order = {"prompt": spec.tokens, "units": UNITS, "temperature": temperature, "seed": 11, "eos": spec.eos}
        alone = bare.generate(order)
        if number < 0:
            continue
        count = made.client.get(f"/api/requests/{request_id}").json()["progress"]["done"]
        text = made.client.get(f"/api/requests/{request_id}/export").json()["outputs"]
        tokens = [token for chunk in text for token in chunk["tokens"]]
        same += tokens == alone["tokens"]
        ours.append(count / seconds)
        theirs.append(len(alone["tokens"]) / alone["seconds"])
        over.append(theirs[-1] / ours[-1] - 1)
        mine, other = (cpu_s(pid) - before for pid, before in zip(pids, used, strict=True))
        busy.append(mine / other - 1)
    bare.close()
    return Overhead(*(statistics.median(values) for values in (ours, theirs, over, busy)), same)


def _rate(made: Service, request_id: str, since_us: int, until_us: int) -> float:
    rows = made.rows(
        "SELECT at_us, json_extract(data, '$.units') FROM events WHERE stream=? AND type IN "
        "('Checkpointed', 'Completed') AND at_us BETWEEN ? AND ? ORDER BY seq",
        *(request_id, since_us, until_us),
    )
    if len(rows) < 2:
        return 0.0
    return float(rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0]) * 1e6


def together(made: Service) -> tuple[float, float]:
    """Tokens a second of one lane alone, and of both at once in sum while both work."""
    alone = made.submit(**body(TOPICS[0], 0.0))
    finish(made, alone)
    single = _rate(made, alone, 0, 2**62)
    # One at work and one waiting fill the GPU lane; the third goes to the CPU lane.
    first = made.submit(**body(TOPICS[0], 0.0))
    until(lambda: made.rows("SELECT 1 FROM requests WHERE id=? AND running=1", first), "the first to start")
    second = made.submit(**body(TOPICS[1], 0.0))
    third = made.submit(**body(TOPICS[2], 0.0))
    if made.client.get(f"/api/requests/{third}").json()["lane"] != "cpu":
        raise AssertionError("the third request did not go to the CPU lane")
    for request_id in (first, second, third):
        finish(made, request_id)
    times = "SELECT min(at_us), max(at_us) FROM events WHERE stream=? AND type IN ('Started', 'Completed')"
    (since, until_us), *_ = made.rows(times, third)
    gpu = (first, second)
    begun, ended = made.rows(times, first)[0][0], made.rows(times, second)[0][1]
    since, until_us = max(since, begun), min(until_us, ended)
    sums = "SELECT at_us, json_extract(data, '$.units') FROM events WHERE stream=? AND at_us BETWEEN ? AND ? AND type=?"
    pieces = 0.0
    for request_id in (*gpu, third):
        rows = made.rows(sums, request_id, since, until_us, "Checkpointed")
        pieces += rows[-1][1] - rows[0][1] if rows else 0
    return single, pieces / (until_us - since) * 1e6


def measure(*, quick: bool) -> list[Figure]:
    """Overhead greedy and sampled, then both lanes."""
    rounds = 3 if quick else 12
    figures = []
    with service(model=REAL, config=CONFIG) as made:
        made.runner("gpu")
        made.runner("cpu")
        for name, temperature, goal in (("greedy", 0.0, 0.03), ("sampled", 0.8, 0.10)):
            seen = overhead(made, temperature, rounds)
            figures.append(
                Figure(
                    f"generation through the service, {name}, {UNITS} tokens, one thread",
                    f"{seen.ours:.1f} tokens/s from durable admission to durable end",
                    f"bare engine loop {seen.theirs:.1f} tokens/s; {seen.same} of {rounds} answers the same tokens",
                    f"{seen.time:+.1%} time, {seen.cpu:+.1%} processor time",
                    f"≤ {goal:.0%}",
                    met=seen.time <= goal,
                )
            )
        time.sleep(0.5)
        pairs = [together(made) for _ in range(1 if quick else 5)]
    single, both = (statistics.median(pair[n] for pair in pairs) for n in (0, 1))
    ratio = statistics.median(both / single for single, both in pairs)
    figures.append(
        Figure(
            "both lanes generating at once",
            f"{both:.1f} tokens/s in sum",
            f"one lane alone {single:.1f} tokens/s",
            f"{ratio:.2f}",
            "≥ 0.80",
            met=ratio >= 0.8,
        )
    )
    return figures
