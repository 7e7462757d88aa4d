"""No accepted request disappears: whoever is killed, whenever, what was acknowledged is there and ends exactly once."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

from desk import Desk, ask, python

from core.words import TERMINAL
from store import claims
from store.database import Paths
from store.verify import verify

ADMITTER = """
import os, sys, time
from pathlib import Path
from desk import Desk
from store.database import Paths
desk = Desk(Paths(Path(sys.argv[1])))
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
print("ready", flush=True)
while True:
    request = desk.submit(max_units=8).state
    os.write(ledger, f"{request.id} {request.state}\\n".encode())
    os.fsync(ledger)
    time.sleep(0.005)
"""
WORKER = """
import sys, time
from pathlib import Path
from core.errors import Fenced
from desk import Desk
from store.database import Paths
desk = Desk(Paths(Path(sys.argv[1])))
lane = sys.argv[2]
print("ready", flush=True)
while True:
    claim = desk.claim(lane, f"{lane}-{sys.argv[3]}")
    if claim is None:
        time.sleep(0.002)
        continue
    try:
        units = claim.state.units
        for step in (2, 2):
            desk.checkpoint(claim, units + step, first=units)
            units += step
        desk.complete(claim, units + 1, first=units)
    except Fenced:
        pass
"""
KILLS = 12


def start(program: str, *arguments: str) -> "subprocess.Popen[str]":
    process = python(program, *arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def test_killed_again_and_again(desk: Desk, paths: Paths, tmp_path: Path) -> None:
    moments = random.Random(20)
    ledger = tmp_path / "ledger"
    roles = [(ADMITTER, str(ledger)), (WORKER, "gpu", "1"), (WORKER, "cpu", "1")]
    house = [start(program, str(paths.root), *rest) for program, *rest in roles]
    for kill in range(KILLS):
        time.sleep(moments.uniform(0.0, 0.03))
        n = moments.randrange(len(roles))
        end(house[n])
        if n > 0:
            runner = f"{roles[n][1]}-1"
            for request in desk.run(lambda tx, runner=runner: claims.held_by(tx, runner)):
                desk.fault(request, "killed")
        program, *rest = roles[n]
        house[n] = start(program, str(paths.root), *rest)
        assert kill < KILLS
    for process in house:
        end(process)
    for request, _ in ask(paths, "SELECT request_id, runner FROM leases"):
        desk.fault(request, "killed")
    for lane in ("gpu", "cpu"):
        while (claim := desk.claim(lane)) is not None:  # type: ignore[arg-type]
            desk.complete(claim, claim.state.units + 1)
    acknowledged = dict(line.split() for line in ledger.read_text().splitlines())
    assert len(acknowledged) > KILLS
    states = dict(ask(paths, "SELECT id, state FROM requests"))
    for request, said in acknowledged.items():
        assert states[request] == ("refused" if said == "refused" else "completed")
    ends = dict(
        ask(paths, "SELECT stream, count(*) FROM events WHERE type IN ('Completed','Cancelled','Expired') GROUP BY 1")
    )
    assert set(ends.values()) == {1}
    assert set(states.values()) <= TERMINAL
    assert verify(paths).ok
