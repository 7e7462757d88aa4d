"""A real service around a real store: uvicorn in a thread, and runners worked by hand through the store's claims."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from core import events as ev
from core.policy import Policy
from store import claims, commands, failover
from store.contents import chunk_body, digest
from store.database import Paths, migrate
from store.laneviews import LaneRow, put_lane, set_serving
from store.models.catalog import NULL_ENTRY
from store.settings import Settings, write_in_force
from store.writer import Writer
from web.app import Server, create_app

CONTEXT = 2048
PATIENCE_S = 30.0


class Hand:
    """A runner worked by hand: claims, checkpoints and completes, each as the test says."""

    def __init__(self, writer: Writer, lane: str, policy: Policy) -> None:
        self.writer = writer
        self.policy = policy
        device = "sim-0" if lane == "gpu" else "cpu"
        self.owner = claims.Owner(f"{lane}-hand", lane, "null", device, "null")  # type: ignore[arg-type]
        self.claim: claims.Claim | None = None
        self.units = 0
        self.shown = 0

    def take(self) -> str:
        claim = self.writer.run(lambda tx: claims.claim(tx, self.owner, 60_000_000, self.policy))
        assert claim is not None, "nothing waits in this lane"
        self.claim, self.units, self.shown = claim, claim.state.units, claim.state.visible_upto
        return claim.state.id

    def say(self, text: str, *, took_us: int = 1000, tokens: tuple[int, ...] | None = None) -> None:
        """Make some text durable; its bytes are its tokens, if it is not said otherwise."""
        claim, first, tokens = self.claim, self.units, tuple(text.encode()) if tokens is None else tokens
        assert claim is not None
        body = chunk_body(tokens, text)
        self.units, self.shown = self.units + len(tokens), self.shown + len(text)
        event = ev.Checkpointed(self.units, self.shown, digest(claim.spec.secret, body), took_us)
        epoch = claim.state.output_epoch
        self.writer.run(
            lambda tx: claims.checkpoint(
                tx, claim.fence, event, epoch=epoch, first=first, body=body, lease_us=60_000_000
            )
        )

    def finish(self, text: str = "") -> None:
        claim, first, tokens = self.claim, self.units, tuple(text.encode())
        assert claim is not None
        body = chunk_body(tokens, text)
        event = ev.Completed(
            self.units + len(tokens), self.shown + len(text), "stop", digest(claim.spec.secret, body), 1000
        )
        epoch = claim.state.output_epoch
        self.writer.run(lambda tx: claims.complete(tx, claim.fence, event, epoch=epoch, first=first, body=body))

    def stop_as_asked(self) -> None:
        claim = self.claim
        assert claim is not None
        self.writer.run(lambda tx: claims.cancelled(tx, claim.fence))

    def die(self, kind: str = "killed") -> None:
        fault = ev.FaultSeen("worker", kind, self.owner.lane, self.owner.runner, self.owner.device)
        self.writer.run(lambda tx: failover.runner_lost(tx, self.owner.runner, self.policy, fault, actor="supervisor"))


class Box:
    """One service under test."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self.paths = Paths(root / "data").make()
        self.settings = settings
        migrate(self.paths)
        write_in_force(self.paths, settings)
        self.writer = Writer(self.paths)
        self.writer.run(self._set_up)
        self.app = create_app(self.paths, settings)
        self.server = Server(self.app)
        self.socket = socket.socket(fileno=socket.create_server(("127.0.0.1", 0)).detach())
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def _set_up(self, tx: Any) -> None:
        tx.append("device-sim-0", ev.DeviceFound("Simulated GPU", simulated=True, total_bytes=1 << 30), actor="test")
        for lane, device in (("gpu", "sim-0"), ("cpu", "cpu")):
            put_lane(tx, LaneRow(lane, "null", True, None, CONTEXT, device, "null", NULL_ENTRY.contract))  # type: ignore[arg-type]

    def close(self) -> None:
        self.client.close()
        self.server.handle_exit(signal.SIGTERM, None)
        self.thread.join(PATIENCE_S)
        self.writer.close()
        self.socket.close()
        assert not self.thread.is_alive()

    def hand(self, lane: str = "gpu") -> Hand:
        return Hand(self.writer, lane, self.settings.policy)

    def submit(self, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        body = {"model": "null", "prompt": "hello", "max_tokens": 64} | fields
        answer = self.client.post("/api/requests", json=body, headers=headers)
        assert answer.status_code == 202, answer.text
        view: dict[str, Any] = answer.json()
        return view

    def show(self, request_id: str) -> dict[str, Any]:
        view: dict[str, Any] = self.client.get(f"/api/requests/{request_id}").raise_for_status().json()
        return view

    def lane_out(self, lane: str, reason: str | None) -> None:
        self.writer.run(lambda tx: set_serving(tx, lane, "null", reason, actor="test"))  # type: ignore[arg-type]

    def failed(self, text: str = "abc") -> str:
        """A request that rests as a resumable error after some text."""
        view = self.submit(failover="boundary")
        hand = self.hand()
        hand.take()
        if text:
            hand.say(text)
        hand.die()
        if text:
            assert self.show(view["id"])["state"] == "resumable-error"
        return str(view["id"])

    def completed(self, *texts: str) -> str:
        view = self.submit()
        hand = self.hand()
        assert hand.take() == view["id"]
        for text in texts[:-1]:
            hand.say(text)
        hand.finish(texts[-1])
        return str(view["id"])

    def moved(self, prompt: str = "hello") -> str:
        """A request that went on at the CPU after its GPU runner was killed; nine events."""
        view = self.submit(max_tokens=40, prompt=prompt)
        gpu, cpu = self.hand("gpu"), self.hand("cpu")
        gpu.take()
        gpu.say("one ")
        gpu.say("two ")
        gpu.die()
        assert cpu.take() == view["id"]
        cpu.say("three ")
        cpu.finish("four")
        return str(view["id"])

    def erase(self, request_id: str) -> None:
        self.writer.run(lambda tx: commands.erase(tx, request_id, actor="test"))


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    return eventually


@pytest.fixture
def make_box(tmp_path: Path) -> Iterator[Callable[..., Box]]:
    boxes: list[Box] = []

    def make(**policy: Any) -> Box:
        box = Box(tmp_path / str(len(boxes)), Settings(models=("null",), policy=Policy(**policy)))
        boxes.append(box)
        return box

    yield make
    for box in boxes:
        box.close()


@pytest.fixture(scope="module")
def shared_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One service for a whole module of tests."""
    made = Box(tmp_path_factory.mktemp("web"), Settings(models=("null",), policy=Policy(max_body_bytes=50_000)))
    yield made
    made.close()


@pytest.fixture
def box(shared_box: Box) -> Iterator[Box]:
    """The module's service; afterwards its lanes serve and nothing waits in them."""
    yield shared_box
    for lane in ("gpu", "cpu"):
        shared_box.lane_out(lane, None)
    shared_box.writer.run(_end_all)


def _end_all(tx: Any) -> None:
    active = ("admitted", "running-gpu", "checkpointed", "rerouted-cpu")
    marks = ",".join("?" * len(active))
    for (request_id,) in tx.execute(f"SELECT id FROM requests WHERE state IN ({marks})", active).fetchall():
        claims.release(tx, request_id)
        if tx.state(request_id).cancel_asked:
            tx.append(request_id, ev.Cancelled(), actor="test")
        else:
            commands.cancel(tx, request_id, actor="test")


@pytest.fixture
def accounted(make_box: Any) -> Any:
    """A card of 1 GiB, 256 MiB of them headroom, and a model of 1 MiB a token: five requests, two of them too large."""
    box = make_box()
    row = LaneRow("gpu", "null", True, None, 2048, "sim-0", "null", NULL_ENTRY.contract, token_bytes=1 << 20)
    box.writer.run(lambda tx: put_lane(tx, row))
    for tokens in (100, 900, 100, 100, 900):
        view = box.submit(prompt="hello", max_tokens=tokens - 5, allow_shrink=False)
        box.client.post(f"/api/requests/{view['id']}/cancel", json={})
    return box
