"""Promise 1: whatever is killed, every accepted request reaches exactly one terminal state."""

import concurrent.futures
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
from house import ROOT, House, house, until


def test_kill_minus_nine_of_every_process_loses_nothing(tmp_path: Path, kills: int) -> None:
    """Acknowledged ids go to a file outside the store; afterwards each must have ended, once."""
    ledger = tmp_path / "acknowledged"
    draw = random.Random(9)
    config = "[policy]\nrestart_backoff_s = 0.02\nrestart_backoff_max_s = 0.1\n"
    with house(tmp_path / "data", config=config) as home, ledger.open("a") as file:
        for blow in range(kills // 10):
            for n in range(4):
                request_id = home.submit(f"[[tps=200]] blow {blow} {n}", max_tokens=24)
                file.write(request_id + "\n")
                file.flush()
                os.fsync(file.fileno())
            what = draw.choice(["web.app", "runners.monitor", "runners.runner", "runners.runner", "house"])
            time.sleep(draw.random() * 0.1)
            if what == "house":
                home.kill()
                home.start()
            elif pid := home.child(what):
                home.send(pid, signal.SIGKILL)
        for request_id in ledger.read_text().split():
            assert home.settled(request_id)["state"] == "completed"
            ends = [
                t for t in home.types(request_id) if t in {"Completed", "Cancelled", "Refused", "Failed", "Expired"}
            ]
            assert ends == ["Completed"]
        assert home.verify().ok


def test_fifty_identical_posts_at_once_make_one_request(null_house: House) -> None:
    body = {"workload": "generate", "model": "null", "messages": [{"role": "user", "content": "once"}], "max_tokens": 4}

    def post(_n: int) -> httpx.Response:
        return httpx.post(
            f"{null_house.client.base_url}/api/requests", json=body, headers={"Idempotency-Key": "one"}, timeout=60
        )

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(post, range(50)))
    assert {a.status_code for a in answers} == {202}
    assert len({a.json()["id"] for a in answers}) == 1
    assert len(null_house.rows("SELECT id FROM requests")) == 1


def test_sigterm_checkpoints_stops_in_time_with_an_open_tab_and_goes_on_later(tmp_path: Path) -> None:
    with house(tmp_path / "data") as home:
        prompt = "[[tps=30]] long"
        request_id = home.submit(prompt, max_tokens=120)
        until(lambda: home.units(request_id) >= 6, "six units")
        with home.client.stream("GET", "/api/stream") as tab:
            frames = tab.iter_lines()
            next(frames)
            began = time.monotonic()
            assert home.stop() == 0
            assert time.monotonic() - began < 10.0  # the promise itself is a number of seconds
        held = home.units(request_id)
        assert home.rows("SELECT count(*) FROM leases") == [(0,)]
        assert home.state(request_id) == "checkpointed"
        assert home.types(request_id)[-1] == "Requeued"
        home.start()
        view = home.settled(request_id)
        assert (view["state"], view["lane"], view["progress"]["done"]) == ("completed", "gpu", 120)
        assert view["failovers"] == []
        assert held < 120
        assert home.verify().ok


def test_a_second_instance_is_refused_with_the_first_ones_pid(null_house: House) -> None:
    command = [sys.executable, "-m", "runners.supervisor", "--data", str(null_house.paths.root), "--port", "0"]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2
    assert null_house.process is not None
    assert f"pid {null_house.process.pid}" in second.stderr


def test_cancel_settles_in_every_state(null_house: House) -> None:
    waiting = [null_house.submit(f"[[tps=20]] fill {n}", max_tokens=200) for n in range(20)]
    until(lambda: null_house.units(waiting[0]) >= 2, "work under way")
    running = next(i for i in waiting if null_house.view(i)["running"])
    queued = next((i for i in waiting if null_house.state(i) == "admitted"), None)
    for request_id in filter(None, [running, queued]):
        assert null_house.client.post(f"/api/requests/{request_id}/cancel", json={}).status_code == 202
        assert null_house.settled(request_id)["state"] == "cancelled"
        assert null_house.types(request_id)[-1] == "Cancelled"
    null_house.send(null_house.runner("gpu"), signal.SIGKILL)
    until(lambda: null_house.rows("SELECT 1 FROM requests WHERE lane='cpu' AND state='rerouted-cpu'"), "a move")
    for (request_id,) in null_house.rows("SELECT id FROM requests WHERE state NOT IN ('completed','cancelled')"):
        answer = null_house.client.post(f"/api/requests/{request_id}/cancel", json={})
        assert answer.status_code in {202, 409}
    for request_id in waiting:
        assert null_house.settled(request_id)["state"] in {"cancelled", "completed"}
        ends = [t for t in null_house.types(request_id) if t in {"Completed", "Cancelled"}]
        assert len(ends) == 1


def test_cancel_against_completion_ends_once(null_house: House) -> None:
    draw = random.Random(4)
    ids = []
    for n in range(200):
        request_id = null_house.submit(f"[[tps=2000]] race {n}", max_tokens=8)
        time.sleep(draw.random() * 0.012)
        answer = null_house.client.post(f"/api/requests/{request_id}/cancel", json={})
        assert answer.status_code in {202, 409}
        ids.append(request_id)
    outcomes = set()
    for request_id in ids:
        outcomes.add(null_house.settled(request_id)["state"])
        ends = [t for t in null_house.types(request_id) if t in {"Completed", "Cancelled"}]
        assert len(ends) == 1
    assert outcomes == {"completed", "cancelled"}


def test_when_memory_runs_out_a_runner_is_ended_before_supervisor_and_web(null_house: House) -> None:
    """By the kernel's own reckoning, which it is asked for."""

    def wish(pid: int | None) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    assert null_house.process is not None
    others = max(wish(null_house.process.pid), wish(null_house.child("web.app")))
    assert min(wish(null_house.runner("gpu")), wish(null_house.runner("cpu"))) > others
