"""From the return of a commit to the first byte of its frame at each of many listeners."""

import json
import subprocess
import sys
import time

from bench.acts import LEASE_US, admit, take
from bench.numbers import Figure, percentile
from bench.parts import ROOT, directory, prepared_store, server, settings
from core import events as ev
from store import claims, contents
from store.claims import Claim
from store.journal import Tx
from store.writer import Writer

_PAUSE_S = 0.05


def _step(tx: Tx, claim: Claim, units: int, *, last: bool) -> None:
    body = contents.chunk_body((97,), "a")
    digest, fence = contents.digest(claim.spec.secret, body), claim.fence
    first = units - 1
    if last:
        claims.complete(tx, fence, ev.Completed(units, units, "length", digest), epoch=0, first=first, body=body)
    else:
        event = ev.Checkpointed(units, units, digest)
        claims.checkpoint(tx, fence, event, epoch=0, first=first, body=body, lease_us=LEASE_US)


def delays(writer: Writer, port: int, listeners: int, commits: int) -> list[float]:
    """Milliseconds, one for each commit and listener."""
    writer.run(admit)
    claim = writer.run(take)
    path = f"/api/requests/{claim.state.id}/events"
    command = [sys.executable, "-m", "bench.listeners", str(port), path, str(listeners), str(claim.state.version)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise AssertionError("the listeners did not start")
    committed = {}
    for number in range(commits):
        time.sleep(_PAUSE_S)
        last = number == commits - 1
        writer.run(lambda tx, units=number + 1, last=last: _step(tx, claim, units, last=last))
        committed[claim.state.version + 1 + number] = time.monotonic_ns()
    seen = json.loads(process.stdout.readline())
    process.wait(30)
    return [max(0, at - committed[int(v)]) / 1e6 for v, times in seen.items() if int(v) in committed for at in times]


def measure(*, quick: bool) -> list[Figure]:
    """Percentiles over commits and listeners; one listener is the reference."""
    commits = 20 if quick else 120
    with directory() as paths:
        writer = prepared_store(paths, settings())
        with server("web.app", "--data", str(paths.root)) as (port, _pid):
            one = delays(writer, port, 1, commits)
            many = delays(writer, port, 50, commits)
        writer.close()
    p50, p99 = percentile(many, 50), percentile(many, 99)
    return [
        Figure(
            "commit until its SSE byte, 50 listeners",
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
            f"one listener: p50 {percentile(one, 50):.1f} ms, p99 {percentile(one, 99):.1f} ms",
            f"{p50 / percentile(one, 50):.1f} times at p50",
            "p50 ≤ 5 ms, p99 ≤ 25 ms",
            met=p50 <= 5 and p99 <= 25,
        )
    ]
