"""Services one of whose lanes is a server of others: how they are set up, watched, and asked what was seen.

What the made-up server and the built-in model say is arithmetic: `fake_upstream.answer` and `built_in`.
"""

import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fake_upstream import answer
from house import SETTLED, House, until
from null_answer import answer_to

from core import events as ev
from core.words import PairClass
from store import laneviews, proofs
from store.writer import Writer

SUPPORT = Path(__file__).parent
FAKE = f"{sys.executable} {SUPPORT / 'fake_upstream.py'} --port ${{PORT}}"
BOX = "upstream:fake"
UNITS = 40
ENDS = ("Completed", "Failed", "Cancelled", "Expired")


def config(*, policy: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None, **fields: Any) -> str:
    """A `failsoft.toml` with one upstream: quick to give up, and named `fake` unless `fields` say otherwise."""
    limits = {
        "restart_backoff_s": 0.02,
        "restart_backoff_max_s": 0.2,
        "return_to_gpu": False,
        "lane_out_after": 2,
    } | dict(policy or {})
    plain = {"name": "fake", "model": "null", "lane": "gpu", "first_byte_s": 1.5, "silence_s": 1.0, "start_s": 60.0}
    lines = [f"{key} = {json.dumps(value)}" for key, value in (settings or {}).items()]
    lines += ["[policy]", *(f"{key} = {json.dumps(value)}" for key, value in limits.items())]
    lines += ["[[upstreams]]", *(f"{key} = {json.dumps(value)}" for key, value in (plain | fields).items())]
    return "\n".join([*lines, ""])


def built_in(question: str, units: int) -> str:
    """What the built-in model says to a conversation of one message."""
    return answer_to(f"user: {question}\nassistant:", units)


def spliced(question: str, cut: int, units: int) -> str:
    """The server's answer up to token `cut`, and the built-in model's from there on."""
    return answer(question, cut) + built_in(question, units)[cut:]


def prove(home: House, pair: PairClass = "faithful") -> None:
    """Record that the two lanes were measured to be so alike."""
    writer = Writer(home.paths)

    def unit(tx: Any) -> None:
        gpu, cpu = (laneviews.lane_row(tx, lane, home.model) for lane in ("gpu", "cpu"))
        assert gpu is not None
        assert cpu is not None
        source, target = laneviews.path_of(tx, gpu), laneviews.path_of(tx, cpu)
        found = ev.EquivalenceProved(source.name, target.name, source.contract, pair, 8, 8, 512, 512, 0.0)
        proofs.keep(tx, source, target, found, actor="test")

    writer.run(unit)
    writer.close()


def at_work_again(home: House, lane: str = "gpu") -> None:
    """Wait until a lane serves and its runner has what it needs."""
    until(lambda: home.serves(lane) and home.runner(lane), f"the {lane} lane")


def ask(home: House, *questions: str, **fields: Any) -> list[str]:
    return [home.submit(question, **({"max_tokens": UNITS} | fields)) for question in questions]


def by_server(home: House, question: str) -> None:
    """A new request is served by the server, and by nobody else."""
    view = home.settled(home.submit(question, max_tokens=UNITS))
    assert (view["state"], view["lane"], view["failovers"]) == ("completed", "gpu", [])
    assert view["output"]["text"] == answer(question, UNITS)


def faults(home: House, request_id: str) -> list[dict[str, Any]]:
    return [event["data"] for event in home.events(request_id) if event["type"] == "FaultSeen"]


def cut_at(home: House, request_id: str) -> int:
    """Units at which it was moved."""
    (moved,) = [event["data"] for event in home.events(request_id) if event["type"] == "Rerouted"]
    return int(moved["resume_from"])


class Watched:
    """Requests under watch from their first moment: as streams of events, and looked at again and again."""

    def __init__(self, home: House, *request_ids: str) -> None:
        self.home = home
        self.ids = request_ids
        self._frames: dict[str, list[dict[str, Any]]] = {one: [] for one in request_ids}
        self._readers = [threading.Thread(target=self._read, args=(one,)) for one in request_ids]
        self._looks: dict[str, list[str]] = {one: [] for one in request_ids}

    def __enter__(self) -> Self:
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            for reader in self._readers:
                reader.join()

    def settled(self) -> dict[str, dict[str, Any]]:
        """All of them at their ends, by id: each has exactly one, and nothing that was seen is changed or missing."""
        until(lambda: all(self._look(one) in SETTLED for one in self.ids), "all of them to settle")
        for reader in self._readers:
            reader.join()
        return {one: self._checked(one) for one in self.ids}

    def _read(self, request_id: str) -> None:
        headers = {"Accept": "text/event-stream"}
        with self.home.client.stream("GET", f"/api/requests/{request_id}/events", headers=headers) as lines:
            for line in lines.iter_lines():
                if line.startswith("data: "):
                    self._frames[request_id].append(json.loads(line.removeprefix("data: ")))

    def _look(self, request_id: str) -> str:
        view = self.home.view(request_id)
        self._looks[request_id].append(view["output"]["text"])
        return str(view["state"])

    def _checked(self, request_id: str) -> dict[str, Any]:
        view = self.home.view(request_id)
        text = view["output"]["text"]
        assert [len(look) for look in self._looks[request_id]] == sorted(len(look) for look in self._looks[request_id])
        assert all(text.startswith(look) for look in self._looks[request_id])
        deltas = [frame["delta"] for frame in self._frames[request_id] if "delta" in frame]
        assert "".join(delta["text"] for delta in deltas) == text
        assert [delta["from"] for delta in deltas] == [0, *(delta["to"] for delta in deltas)][: len(deltas)]
        ends = [type_ for type_ in self.home.types(request_id) if type_ in ENDS]
        assert ends == ["Completed" if view["state"] == "completed" else "Failed"]
        assert view["state"] == "completed" or view["error"]["detail"]
        assert all(decision["same"] for decision in self.home.replay(request_id)["decisions"])
        return view
