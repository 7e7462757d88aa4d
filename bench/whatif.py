"""Another policy over 10,000 recorded decisions, as `POST /api/what-if` answers it, beside reading them alone."""

import statistics
import time

import httpx

from bench.numbers import Figure
from bench.parts import directory, prepared_store, server, settings
from core.policy import Policy
from store import commands, contents, laneviews, submit
from store.database import read_engine
from store.journal import Tx
from store.laneviews import LaneRow
from store.models.catalog import NULL_ENTRY

MIB = 1 << 20
DECISIONS = 10_000
BATCH = 100


def one(tx: Tx, number: int, policy: Policy) -> None:
    """A submission of 100 to 1,099 tokens at a MiB each on a card of 1 GiB, and its end."""
    tokens = 100 + number * 37 % 1000
    sub = submit.Submission(
        id=f"req_{number:08d}",
        owner="bench",
        workload="generate",
        model="null",
        engine="null",
        contract=NULL_ENTRY.contract,
        body={},
        tokens=(65,) * 50,
        eos=(256,),
        stops=(),
        sampling=contents.StoredSampling(0.0, 1.0, 40, 0),
        max_units=tokens - 50,
        failover="auto",
        priority="interactive",
        deadline_s=None,
        secret=b"s" * 16,
        body_digest="d",
    )
    submit.submit(tx, sub, policy)
    commands.cancel(tx, sub.id, actor="bench")


def measure(*, quick: bool) -> list[Figure]:
    """Seconds from the call to its answer, the median of the rounds."""
    policy = Policy()
    with directory() as paths:
        writer = prepared_store(paths, settings())
        row = LaneRow("gpu", "null", True, None, 4096, "sim-0", "null/1", NULL_ENTRY.contract, token_bytes=MIB)
        writer.run(lambda tx: laneviews.put_lane(tx, row))
        for first in range(0, DECISIONS, BATCH):
            writer.run(lambda tx, first=first: [one(tx, n, policy) for n in range(first, first + BATCH)] and None)
        writer.close()
        began = time.perf_counter()
        with read_engine(paths).connect() as connection:
            sql = "SELECT data FROM events WHERE type IN ('Admitted','Refused','Rerouted','Replanned')"
            connection.exec_driver_sql(sql).fetchall()
        reading_s = time.perf_counter() - began
        took = []
        with server("web.app", "--data", str(paths.root)) as (port, _pid):
            body = {"policy": {"headroom_bytes": 0}, "since": "7d"}
            for _ in range(3 if quick else 10):
                began = time.perf_counter()
                answer = httpx.post(f"http://127.0.0.1:{port}/api/what-if", json=body, timeout=60.0)
                took.append(time.perf_counter() - began)
                told = answer.raise_for_status().json()
                assert told["decisions"] == DECISIONS
                assert told["changed"] > 0
    seconds = statistics.median(took)
    return [
        Figure(
            f"what-if over {DECISIONS:,} decisions, over HTTP",
            f"{seconds:.2f} s; {told['changed']:,} would have been others",
            f"reading them alone {reading_s:.2f} s",
            f"{seconds / reading_s:.1f} times",
            "< 2 s",
            met=seconds < 2,
        )
    ]
