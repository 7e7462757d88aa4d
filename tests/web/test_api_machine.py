"""What is, and how well it is."""

from typing import Any

from core import events as ev
from store.settings import Settings


def test_lanes_tell_who_runs_and_waits(make_box: Any) -> None:
    box = make_box(gpu_queue_limit=7)
    for _ in range(3):
        box.submit()
    box.hand().take()
    lanes = {lane["lane"]: lane for lane in box.client.get("/api/lanes").json()["items"]}
    assert (lanes["gpu"]["running"], lanes["gpu"]["waiting"], lanes["gpu"]["limit"]) == (1, 2, 7)
    assert (lanes["cpu"]["running"], lanes["cpu"]["waiting"], lanes["cpu"]["limit"]) == (0, 0, 32)
    assert lanes["gpu"]["oldest_age_s"] >= 0
    assert lanes["cpu"]["oldest_age_s"] is None
    box.lane_out("gpu", "device-lost")
    lanes = {lane["lane"]: lane for lane in box.client.get("/api/lanes").json()["items"]}
    assert (lanes["gpu"]["serving"], lanes["gpu"]["out_reason"]) == (False, "the device was lost")
    assert lanes["gpu"]["reason_code"] == "device-lost"


def test_devices_say_when_they_are_simulated_and_how_old_a_reading_is(make_box: Any) -> None:
    box = make_box()
    devices = {d["id"]: d for d in box.client.get("/api/devices").json()["items"]}
    assert devices["sim-0"]["simulated"] is True
    assert "simulated" in devices["sim-0"]["label"].lower()
    assert (devices["sim-0"]["reading"], devices["sim-0"]["reading_age_s"]) == (None, None)
    assert devices["host"]["kind"] == "host"

    def read(tx: Any) -> None:
        row = ("sim-0", tx.now_us - 5_000_000, '{"used_bytes": null}')
        tx.execute("INSERT INTO readings (device, at_us, doc) VALUES (?,?,?)", row)

    box.writer.run(read)
    device = box.client.get("/api/devices").json()["items"][0]
    assert device["reading"] == {"used_bytes": None}
    assert device["reading_age_s"] >= 5


def test_runners_name_the_request_they_hold(make_box: Any) -> None:
    box = make_box()

    def register(tx: Any) -> None:
        tx.execute(
            "INSERT INTO runners (id, lane, model, device, engine, pid, ticks, boot_id, state, rss_bytes, beat_us, "
            "started_us) VALUES ('gpu-hand','gpu','null','sim-0','null',4711,1,'b','busy',1024,?,?)",
            (tx.now_us - 2_000_000, tx.now_us),
        )

    box.writer.run(register)
    view = box.submit()
    box.hand().take()
    (runner,) = box.client.get("/api/runners").json()["items"]
    assert {"id", "pid", "lane", "device", "engine", "model", "state", "request_id", "rss_bytes", "heartbeat_age_s",
            "load_progress"} <= set(runner)  # fmt: skip
    assert (runner["id"], runner["pid"], runner["state"], runner["rss_bytes"]) == ("gpu-hand", 4711, "busy", 1024)
    assert runner["request_id"] == view["id"]
    assert runner["heartbeat_age_s"] >= 2
    (model,) = box.client.get("/api/models").json()["items"]
    assert {"id", "workload", "engine", "contract", "footprint", "readiness", "resident"} <= set(model)
    assert (model["id"], model["readiness"], model["resident"], model["served"]) == ("null", "warm", ["gpu"], True)


def test_the_policy_in_force_is_told(make_box: Any) -> None:
    told = make_box(cpu_queue_limit=3).client.get("/api/policy").json()
    assert told["cpu_queue_limit"] == 3
    assert told["gpu_queue_limit"] == Settings().policy.gpu_queue_limit


def test_ready_when_what_should_serve_serves_or_says_why_not(make_box: Any) -> None:
    box = make_box()
    assert box.client.get("/livez").status_code == 200
    assert box.client.get("/readyz").json() == {"ready": True, "reasons": []}
    box.lane_out("gpu", "device-lost")
    assert box.client.get("/readyz").status_code == 200
    box.lane_out("gpu", "starting")
    starting = box.client.get("/readyz")
    assert (starting.status_code, starting.json()["reasons"]) == (503, ["the GPU lane of null is starting"])
    box.lane_out("gpu", "device-lost")
    box.lane_out("cpu", "load-failed")
    out = box.client.get("/readyz")
    assert (out.status_code, out.json()["reasons"]) == (503, ["no lane serves null"])


def test_health_is_warn_while_reduced_and_fail_when_nothing_serves(make_box: Any) -> None:
    box = make_box()
    well = box.client.get("/health")
    assert (well.status_code, well.json()["status"]) == (200, "pass")
    assert [(c["lane"], c["device"], c["simulated"]) for c in well.json()["computes_on"]] == [
        ("gpu", "sim-0", True),
        ("cpu", "cpu", False),
    ]

    def lose(tx: Any) -> None:
        tx.append("device-sim-0", ev.DeviceLost("device-lost", 2), actor="test")

    box.writer.run(lose)
    box.lane_out("gpu", "device-lost")
    reduced = box.client.get("/health")
    assert (reduced.status_code, reduced.json()["status"]) == (200, "warn")
    assert [c["lane"] for c in reduced.json()["computes_on"]] == ["cpu"]
    told = {c["name"]: c for c in reduced.json()["checks"]}
    assert told["device sim-0"]["detail"] == "Simulated GPU is out: the device was lost"
    assert "GPU lane: the device was lost" in told["model null"]["detail"]
    box.lane_out("cpu", "load-failed")
    failed = box.client.get("/health")
    assert (failed.status_code, failed.json()["status"]) == (503, "fail")


def test_our_htmx_and_nothing_else_comes_from_us(make_box: Any) -> None:
    answer = make_box().client.get("/static/vendor/htmx.min.js")
    assert answer.status_code == 200
    assert b"htmx" in answer.content
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
