"""What callers and pages are told of waiting, reduced service and breakers."""

import html
import re
from typing import Any

import httpx
import msgspec
import pytest
from pages import read

from core import events as ev
from store import breakers, claims, laneviews, rates
from store.clock import boot_id
from store.laneviews import LaneRow, put_lane
from store.models.catalog import NULL_ENTRY


@pytest.fixture
def steady(make_box: Any) -> Any:
    """A service whose CPU lane is up and was seen to read 100 and to write 10 tokens a second."""
    box = make_box(breaker_faults=3, breaker_cooldown_s=600.0, cpu_queue_limit=2)

    def unit(tx: Any) -> None:
        rates.see(tx, "cpu", "null", rates.Rates(100.0, 10.0))
        tx.execute(
            "INSERT INTO runners (id, lane, model, device, engine, pid, ticks, boot_id, state, beat_us, started_us) "
            "VALUES ('cpu-hand','cpu','null','cpu','null',1,1,?,'idle',?,?)",
            (boot_id(), tx.now_us, tx.now_us),
        )

    box.writer.run(unit)
    return box


def trip(box: Any, device: str = "sim-0", times: int = 3) -> None:
    """Faults of workers that are counted against a device."""
    seen, policy = ev.FaultCounted("worker", "killed", "gpu-hand"), box.settings.policy
    for _ in range(times):
        box.writer.run(lambda tx: breakers.fault(tx, device, seen, policy, actor="supervisor"))


def close(box: Any) -> None:
    """Try the device, and let its canaries be answered rightly."""
    box.writer.run(lambda tx: breakers.half_open(tx, "sim-0", "cooldown-over", actor="supervisor"))

    def sing(tx: Any) -> str:
        row = laneviews.lane_row(tx, "gpu", "null")
        assert row is not None
        path = laneviews.path_of(tx, row)
        return breakers.answered(tx, "sim-0", path, (1, 2, 3), box.settings.policy, runner="gpu-hand", took_us=9)

    for _ in range(box.settings.policy.breaker_canaries):
        box.writer.run(sing)


def device(box: Any, id_: str = "sim-0") -> dict[str, Any]:
    found: dict[str, Any] = next(d for d in box.client.get("/api/devices").json()["items"] if d["id"] == id_)
    return found


# ---- callers ---------------------------------------------------------------------------------------------------


def test_waiting_comes_with_place_age_and_time(steady: Any) -> None:
    steady.lane_out("gpu", "load-failed")
    first, second = steady.submit(max_tokens=40), steady.submit(max_tokens=40)
    # "hello" is five tokens: 0.05 s, and 40 at ten a second are 4 s.
    assert second["degraded"]["eta"]["high_s"] == 8.1
    told = steady.show(second["id"])
    assert (told["queue"]["status"], told["queue"]["position"]) == ("waiting", 1)
    assert told["queue"]["eta"]["start_high_s"] == 4.05
    assert told["queue"]["eta"]["high_s"] == told["degraded"]["eta"]["high_s"] == 8.1
    assert told["degraded"]["takeover_s"] == 0.05
    listed = {view["id"]: view for view in steady.client.get("/api/requests").json()["items"]}
    assert listed[second["id"]]["queue"]["eta"] == told["queue"]["eta"]
    hand = steady.hand("cpu")
    assert hand.take() == first["id"]
    running = steady.show(first["id"])
    assert (running["queue"]["status"], running["queue"]["eta"]) == ("running", None)
    assert running["degraded"]["eta"]["high_s"] == 4.05


def test_the_poll_hint_is_when_it_may_be_taken_up(steady: Any) -> None:
    steady.lane_out("gpu", "load-failed")
    for _ in range(4):
        steady.submit(max_tokens=1)
        hand = steady.hand("cpu")
        hand.take()
        hand.say("x" * 50)
        hand.finish()
    first = steady.submit(max_tokens=200)["id"]
    steady.hand("cpu").take()
    behind = steady.submit(max_tokens=200)["id"]
    assert steady.client.get(f"/api/requests/{first}").headers["retry-after"] == "1"
    # The last four answers had fifty tokens: five seconds.
    assert steady.client.get(f"/api/requests/{behind}").headers["retry-after"] == "5"


def test_who_finds_the_queues_full_is_told_when_they_move_on(steady: Any) -> None:
    steady.lane_out("gpu", "load-failed")
    steady.submit(max_tokens=40)
    steady.hand("cpu").take()
    for _ in range(2):
        steady.submit(max_tokens=40)
    full = steady.client.post("/api/requests", json={"model": "null", "prompt": "hello"})
    assert (full.status_code, full.headers["retry-after"], full.json()["reason"]) == (429, "5", "queue-full")
    assert "x-should-retry" not in full.headers


