"""Scenarios that were reported for other systems, and what must happen here; docs/scenarios.md names them.

Texts of the built-in model are arithmetic (`null_answer`).
"""

import json
import signal
from pathlib import Path

import pytest
from house import House, alive, house, until
from null_answer import answer_to

MIB = 1 << 20
QUICK = "[policy]\nrestart_backoff_s = 0.02\nrestart_backoff_max_s = 0.1\nreturn_to_gpu = false\n"


@pytest.mark.prove
def test_an_abort_in_native_code_ends_one_process_and_nothing_else(tmp_path: Path) -> None:
    """Supervisor, web process and the other lane's runner are the same ones afterwards, and neighbours get their
    answers; the input that aborts is tried twice and no more."""
    with house(tmp_path / "data", config=QUICK) as home:
        assert home.process is not None
        pids = [home.process.pid, home.child("web.app"), home.child("runners.monitor")]
        gpu = home.runner("gpu")
        neighbours = [home.submit(f"[[tps=50]] n{n}", max_tokens=80) for n in range(3)]
        until(lambda: all(home.units(one) >= 2 for one in neighbours), "neighbours at work")
        deadly = home.settled(home.submit("[[crash=6@8]]", max_tokens=16))
        assert (deadly["state"], deadly["error"]["rule"]) == ("resumable-error", "poison-limit")
        faults = [e["data"] for e in home.events(deadly["id"]) if e["type"] == "FaultSeen"]
        assert [fault["evidence"]["signal"] for fault in faults] == ["SIGABRT"] * 2
        assert deadly["output"]["text"] == answer_to("user: [[crash=6@8]]\nassistant:", deadly["progress"]["done"])
        for n, one in enumerate(neighbours):
            view = home.settled(one)
            assert view["output"]["text"] == answer_to(f"user: [[tps=50]] n{n}\nassistant:", 80)
        assert [home.process.pid, home.child("web.app"), home.child("runners.monitor")] == pids
        assert alive([gpu]) == []
        assert home.verify().ok


@pytest.mark.prove
def test_a_conversation_read_cold_is_judged_by_its_whole_length(tmp_path: Path) -> None:
    """Sixteen turns that each fit ran well; the same text at once does not fit, and what ran before lowers nothing."""
    policy = QUICK + "headroom_bytes = 0\npressure_high = 1.0\n"
    config = f"null_load_bytes = {16 * MIB}\nnull_token_bytes = {MIB}\n" + policy
    with house(tmp_path / "data", gpu="216MiB", config=config) as home:
        home.runner("gpu")
        turn = "t" * 20
        for n in range(1, 9):
            view = home.settled(home.submit("", prompt=turn * n, max_tokens=16))
            assert (view["state"], view["lane"]) == ("completed", "gpu")
        prompt = turn * 16
        whole = home.settled(home.submit("", prompt=prompt, max_tokens=16))
        decision = home.events(whole["id"])[0]["data"]["decision"]
        assert (whole["state"], whole["lane"], decision["rule"]) == ("completed", "cpu", "never-fits")
        assert (decision["facts"]["need"]["token"], decision["facts"]["prompt_tokens"]) == (MIB, 320)
        assert whole["output"]["text"] == answer_to(prompt, 16)
        assert home.rows("SELECT count(*) FROM events WHERE type='FaultSeen'") == [(0,)]


@pytest.mark.prove
def test_a_deadline_ends_what_hangs(tmp_path: Path) -> None:
    """Whether a worker has it or none does; nobody restarts anything by hand, and others are served meanwhile."""
    with house(tmp_path / "data", config=QUICK + "hang_grace_s = 3600\nlease_s = 3600\n") as home:
        home.runner("gpu")
        hung = home.submit("[[hang@8]]", max_tokens=64, deadline_s=3)
        other = home.settled(home.submit("[[tps=0]] other", max_tokens=8))
        assert other["state"] == "completed"
        view = home.settled(hung)
        assert (view["state"], home.types(hung)[-1]) == ("cancelled", "Expired")
        expired = home.events(hung)[-1]
        assert expired["data"]["reason"] == "deadline"
        assert home.rows("SELECT count(*) FROM leases") == [(0,)]
        assert home.settled(home.submit("[[tps=0]] then", max_tokens=8))["state"] == "completed"
        assert home.verify().ok


@pytest.mark.prove
def test_eight_thousand_units_go_in_and_come_out(tmp_path: Path) -> None:
    """Through store, stream and takeover: not one is cut off, whoever reads, and wherever they began to read."""
    with house(tmp_path / "data", config="context = 8192\n" + QUICK) as home:
        home.runner("gpu")
        prompt = "[[tps=4000]] long"
        request_id = home.submit("", prompt=prompt, max_tokens=8000)
        until(lambda: home.units(request_id) >= 2000, "a part of it")
        home.send(home.runner("gpu"), signal.SIGKILL)
        view = home.settled(request_id)
        assert (view["state"], view["lane"], view["progress"]["done"]) == ("completed", "cpu", 8000)
        assert view["usage"]["completion_tokens"] == 8000
        expected = answer_to(prompt, 8000)
        assert view["output"]["text"] == expected
        for after in (0, view["version"] // 2):
            text, begins = read(home, request_id, after)
            assert text == expected[begins:]
            assert (begins == 0) == (after == 0)
        too_long = home.client.post("/api/requests", json={"model": "null", "prompt": "x", "max_tokens": 17_000})
        assert too_long.status_code == 422, "a limit is told, and never a silent cut"
        assert home.verify().ok


def read(home: House, request_id: str, after: int) -> tuple[str, int]:
    """The text a reader gets who has seen everything up to a version, and the unit it begins at."""
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    deltas = []
    with home.client.stream("GET", f"/api/requests/{request_id}/events", headers=headers) as lines:
        for line in lines.iter_lines():
            if line.startswith("data: "):
                frame = json.loads(line.removeprefix("data: "))
                deltas += [frame["delta"]] if "delta" in frame else []
    assert [one["from"] for one in deltas[1:]] == [one["to"] for one in deltas[:-1]], "a gap, or a piece twice"
    return "".join(one["text"] for one in deltas), deltas[0]["from"]


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.prove)])
def test_an_interactive_request_is_next_and_batch_work_still_ends(tmp_path: Path, count: int) -> None:
    """On a machine without a GPU, where one at a time would be worked on: its place in the queue says it is next."""
    with house(tmp_path / "data", gpu=None, config=QUICK + "cpu_queue_limit = 1000\n") as home:
        home.runner("cpu")
        fill = [home.submit(f"[[tps=5]] {n}", max_tokens=4000, priority="batch") for n in range(16)]
        until(lambda: all(home.view(one)["running"] for one in fill), "all places to be taken")
        batch = [home.submit(f"[[tps=400]] {n}", max_tokens=20, priority="batch") for n in range(count)]
        urgent = home.submit("[[tps=400]] urgent", max_tokens=20, priority="interactive")
        assert home.view(urgent)["queue"]["position"] == 0, "it is next"
        for one in fill:
            home.client.post(f"/api/requests/{one}/cancel", json={}).raise_for_status()
        for one in [*batch, urgent]:
            assert home.settled(one)["state"] == "completed"
        started = {
            row[0]: row[1] for row in home.rows("SELECT stream, min(seq) FROM events WHERE type='Started' GROUP BY 1")
        }
        assert all(started[urgent] < started[one] for one in batch)
