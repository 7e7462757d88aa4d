"""Promises 3, 4 and 8: a failover is never silent, can be replayed, and where it would not be faithful it stops."""

import signal

from house import House, until


def killed_while_running(home: House, text: str = "[[tps=60]] told", **fields: object) -> str:
    request_id = home.submit(text, **({"max_tokens": 64} | fields))
    until(lambda: home.units(request_id) >= 6, "six units")
    home.send(home.runner("gpu"), signal.SIGKILL)
    return request_id


def test_view_events_and_replay_tell_why_it_moved(null_house: House) -> None:
    request_id = killed_while_running(null_house)
    until(lambda: null_house.state(request_id) in {"rerouted-cpu", "checkpointed", "completed"}, "the move")
    until(lambda: "Rerouted" in null_house.types(request_id), "the move")
    view = null_house.settled(request_id)
    assert (view["state"], view["lane"]) == ("completed", "cpu")
    assert view["degraded"]["rule"] == "continue-identical"
    assert "killed" in view["degraded"]["reason"]
    assert [move["to"] for move in view["failovers"]] == ["cpu"]
    assert "CPU lane" in view["failovers"][0]["because"]

    events = null_house.events(request_id)
    fault = next(event for event in events if event["type"] == "FaultSeen")
    moved = next(event for event in events if event["type"] == "Rerouted")
    assert fault["data"]["evidence"]["signal"] == "SIGKILL"
    assert moved["cause"] == fault["seq"]
    assert moved["data"]["decision"]["facts"]["units"] >= 6
    assert {entry["action"] for entry in moved["data"]["decision"]["rejected"]} == {"restart-cpu", "requeue"}

    replay = null_house.replay(request_id)
    assert len(replay["decisions"]) >= 2
    assert all(decision["same"] for decision in replay["decisions"])
    assert len(replay["chain"]) == len(events)


def test_device_lost_moves_all_and_back_brings_new_work_to_the_gpu(null_house: House) -> None:
    from runners.devices.simulated import SimulatedDevice

    device = SimulatedDevice(null_house.paths.sim / "sim-0.json")
    ids = [null_house.submit(f"[[tps=40]] number {n}", max_tokens=40) for n in range(20)]
    until(lambda: null_house.units(ids[0]) >= 2, "work under way")
    device.lose("fell off the bus")
    for request_id in ids:
        assert null_house.settled(request_id)["state"] == "completed"
    moved = [i for i in ids if "Rerouted" in null_house.types(i)]
    assert moved
    lost = null_house.rows("SELECT type FROM events WHERE stream='device-sim-0' ORDER BY version")
    kinds = [row[0] for row in lost if row[0] != "CanaryAnswered"]
    assert kinds == ["DeviceFound", "DeviceLost", "FaultCounted", "BreakerOpened"]
    on_cpu = null_house.settled(null_house.submit("while it is out", max_tokens=4))
    assert (on_cpu["lane"], on_cpu["degraded"]["rule"]) == ("cpu", "gpu-out")
    assert on_cpu["failovers"][0]["from"] is None
    device.restore()
    until(null_house.serves, "the GPU lane to come back")
    assert null_house.settled(null_house.submit("after it is back", max_tokens=4))["lane"] == "gpu"
    assert null_house.verify().ok


def test_refused_allocation_at_load_means_cpu_with_a_notice_and_no_restart(null_house: House) -> None:
    from runners.devices.simulated import SimulatedDevice

    SimulatedDevice(null_house.paths.sim / "sim-0.json").fail_allocations(1)
    null_house.send(null_house.runner("gpu"), signal.SIGKILL)
    until(lambda: null_house.rows("SELECT 1 FROM events WHERE type='LaneOut'"), "the lane to go out")
    view = null_house.settled(null_house.submit("now", max_tokens=4))
    assert view["state"] == "completed"
    until(null_house.serves, "the lane to come back")


def test_never_stops_honestly_and_resumes_with_the_same_text(null_house: House) -> None:
    prompt = "[[tps=60]] told"
    expected = null_house.settled(null_house.submit(prompt, max_tokens=64))["output"]["text"]
    request_id = killed_while_running(null_house, prompt, failover="never")
    stopped = null_house.settled(request_id)
    assert stopped["state"] == "resumable-error"
    assert "checkpoint" in stopped["error"]["detail"]
    assert "start" in stopped["error"]["detail"]
    assert expected.startswith(stopped["output"]["text"])
    assert len(stopped["output"]["text"]) >= 6

    first = null_house.client.post(f"/api/requests/{request_id}/resume", json={"from": "checkpoint"})
    second = null_house.client.post(f"/api/requests/{request_id}/resume", json={"from": "checkpoint"})
    assert (first.status_code, second.status_code) == (202, 202)
    view = null_house.settled(request_id)
    assert (view["state"], view["output"]["text"]) == ("completed", expected)
    assert null_house.types(request_id).count("Resumed") == 1

    never_failed = null_house.submit("fine", max_tokens=4)
    null_house.settled(never_failed)
    assert null_house.client.post(f"/api/requests/{never_failed}/resume", json={}).status_code == 409


def test_resume_from_start_is_a_new_epoch_and_the_old_one_stays_readable(null_house: House) -> None:
    request_id = killed_while_running(null_house, failover="never")
    before = null_house.settled(request_id)
    answer = null_house.client.post(f"/api/requests/{request_id}/resume", json={"from": "start"})
    assert answer.status_code == 202
    view = null_house.settled(request_id)
    assert (view["state"], view["output_epoch"]) == ("completed", 1)
    failed_at = next(e["version"] for e in null_house.events(request_id) if e["type"] == "Failed")
    old = null_house.client.get(f"/api/requests/{request_id}/replay", params={"at": failed_at}).json()
    assert old["view"]["output"]["text"] == before["output"]["text"]
    assert old["state"] == "resumable-error"


def test_input_that_kills_workers_is_given_up_after_two_deaths(null_house: House) -> None:
    request_id = null_house.submit("[[crash=11@0]]", max_tokens=8)
    neighbour = null_house.submit("[[tps=100]] neighbour", max_tokens=32)
    view = null_house.settled(request_id)
    assert view["state"] == "resumable-error"
    failed = next(e for e in null_house.events(request_id) if e["type"] == "Failed")
    assert failed["data"]["decision"]["rule"] == "poison-limit"
    assert null_house.types(request_id).count("FaultSeen") == 2
    assert null_house.settled(neighbour)["state"] == "completed"
