"""A whole service in a directory of its own, with real processes that can be really killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from store.clock import start_ticks
from store.database import Paths, read_engine
from store.verify import Verdict, verify

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 120.0
SETTLED = {"completed", "cancelled", "refused", "resumable-error"}


def until(look: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """The first true answer of `look`, or a failure that names what was awaited."""
    deadline = time.monotonic() + seconds
    pause = 0.005
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(pause)
        pause = min(pause * 1.5, 0.04)  # so that those who wait leave the cores to those they wait for
    raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")


def alive(pids: list[int]) -> list[int]:
    """Those of them that still run; one that only waits for its status to be taken is dead."""
    return [pid for pid in pids if start_ticks(pid) is not None]


FAST = """
[policy]
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
hang_grace_s = 2.0
"""
"""Settings of a service whose runners are struck often: quick to start them again, quick to see that one hangs."""


class House:
    def __init__(
        self,
        root: Path,
        *,
        model: str = "null",
        more_models: tuple[str, ...] = (),
        gpu: str | None = "1GiB",
        config: str = "",
    ) -> None:
        self.paths = Paths(root).make()
        self.model = model
        self.more_models = more_models
        self.gpu = gpu
        self.config = root / "failsoft.toml"
        self.config.write_text(steady(config))
        self.process: subprocess.Popen[bytes] | None = None
        self.log = root / "service.log"
        self.environment: dict[str, str] = {}
        self.client = httpx.Client(timeout=60.0)

    # ---- life ----

    def start(self, environment: dict[str, str] | None = None, *, ready: bool = True) -> "House":
        """Start it, with this added to its environment."""
        self.environment = environment or {}
        (self.paths.run / "address").unlink(missing_ok=True)
        command = [sys.executable, "-m", "runners.supervisor", "--data", str(self.paths.root), "--port", "0"]
        command += ["--config", str(self.config)]
        for model in (self.model, *self.more_models):
            command += ["--model", model]
        command += ["--simulate-gpu", self.gpu] if self.gpu else []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | self.environment, stdout=log, stderr=log
            )
        if ready:
            self.wait_ready()
        return self

    def well(self) -> "House":
        """Wait until it is as a new one would be: it runs, nobody's request is open, and each lane has its worker.

        For a service that tests share, whatever the one before did to it.
        """
        if self.process is None or self.process.poll() is not None:
            self.start(self.environment)
        marks = ",".join("?" * len(SETTLED))
        unsettled = f"SELECT 1 FROM requests WHERE state NOT IN ({marks})"
        until(lambda: not self.rows(unsettled, *SETTLED), "the requests of the test before to settle")
        until(lambda: self.serves("gpu") and self.serves("cpu"), "both lanes to serve")
        for lane in ("gpu", "cpu"):
            self.runner(lane)
        return self

    def wait_ready(self) -> None:
        address = self.paths.run / "address"

        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            if not address.exists() or not address.read_text():
                return False
            self.client.base_url = httpx.URL(address.read_text())
            try:
                return self.client.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        until(ready, f"/readyz 200 ({self.log})")

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """SIGKILL for the whole house: supervisor first, its children die with it."""
        assert self.process is not None
        pids = [pid for pid in self.children() if pid]
        self.process.kill()
        self.process.wait(PATIENCE_S)
        until(lambda: not alive(pids), f"the children {pids} to die with the supervisor")

    def children(self) -> list[int]:
        assert self.process is not None
        tasks = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in tasks.read_text().split()]

    def child(self, marker: str) -> int | None:
        """Pid of the child whose command line holds `marker`: `web.app`, `runners.monitor`."""
        for pid in self.children():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in command.split(b"\0"):
                return pid
        return None

    def runner(self, lane: str) -> int:
        """Pid of the lane's runner, once it has its model."""
        return int(until(lambda: self._runner(lane), f"a loaded {lane} runner"))

    def _runner(self, lane: str) -> int | None:
        rows = self.rows("SELECT pid FROM runners WHERE lane=? AND state IN ('idle','busy')", lane)
        return rows[0][0] if rows and Path(f"/proc/{rows[0][0]}").exists() else None

    # ---- looking ----

    def rows(self, sql: str, *parameters: object) -> list[Any]:
        with read_engine(self.paths).connect() as connection:
            return list(connection.exec_driver_sql(sql, parameters).fetchall())

    def serves(self, lane: str = "gpu") -> bool:
        """Whether the lane takes work: it is in, and the breaker of its device, if it has one, is closed."""
        return bool(
            self.rows(
                "SELECT 1 FROM lanes l LEFT JOIN devices d ON d.id=l.device "
                "WHERE l.lane=? AND l.serving=1 AND coalesce(d.breaker, 'closed')='closed'",
                lane,
            )
        )

    def submit(self, text: str, *, key: str | None = None, **fields: Any) -> str:
        """Submit and answer the id; a web process that is just being replaced is asked again."""
        body = {"workload": "generate", "model": self.model, "max_tokens": 48, "seed": 7} | fields
        body |= {"messages": [{"role": "user", "content": text}]} if "prompt" not in body else {}
        headers = {"Idempotency-Key": key} if key else {}
        answer = self.patiently(lambda: self.client.post("/api/requests", json=body, headers=headers))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def patiently(self, call: Callable[[], httpx.Response]) -> httpx.Response:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def view(self, request_id: str) -> dict[str, Any]:
        answer = self.patiently(lambda: self.client.get(f"/api/requests/{request_id}"))
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def settled(self, request_id: str, seconds: float = PATIENCE_S) -> dict[str, Any]:
        until(lambda: self.state(request_id) in SETTLED, f"{request_id} to settle", seconds)
        return self.view(request_id)

    def state(self, request_id: str) -> str:
        return str(self.rows("SELECT state FROM requests WHERE id=?", request_id)[0][0])

    def units(self, request_id: str) -> int:
        found = self.rows("SELECT json_extract(doc, '$.units') FROM requests WHERE id=?", request_id)
        return int(found[0][0] or 0)

    def types(self, request_id: str) -> list[str]:
        return [row[0] for row in self.rows("SELECT type FROM events WHERE stream=? ORDER BY version", request_id)]

    def events(self, request_id: str) -> list[dict[str, Any]]:
        return list(self.patiently(lambda: self.client.get(f"/api/requests/{request_id}/events")).json()["items"])

    def replay(self, request_id: str) -> dict[str, Any]:
        return dict(self.patiently(lambda: self.client.get(f"/api/requests/{request_id}/replay")).json())

    def verify(self) -> Verdict:
        return verify(self.paths)

    def send(self, pid: int, number: signal.Signals) -> None:
        os.kill(pid, number)


@contextmanager
def house(root: Path, **options: Any) -> Iterator[House]:
    """A running service."""
    with kept(House(root, **options)) as made:
        yield made.start()


@contextmanager
def kept(made: House) -> Iterator[House]:
    """Whatever the test does with it, nothing of it is left alive."""
    try:
        yield made
    finally:
        made.client.close()
        if made.process is not None and made.process.poll() is None:
            made.process.kill()
            made.process.wait()


STEADY = ("breaker_faults", "slow_factor")
"""Policies that would judge a service by what a test does to it, or by how busy the machine is: off where a test does
not set them itself."""


def steady(config: str) -> str:
    """The configuration with these policies off, each where it is not named."""
    off = "".join(f"{name} = 0\n" for name in STEADY if name not in config)
    before, policy, after = config.partition("[policy]\n")
    if policy:
        return f"{before}{policy}{off}{after}"
    top, table, rest = config.partition("[[")
    return f"{top}\n[policy]\n{off}\n{table}{rest}"
