"""Real parts to measure: a store with lanes, a server process on a socket, a client process, a whole service."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from core import events as ev
from core.policy import Policy
from store import laneviews
from store.database import Paths, migrate, read_engine
from store.journal import Tx
from store.laneviews import LaneRow
from store.models.catalog import NULL_ENTRY
from store.settings import Settings, write_in_force
from store.writer import Writer

ROOT = Path(__file__).parent.parent
PATIENCE_S = 300.0


@contextmanager
def directory() -> Iterator[Paths]:
    """A data directory that is gone afterwards, on the disk that holds the repository, not in memory."""
    with tempfile.TemporaryDirectory(prefix="failsoft-bench-", dir=os.environ.get("FAILSOFT_BENCH_DIR")) as folder:
        yield Paths(Path(folder)).make()


def until(look: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """The first true answer of `look`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.005)
    raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}")


def open_lanes(tx: Tx) -> None:
    """Both lanes of the null model, serving, with nobody to work on them."""
    tx.append("device-sim-0", ev.DeviceFound("Simulated", True, 1 << 30), actor="bench")
    for lane, device in (("gpu", "sim-0"), ("cpu", "cpu")):
        row = LaneRow(lane, "null", True, None, 4096, device, "null/1", NULL_ENTRY.contract)  # type: ignore[arg-type]
        laneviews.put_lane(tx, row)


def prepared_store(paths: Paths, settings: Settings) -> Writer:
    """A migrated store with both lanes open."""
    migrate(paths)
    write_in_force(paths, settings)
    writer = Writer(paths)
    writer.run(open_lanes)
    return writer


def cpu_s(pid: int) -> float:
    """Processor seconds a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(module: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """A server process of `module` on a socket that is handed down: its port and its pid."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    command = [sys.executable, "-m", module, "--fd", str(listener.fileno()), "--parent", str(os.getpid()), *arguments]
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=[listener.fileno()])
    try:
        yield listener.getsockname()[1], process.pid
    finally:
        process.terminate()
        process.wait(30)
        listener.close()


class Client:
    """The client process. See `bench.client` for what it does."""

    def __init__(self, connections: int = 16) -> None:
        command = [sys.executable, "-m", "bench.client", "--connections", str(connections)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self, port: int, path: str, body: dict[str, Any], count: int) -> dict[str, Any]:
        """Let it send `count` calls, and answer what it measured. Every answer must be a 202."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"port": port, "path": path, "body": json.dumps(body), "count": count}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        if answer["statuses"] != {"202": count}:
            raise AssertionError(f"{path} answered {answer['statuses']}")
        return answer

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


class Service:
    """A whole service, as `failsoft serve` starts it."""

    def __init__(
        self, paths: Paths, *, model: str = "null", config: str = "", gpu: str | None = "1GiB", **environment: str
    ) -> None:
        self.paths = paths
        file = paths.root / "failsoft.toml"
        file.write_text(config)
        command = [sys.executable, "-m", "runners.supervisor", "--data", str(paths.root), "--port", "0"]
        command += ["--config", str(file), "--model", model]
        command += ["--simulate-gpu", gpu] if gpu else []
        self.log = paths.root / "service.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=log, stderr=log)
        self.client = httpx.Client(timeout=60.0)
        self.connection = None
        until(self._ready, f"readiness ({self.log})")
        self.connection = read_engine(paths).connect()

    def _ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(self.log.read_text()[-3000:])
        address = self.paths.run / "address"
        if not address.exists() or not address.read_text():
            return False
        self.client.base_url = httpx.URL(address.read_text())
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def port(self) -> int:
        """Where it listens."""
        port = self.client.base_url.port
        assert port is not None
        return port

    def rows(self, sql: str, *parameters: object) -> list[Any]:
        """What the store says."""
        assert self.connection is not None
        found = list(self.connection.exec_driver_sql(sql, parameters).fetchall())
        self.connection.rollback()
        return found

    def submit(self, **body: Any) -> str:
        """Submit, and answer the id."""
        answer = self.client.post("/api/requests", json=body)
        if answer.status_code != 202:
            raise AssertionError(answer.text)
        return str(answer.json()["id"])

    def runner(self, lane: str) -> int:
        """Pid of the lane's runner, once it serves."""

        def look() -> int | None:
            rows = self.rows("SELECT pid FROM runners WHERE lane=? AND state IN ('idle','busy')", lane)
            return rows[0][0] if rows and Path(f"/proc/{rows[0][0]}").exists() else None

        return int(until(look, f"a loaded {lane} runner"))

    def close(self) -> None:
        """End it, in an orderly way if it can."""
        self.client.close()
        if self.connection is not None:
            self.connection.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def service(**options: Any) -> Iterator[Service]:
    """A running service in a directory of its own."""
    with directory() as paths:
        made = Service(paths, **options)
        try:
            yield made
        finally:
            made.close()


def settings(**policy: Any) -> Settings:
    """Settings of a service for the null model, with changes to the policy."""
    return Settings(models=("null",), policy=Policy(**policy))
