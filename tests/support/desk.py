"""A migrated store in a directory of its own, with two lanes for the model `null`, and short words for what happens."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from core import events as ev
from core.events import Recorded
from core.ledger import DeviceFacts
from core.policy import Policy
from core.state import RequestState
from core.words import Lane
from store import breakers, claims, commands, contents, failover, journal, laneviews, reservations, submit
from store.claims import Claim, Owner
from store.clock import Clock
from store.database import Paths, read_engine
from store.laneviews import LaneRow
from store.verify import Verdict, verify
from store.writer import Writer, new_id

ROOT = Path(__file__).parent.parent.parent
MODEL = "null"
CONTRACT = "contract-of-null"
DEVICES = {"gpu": "sim-0", "cpu": "cpu"}
LEASE_US = 15_000_000


class HandClock(Clock):
    """A clock that goes only when told to."""

    def __init__(self, now_us: int = 1_000_000_000, mono_us: int = 50_000_000) -> None:
        self.now, self.mono, self.slept = now_us, mono_us, 0

    def now_us(self) -> int:
        return self.now

    def mono_us(self) -> int:
        return self.mono

    def boot_us(self) -> int:
        return self.mono + self.slept

    def go(self, seconds: float) -> None:
        self.now += int(seconds * 1e6)
        self.mono += int(seconds * 1e6)


class Desk:
    def __init__(self, paths: Paths, clock: Clock | None = None) -> None:
        self.paths = paths
        self.policy = Policy()
        self.writer = Writer(paths, clock)
        self.run = self.writer.run

    def close(self) -> None:
        self.writer.close()

    # ---- set-up ----

    def open_lanes(
        self,
        *,
        gpu: bool | None = True,
        cpu: bool | None = True,
        simulated: bool = True,
        total: int = 1 << 30,
        token: int = 0,
        models: tuple[str, ...] = (MODEL,),
    ) -> None:
        """True: serves; False: is out; None: there is no such lane. With `token` bytes a token, memory is accounted."""

        def unit(tx: journal.Tx) -> None:
            if gpu is not None:
                tx.append("device-sim-0", ev.DeviceFound("Simulated", simulated, total), actor="test")
            for lane, serving in (("gpu", gpu), ("cpu", cpu)):
                if serving is None:
                    continue
                for model in models:
                    row = msgspec.structs.replace(lane_row(lane, serving=serving), model=model)  # type: ignore[arg-type]
                    if lane == "gpu":
                        row = msgspec.structs.replace(row, token_bytes=token)
                    laneviews.put_lane(tx, row)

        self.run(unit)

    def show(self, *, total: int, used: int | None, processes: dict[str, int] | None = None, **more: Any) -> None:
        """A reading of the device, taken now."""
        doc = {"state": "ok", "total": total, "used": used, "processes": processes} | more
        text = msgspec.json.encode(doc).decode()

        def unit(tx: journal.Tx) -> None:
            sql = "INSERT OR REPLACE INTO readings (device, at_us, doc) VALUES ('sim-0',?,?)"
            tx.execute(sql, (tx.now_us, text))

        self.run(unit)

    def picture(self) -> DeviceFacts:
        """The GPU lane's device as deciders see it."""
        facts = self.run(lambda tx: reservations.device_facts(tx, "sim-0", self.policy))
        assert facts is not None
        return facts

    # ---- requests ----

    def submit(self, **changes: Any) -> submit.Submitted:
        return self.run(lambda tx: submit.submit(tx, submission(**changes), self.policy))

    def admit(self, **changes: Any) -> str:
        return self.submit(**changes).state.id

    def claim(self, lane: Lane = "gpu", runner: str = "") -> Claim | None:
        return self.run(lambda tx: claims.claim(tx, owner(lane, runner), LEASE_US, self.policy))

    def sing(self, *answers: tuple[int, ...], lane: Lane = "gpu") -> str:
        """Let canaries be answered on a lane, rightly and often enough unless told otherwise; the last verdict."""
        verdict = ""
        for units in answers or ((1, 2, 3),) * self.policy.breaker_canaries:
            verdict = self.run(partial(self._sing, units=units, lane=lane))
        return verdict

    def _sing(self, tx: journal.Tx, units: tuple[int, ...], lane: Lane) -> str:
        row = laneviews.lane_row(tx, lane, MODEL)
        assert row is not None
        path = laneviews.path_of(tx, row)
        return breakers.answered(tx, DEVICES[lane], path, units, self.policy, runner=f"{lane}-1", took_us=9)

    def take(self, lane: Lane = "gpu", runner: str = "") -> Claim:
        claim = self.claim(lane, runner)
        assert claim is not None, f"nothing can be claimed on {lane}"
        return claim

    def checkpoint(self, claim: Claim, units: int, first: int | None = None, *, took_us: int = 0) -> None:
        """Units up to `units`, each one letter."""
        self.run(lambda tx: checkpoint(tx, claim, units, first, took_us))

    def complete(self, claim: Claim, units: int | None = None, first: int | None = None) -> None:
        self.run(lambda tx: complete(tx, claim, units, first))

    def fault(self, request_id: str, kind: str = "killed", **changes: Any) -> RequestState:
        def unit(tx: journal.Tx) -> RequestState:
            state = tx.state(request_id)
            assert state is not None
            fields = {"fault": "worker", "kind": kind, "lane": state.lane, "runner": "r", "device": state.device or ""}
            seen = ev.FaultSeen(**(fields | {"blames_input": kind in failover.BLAMING} | changes))
            failover.after_fault(tx, request_id, seen, self.policy, actor="test")
            return commands.require(tx, request_id)

        return self.run(unit)

    def state(self, request_id: str) -> RequestState:
        return self.run(lambda tx: commands.require(tx, request_id))

    def events(self, stream: str) -> list[Recorded]:
        return self.run(lambda tx: list(_history(tx, stream)))

    def types(self, stream: str) -> list[str]:
        return [record.type for record in self.events(stream)]

    # ---- the whole ----

    def ask(self, sql: str, *params: object) -> list[Any]:
        return ask(self.paths, sql, *params)

    def verify(self) -> Verdict:
        return verify(self.paths)


