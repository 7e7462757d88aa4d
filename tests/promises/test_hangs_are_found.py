"""A worker that stops making progress is found by its missing pulses, wherever it stopped."""

import os
import signal
from pathlib import Path

from house import House, house, until


def test_a_stopped_runner_loses_its_request_to_the_cpu_lane(null_house: House) -> None:
    prompt = "[[tps=60]] hang"
    expected = null_house.settled(null_house.submit(prompt, max_tokens=48))["output"]["text"]
    request_id = null_house.submit(prompt, max_tokens=48)
    until(lambda: null_house.units(request_id) >= 6, "six units")
    null_house.send(null_house.runner("gpu"), signal.SIGSTOP)
    view = null_house.settled(request_id)
    assert (view["state"], view["lane"], view["output"]["text"]) == ("completed", "cpu", expected)
    fault = next(e for e in null_house.events(request_id) if e["type"] == "FaultSeen")
    assert fault["data"]["kind"] == "hung"


def test_a_hung_engine_is_found_though_its_process_lives(null_house: House) -> None:
    request_id = null_house.submit("[[hang@8]]", max_tokens=16)
    view = null_house.settled(request_id)
    kinds = [e["data"]["kind"] for e in null_house.events(request_id) if e["type"] == "FaultSeen"]
    assert kinds[0] == "hung"
    assert view["state"] == "resumable-error"  # it hangs on the CPU lane too: poison


def test_a_zombie_that_outlived_its_lease_is_refused_and_recorded(tmp_path: Path) -> None:
    config = "[policy]\nhang_grace_s = 3600\nlease_s = 1.5\nrestart_backoff_s = 0.02\nrestart_backoff_max_s = 0.1\n"
    with house(tmp_path / "data", config=config) as home:
        prompt = "[[tps=60]] zombie"
        expected = home.settled(home.submit(prompt, max_tokens=48))["output"]["text"]
        request_id = home.submit(prompt, max_tokens=48)
        until(lambda: home.units(request_id) >= 6, "six units")
        zombie = home.runner("gpu")
        home.send(zombie, signal.SIGSTOP)
        view = home.settled(request_id)
        assert (view["state"], view["lane"], view["output"]["text"]) == ("completed", "cpu", expected)
        home.send(zombie, signal.SIGCONT)
        until(lambda: "LateWriteRejected" in home.types(request_id), "the late write to be recorded")
        assert home.view(request_id)["output"]["text"] == expected
        kinds = [e["data"]["kind"] for e in home.events(request_id) if e["type"] == "FaultSeen"]
        assert kinds == ["lease-expired"]
        assert home.verify().ok


def test_a_process_stopped_while_it_holds_the_writer_gate_is_ended(tmp_path: Path) -> None:
    config = "[policy]\nhang_grace_s = 3600\n"
    config += "load_grace_s = 3600\nrestart_backoff_s = 0.02\nrestart_backoff_max_s = 0.1\nchunk_cap = 1\n"
    with house(tmp_path / "data", config=config) as home:
        # A commit for each token, and many of them: the gate is held a good part of the time.
        request_id = home.submit("[[tps=200]] gate", max_tokens=3000)
        until(lambda: home.units(request_id) >= 6, "six units")
        record = home.paths.gate
        gpu = home.runner("gpu")

        def stopped_in_the_gate() -> bool:
            os.kill(gpu, signal.SIGSTOP)
            until(lambda: Path(f"/proc/{gpu}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the stop")
            if int.from_bytes(record.read_bytes()[:8], "little") == gpu:
                return True
            os.kill(gpu, signal.SIGCONT)
            return False

        until(stopped_in_the_gate, "a stop inside the gate")
        view = home.settled(request_id)
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        assert home.settled(home.submit("others go on", max_tokens=4))["state"] == "completed"
        assert home.verify().ok


def test_a_stopped_web_process_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    config = "[policy]\nanswer_grace_s = 6\nrestart_backoff_s = 0.02\n"
    with house(tmp_path / "data", config=config) as home:
        request_id = home.submit("[[tps=60]] web", max_tokens=48)
        stopped = home.child("web.app")
        assert stopped is not None
        home.send(stopped, signal.SIGSTOP)
        until(lambda: home.child("web.app") not in {None, stopped}, "another web process")
        home.wait_ready()
        assert home.settled(request_id)["state"] == "completed"