def test_the_gpu_or_nothing_is_refused_with_the_rest_of_the_cooldown_and_not_degraded(make_box: Any) -> None:
    box = make_box(breaker_cooldown_s=50.0)
    trip(box)
    body = {"model": "null", "prompt": "x", "failover": "gpu-only"}
    answer = box.client.post("/api/requests", json=body)
    assert (answer.status_code, answer.json()["reason"]) == (503, "gpu-only")
    assert 1 <= int(answer.headers["retry-after"]) <= 50
    assert "x-degraded" not in answer.headers
    assert box.show(answer.json()["request_id"])["degraded"] is None


def test_stuck_is_not_waiting(steady: Any) -> None:
    steady.lane_out("cpu", "load-failed")
    id_ = steady.submit()["id"]
    steady.writer.run(
        lambda tx: breakers.device_lost(tx, "sim-0", steady.settings.policy, reason="gone", actor="monitor")
    )
    answer = steady.client.get(f"/api/requests/{id_}")
    queue = answer.json()["queue"]
    assert (queue["status"], queue["eta"]["low_s"]) == ("stuck", None)
    assert queue["why"].startswith("The GPU lane is out (the device was lost)")
    assert answer.headers["retry-after"] == "10"
    stands = read(steady, f"/requests/{id_}").text("stands")
    assert stands.startswith("stuck next in turn")
    assert "somebody has it tried" in stands


def test_a_view_that_only_counts_down_is_the_same_view(steady: Any) -> None:
    trip(steady)
    url = f"/api/requests/{steady.submit()['id']}"
    first = steady.client.get(url)
    assert steady.client.get(url, headers={"If-None-Match": first.headers["etag"]}).status_code == 304