def _history(tx: journal.Tx, stream: str) -> list[Recorded]:
    sql = f"SELECT {journal.FIELDS} FROM events WHERE stream=? ORDER BY version"
    return [journal.record_of(row) for row in tx.execute(sql, (stream,))]


def ask(paths: Paths, sql: str, *params: object) -> list[Any]:
    with read_engine(paths).connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(sql, params)]


def lane_row(lane: Lane, *, serving: bool = True, context: int = 8192) -> LaneRow:
    return LaneRow(lane, MODEL, serving, None if serving else "load-failed", context, DEVICES[lane], "null/1", CONTRACT)


def owner(lane: Lane, runner: str = "") -> Owner:
    return Owner(runner or f"{lane}-1", lane, MODEL, DEVICES[lane], "null/1")


def submission(**changes: Any) -> submit.Submission:
    fields: dict[str, Any] = {
        "id": new_id(),
        "owner": "local",
        "workload": "generate",
        "model": MODEL,
        "engine": "null",
        "contract": CONTRACT,
        "body": {"prompt": "hello"},
        "tokens": tuple(b"hello"),
        "eos": (256,),
        "stops": (),
        "sampling": contents.StoredSampling(0.0, 1.0, 40, 0),
        "max_units": 64,
        "failover": "auto",
        "priority": "interactive",
        "deadline_s": None,
        "secret": b"s" * 16,
        "body_digest": "digest-of-the-body",
    }
    return submit.Submission(**(fields | changes))


def letters(first: int, upto: int) -> tuple[int, ...]:
    return tuple(97 + n % 26 for n in range(first, upto))


def body(first: int, upto: int) -> bytes:
    return contents.chunk_body(letters(first, upto), bytes(letters(first, upto)).decode())


def checkpoint(tx: journal.Tx, claim: Claim, units: int, first: int | None = None, took_us: int = 0) -> None:
    start = claim.state.units if first is None else first
    event = ev.Checkpointed(units, units, contents.digest(claim.spec.secret, body(start, units)), took_us)
    claims.checkpoint(
        tx,
        claim.fence,
        event,
        epoch=claim.state.output_epoch,
        first=start,
        body=body(start, units),
        lease_us=LEASE_US,
    )


def complete(tx: journal.Tx, claim: Claim, units: int | None = None, first: int | None = None) -> None:
    start = claim.state.units if first is None else first
    end = start if units is None else units
    event = ev.Completed(end, end, "stop", contents.digest(claim.spec.secret, body(start, end)))
    claims.complete(tx, claim.fence, event, epoch=claim.state.output_epoch, first=start, body=body(start, end))


def python(program: str, *arguments: str, faults: str = "", **options: Any) -> "subprocess.Popen[str]":
    """A process of its own that runs `program`, with this module and the packages in reach."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
    if faults:
        environment["FAILSOFT_FAULTPOINTS"] = faults
    return subprocess.Popen([sys.executable, "-c", program, *arguments], env=environment, text=True, **options)
