"""Submitting, looking, listing."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

BODY = {"model": "null", "prompt": "hello", "max_tokens": 64}


def test_202_is_durable_and_names_where_to_look(box: Any) -> None:
    answer = box.client.post("/api/requests", json=BODY)
    view = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/requests/{view['id']}"
    assert answer.headers["x-request-id"] == view["id"]
    assert view["id"].startswith("req_")
    assert len(view["id"]) == 30
    assert set(view) == {
        "id", "workload", "model", "served_model", "state", "lane", "running", "attempt", "version", "output_epoch",
        "progress", "output", "degraded", "queue", "failovers", "usage", "finish_reason", "error", "created_at",
        "updated_at", "links",
    }  # fmt: skip
    assert (view["state"], view["lane"], view["running"], view["version"]) == ("admitted", "gpu", False, 1)
    assert view["progress"] == {"unit": "token", "done": 0, "of": 64}
    assert view["usage"] == {"prompt_tokens": len(b"hello"), "completion_tokens": 0}
    assert view["queue"]["position"] == 0
    assert view["degraded"] is None
    assert view["created_at"].endswith("Z")
    assert len(view["created_at"]) == len("2026-01-01T00:00:00.000000Z")
    assert box.client.get(view["links"]["self"]).json()["id"] == view["id"]


def test_ids_sort_by_time(box: Any) -> None:
    ids = []
    for _ in range(3):
        ids.append(box.submit()["id"])
        time.sleep(0.005)
    assert ids == sorted(ids)


def test_what_the_runner_makes_durable_is_shown_and_nothing_else(box: Any) -> None:
    view = box.submit()
    hand = box.hand()
    assert hand.take() == view["id"]
    running = box.client.get(f"/api/requests/{view['id']}")
    assert running.json()["state"] == "running-gpu"
    assert running.headers["x-served-on"] == "gpu:sim-0"
    hand.say("Grüße ")
    assert box.show(view["id"])["output"] == {"text": "Grüße "}
    hand.finish("🦜")
    done = box.client.get(f"/api/requests/{view['id']}")
    assert done.json()["output"] == {"text": "Grüße 🦜"}
    assert done.json()["state"] == "completed"
    assert done.json()["finish_reason"] == "stop"
    assert done.json()["usage"]["completion_tokens"] == len("Grüße 🦜".encode())
    assert done.json()["queue"] is None
    assert "retry-after" not in done.headers
    assert "retry-after" in running.headers


def test_a_failover_is_told_in_view_and_headers(box: Any) -> None:
    view = box.submit()
    hand = box.hand()
    hand.take()
    hand.say("one ")
    hand.die()
    answer = box.client.get(f"/api/requests/{view['id']}")
    moved = answer.json()
    assert moved["state"] == "rerouted-cpu"
    assert answer.headers["x-served-on"] == "cpu"
    assert answer.headers["x-degraded"] == moved["degraded"]["rule"] == "continue-identical"
    assert moved["degraded"]["reason"] == "the worker was killed"
    assert moved["degraded"]["reason_code"] == "killed"
    why = "unknown: how fast the CPU lane is was not measured yet"
    assert moved["degraded"]["eta"] == {"low_s": None, "high_s": None, "basis": why}
    assert [(f["from"], f["to"]) for f in moved["failovers"]] == [("gpu", "cpu")]
    assert moved["failovers"][0]["because"].startswith("Moved from the GPU lane to the CPU lane because")
    other = box.hand("cpu")
    assert other.take() == view["id"]
    other.say("two ", took_us=4_000_000)
    eta = box.show(view["id"])["degraded"]["eta"]
    left = 64 - len("one two ")
    assert (eta["low_s"], eta["high_s"]) == (left * 1.0, left * 1.0)  # four units took four seconds
    assert "CPU lane" in eta["basis"]
    other.finish("three")
    done = box.show(view["id"])
    assert done["output"] == {"text": "one two three"}
    assert done["degraded"]["eta"] is None


def test_without_a_gpu_lane_the_first_answer_says_so(box: Any) -> None:
    box.lane_out("gpu", "device-lost")
    answer = box.client.post("/api/requests", json=BODY)
    view = answer.json()
    assert answer.headers["x-degraded"] == "gpu-out"
    assert answer.headers["x-served-on"] == "cpu"
    assert view["state"] == "rerouted-cpu"
    assert [(f["version"], f["from"], f["to"]) for f in view["failovers"]] == [(2, None, "cpu")]


def test_fifty_identical_posts_with_one_key_make_one_request(box: Any) -> None:
    def post(_n: int) -> httpx.Response:
        with httpx.Client(base_url=box.url, timeout=60) as client:
            return client.post("/api/requests", json=BODY, headers={"Idempotency-Key": '"same"'})

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(post, range(50)))
    assert {a.status_code for a in answers} == {202}
    assert len({a.json()["id"] for a in answers}) == 1
    assert sum("idempotent-replayed" not in a.headers for a in answers) == 1
    bare = box.client.post("/api/requests", json=BODY, headers={"Idempotency-Key": "same"})
    assert bare.headers["idempotent-replayed"] == "true"
    assert bare.json()["id"] == answers[0].json()["id"]


def test_a_key_takes_one_body_only_however_it_is_written(box: Any) -> None:
    first = box.client.post("/api/requests", json=BODY, headers={"Idempotency-Key": "k1"}).json()
    reordered = b'{ "max_tokens":64,\n"prompt":"hel\\u006co", "model":"null" }'
    headers = {"Idempotency-Key": "k1", "Content-Type": "application/json"}
    same = box.client.post("/api/requests", content=reordered, headers=headers)
    assert same.json()["id"] == first["id"]
    other = box.client.post("/api/requests", json=BODY | {"max_tokens": 65}, headers={"Idempotency-Key": "k1"})
    assert other.status_code == 422
    assert other.json()["error"]["code"] == "idempotency_key_reused"
    assert other.json()["request_id"] == first["id"]


def test_a_refusal_does_not_use_the_key_up(make_box: Any) -> None:
    box = make_box(gpu_queue_limit=1, cpu_queue_limit=1)
    for _ in range(2):
        box.submit()
    full = box.client.post("/api/requests", json=BODY, headers={"Idempotency-Key": "later"})
    assert full.status_code == 429
    assert 1 <= int(full.headers["retry-after"]) <= 120
    assert full.json()["reason"] == "queue-full"
    refused = full.json()["request_id"]
    assert full.headers["x-request-id"] == refused
    assert box.show(refused)["state"] == "refused"
    assert box.show(refused)["error"]["code"] == "queue-full"
    hand = box.hand()
    hand.take()
    hand.finish("x")
    assert box.submit({"Idempotency-Key": "later"})["state"] == "admitted"


def test_prefer_wait_answers_the_settled_request(box: Any) -> None:
    def work() -> None:
        hand = box.hand()
        while True:
            try:
                hand.take()
                break
            except AssertionError:
                time.sleep(0.01)
        hand.say("half ")
        time.sleep(0.3)
        hand.finish("done")

    worker = threading.Thread(target=work)
    worker.start()
    answer = box.client.post("/api/requests", json=BODY, headers={"Prefer": "respond-async, wait=60"})
    worker.join()
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "wait=60"
    assert answer.json()["state"] == "completed"
    assert answer.json()["output"] == {"text": "half done"}


def test_prefer_wait_gives_up_in_time(box: Any) -> None:
    answer = box.client.post("/api/requests", json=BODY, headers={"Prefer": "wait=0.2"})
    assert answer.json()["state"] == "admitted"


def test_long_poll_answers_a_change_and_304_without_one(box: Any) -> None:
    view = box.submit()
    url = f"/api/requests/{view['id']}"
    etag = box.client.get(url).headers["etag"]
    assert box.client.get(url, headers={"If-None-Match": etag}).status_code == 304
    unchanged = box.client.get(url, params={"wait": "0.2"}, headers={"If-None-Match": etag})
    assert unchanged.status_code == 304
    assert unchanged.content == b""

    hand = box.hand()
    timer = threading.Timer(0.3, hand.take)
    timer.start()
    changed = box.client.get(url, params={"wait": "60"}, headers={"If-None-Match": etag})
    timer.join()
    assert changed.status_code == 200
    assert changed.json()["state"] == "running-gpu"
    assert changed.headers["etag"] != etag
    # One who is behind is told at once, although nothing changes any more.
    behind = box.client.get(url, params={"wait": "60"}, headers={"If-None-Match": etag})
    assert behind.json()["version"] == 2


def test_lists_page_through_everything_newest_first(make_box: Any) -> None:
    box = make_box()
    made = [box.submit()["id"] for _ in range(5)]
    hand = box.hand()
    hand.take()
    hand.finish("first")
    seen, cursor = [], None
    while True:
        params = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = box.client.get("/api/requests", params=params).json()
        seen += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    assert [item["id"] for item in seen] == made[::-1]
    assert seen[-1]["output"] == {"text": "first"}
    assert [item["queue"]["position"] for item in seen[:-1]] == [3, 2, 1, 0]
    for query, count in (("state=completed", 1), ("state=admitted", 4), ("lane=cpu", 0), ("model=null", 5)):
        assert len(box.client.get(f"/api/requests?{query}").json()["items"]) == count, query


@pytest.mark.parametrize(
    "query",
    ["state=lost", "lane=tpu", "workload=paint", "limit=0", "limit=-1", "limit=x", "limit=501", "cursor=zzz",
     "cursor=~", "state=completed&state=admitted"],
)  # fmt: skip
def test_filters_that_mean_nothing_are_refused(box: Any, query: str) -> None:
    assert box.client.get(f"/api/requests?{query}").status_code == 400


def test_a_drawn_seed_is_recorded(box: Any) -> None:
    drawn, given = box.submit(), box.submit(seed=7)
    seeds = [
        box.client.get(f"/api/requests/{v['id']}/export").json()["submission"]["body"]["seed"] for v in (drawn, given)
    ]
    assert seeds[1] == 7
    assert 0 <= seeds[0] < 2**31