def frames(box: Any, id_: str) -> list[dict[str, Any]]:
    answer = box.client.get(f"/api/requests/{id_}/events", headers={"Accept": "text/event-stream"})
    return [msgspec.json.decode(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def test_the_stream_says_when_service_becomes_less_and_when_it_is_whole_again(steady: Any) -> None:
    id_ = steady.submit(max_tokens=40)["id"]
    gpu, cpu = steady.hand(), steady.hand("cpu")
    gpu.take()
    gpu.say("one ")
    gpu.die()
    cpu.take()
    cpu.say("two ")
    back = ev.Returned("gpu-is-back", 8)
    steady.writer.run(lambda tx: (claims.release(tx, id_), tx.append(id_, back, actor="test")))
    gpu.take()
    gpu.finish("three")
    told = frames(steady, id_)
    assert [(f["type"], (f["degraded"] or {}).get("reason")) for f in told if "degraded" in f] == [
        ("Rerouted", "the worker was killed"),
        ("Returned", None),
    ]
    moved = next(f for f in told if f["type"] == "Rerouted")["degraded"]
    assert {"since", "reason", "reason_code", "rule", "lane", "model", "limits"} == set(moved)
    later = steady.client.get(f"/api/requests/{id_}/events?after=5").json()["items"]
    assert [f["type"] for f in later if "degraded" in f] == [f["type"] for f in told[5:] if "degraded" in f]


def test_one_sent_to_the_cpu_when_accepted_says_so_in_its_first_frames(steady: Any) -> None:
    steady.lane_out("gpu", "load-failed")
    id_ = steady.submit()["id"]
    hand = steady.hand("cpu")
    hand.take()
    hand.finish("x")
    told = [f for f in frames(steady, id_) if "degraded" in f]
    assert [(f["type"], f["degraded"]["reason_code"]) for f in told] == [("Rerouted", "gpu-out")]


def test_health_names_breakers_and_when_they_are_tried(steady: Any) -> None:
    assert not [c for c in steady.client.get("/health").json()["checks"] if c["name"].startswith("breaker")]
    trip(steady)
    told = steady.client.get("/health")
    check = next(c for c in told.json()["checks"] if c["name"] == "breaker sim-0")
    assert (told.status_code, told.json()["status"], check["status"]) == (200, "warn", "warn")
    assert "the device is tried again in 9 min" in check["detail"]
    assert f"({device(steady)['breaker']['next_probe_at'][11:19]} UTC)" in check["detail"]
    own = next(c for c in told.json()["checks"] if c["name"] == "device sim-0")
    assert (own["status"], own["detail"]) == (
        "warn",
        "Simulated GPU is there and takes no work: its breaker is open",
    )
    assert steady.client.get("/readyz").status_code == 200


# ---- pages -----------------------------------------------------------------------------------------------------


def test_the_banner_says_what_is_out_what_answers_when_it_is_tried_and_goes_away(steady: Any) -> None:
    trip(steady)
    alarm = read(steady, "/").text("alarm")
    assert "Simulated GPU: Nothing begins on the device for 600 s, because the worker was killed;" in alarm
    probe = device(steady)["breaker"]["next_probe_at"]
    assert "next probe in 9 min" in alarm
    assert f"({probe[11:19]} UTC)" in alarm
    assert "Answers instead: CPU lane · null · 2,048 tokens each, one at a time, 0 of 2 places taken" in alarm
    assert "a new request would begin there: about 0 s" in alarm
    assert "as the CPU lane did" in alarm
    opened = steady.client.get("/api/events?type=BreakerOpened").json()["items"][0]
    assert f"event {opened['seq']}" in alarm
    close(steady)
    assert read(steady, "/").text("alarm") == ""


def test_a_device_is_tried_from_its_card_with_a_reason(steady: Any) -> None:
    assert 'action="/devices/' not in steady.client.get("/").text
    trip(steady)
    with httpx.Client(base_url=steady.url, timeout=30) as visitor:
        page = visitor.get("/").text
        card = read(steady, "/").text("devices")
        assert "breaker open" in card
        assert "The worker was killed; its workers failed too often within a short time." in card
        token = re.search(r'name="_form" value="([^"]+)"', page)
        assert token
        action = html.unescape(re.search(r'action="(/devices/[^"]+)"', page)[1])  # type: ignore[index]
        assert visitor.post(action, data={"_form": "x", "reason": "new card"}).status_code == 403
        assert visitor.post(action, data={"_form": token[1], "reason": " "}).status_code == 400
        assert device(steady)["breaker"]["state"] == "open"
        done = visitor.post(action, data={"_form": token[1], "reason": "new card"})
        assert (done.status_code, done.headers["location"]) == (303, "/#devices")
        missing = visitor.post("/devices/none/reset-breaker", data={"_form": token[1], "reason": "x"})
        assert missing.status_code == 404
    assert device(steady)["breaker"]["state"] == "half-open"
    half = steady.client.get("/api/events?type=BreakerHalfOpened").json()["items"][0]
    assert half["data"]["reason"] == "new card"
    assert "It is being tried now; it takes work after 2 right answers." in read(steady, "/").text("devices")


def test_a_server_of_others_is_a_device_without_memory(steady: Any) -> None:
    def unit(tx: Any) -> None:
        tx.append("device-upstream:box", ev.DeviceFound("box", simulated=False, total_bytes=None), actor="test")
        row = LaneRow("gpu", "null", True, None, 2048, "upstream:box", "upstream", NULL_ENTRY.contract)
        put_lane(tx, row)

    steady.writer.run(unit)
    trip(steady, "upstream:box")
    assert (device(steady, "upstream:box")["kind"], device(steady, "upstream:box")["breaker"]["state"]) == (
        "upstream",
        "open",
    )
    page = read(steady, "/")
    card = page.text("devices")
    assert "a server of others" in card
    assert "Its memory is not ours to look at" in card
    assert "breaker open" in card
    assert "/devices/upstream%3Abox/reset-breaker" in [form.get("action") for form in page.all("form")]
    assert "box: Nothing begins on the device" in page.text("alarm")


def test_sent_to_the_cpu_is_no_failover(steady: Any) -> None:
    steady.lane_out("gpu", "load-failed")
    id_ = steady.submit(max_tokens=40)["id"]
    assert "the GPU lane is out" in read(steady, "/").text("requests")
    hand = steady.hand("cpu")
    hand.take()
    hand.finish("done")
    assert "completed on the CPU lane" in read(steady, "/").text("requests")
    head = read(steady, f"/requests/{id_}").text("head")
    assert head.startswith("Completed, not as it was asked Sent to the CPU lane because the GPU lane is out")
    assert "failover" not in head


def test_a_request_that_waits_shows_for_how_long_and_what_that_rests_on(steady: Any) -> None:
    steady.lane_out("gpu", "load-failed")
    steady.submit(max_tokens=40)
    page = read(steady, f"/requests/{steady.submit(max_tokens=40)['id']}")
    assert page.text("stands").startswith("waiting 1 before it · for 0.0")
    head = page.text("head")
    assert "Expected to end: 4.0 to 8.1 s" in head
    assert "1 wait before it; 10 tokens to read and at most 80 to write, at 100 tokens/s and 10 tokens/s" in head
    assert "Goes on there 0.05 s after its turn has come" in head


def test_the_health_tab_is_for_people(steady: Any) -> None:
    page = read(steady, "/status")
    assert page.text("status-title") == "Everything is well"
    assert "/status" in [a["href"] for a in page.all("a")]
    trip(steady)
    page = read(steady, "/status")
    assert page.text("status-title") == "Reduced, and answering"
    assert "breaker of Simulated GPU reduced open: the worker was killed" in page.text("status")
    assert "sim-0" not in page.text("status")
    fragment = steady.client.get("/status", headers={"HX-Request": "true"}).text
    assert "<html" not in fragment
    assert "hx-swap-oob" in fragment
