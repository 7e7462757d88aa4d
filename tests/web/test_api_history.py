"""A request's record as JSON, as lines, as a stream; its replay; its export; the journal."""

import base64
import hashlib
import hmac
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from store.contents import Spec, chunk_body, spec_body
from store.journal import chain


def frames(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """Server-sent events, as a browser reads them."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in fields:
                yield fields
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def stream(box: Any, request_id: str, take: int | None = None, **headers: str) -> list[dict[str, str]]:
    """The frames of one connection: all until it ends, or the first few and then the client hangs up."""
    got = []
    url = f"{box.url}/api/requests/{request_id}/events"
    with httpx.stream("GET", url, headers={"Accept": "text/event-stream"} | headers, timeout=60) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-request-id"] == request_id
        for one in frames(answer.iter_lines()):
            got.append(one)
            if len(got) == take:
                break
    return got


def test_a_stream_follows_the_work_and_ends_with_it(box: Any) -> None:
    request_id = box.submit()["id"]
    got: list[dict[str, str]] = []
    reader = threading.Thread(target=lambda: got.extend(stream(box, request_id)))
    reader.start()
    hand = box.hand()
    hand.take()
    for text in ("one ", "two ", "🦜 "):
        hand.say(text)
    hand.die()
    other = box.hand("cpu")
    other.take()
    other.finish("end")
    reader.join(60)
    assert not reader.is_alive()
    versions = [int(f["id"]) for f in got]
    assert versions == list(range(1, len(versions) + 1))
    assert [f["event"] for f in got] == [
        "Admitted", "Started", "Checkpointed", "Checkpointed", "Checkpointed", "FaultSeen", "Rerouted", "Started",
        "Completed",
    ]  # fmt: skip
    views = [json.loads(f["data"]) for f in got]
    deltas = [v["delta"] for v in views if "delta" in v]
    assert "".join(d["text"] for d in deltas) == "one two 🦜 end"
    assert [(d["from"], d["to"]) for d in deltas] == [(0, 4), (4, 8), (8, 10), (10, 13)]
    rerouted = views[6]
    assert rerouted["cause"] == views[5]["seq"]
    assert rerouted["because"].startswith("Moved from the GPU lane to the CPU lane because the worker was killed")
    assert rerouted["data"]["decision"]["rule"] == "continue-identical"
    assert rerouted["data"]["decision"]["facts"]["units"] == len("one two 🦜 ".encode())
    assert rerouted["data"]["decision"]["rejected"]
    assert rerouted["data"]["decision"]["because"]


def test_hanging_up_after_each_frame_still_shows_each_exactly_once(box: Any) -> None:
    request_id = box.completed("a", "b", "c", "d")
    seen: list[dict[str, str]] = []
    for _ in range(6):
        more = stream(box, request_id, take=1, **({"Last-Event-ID": seen[-1]["id"]} if seen else {}))
        seen += more
    assert [f["id"] for f in seen] == ["1", "2", "3", "4", "5", "6"]
    assert "".join(json.loads(f["data"]).get("delta", {}).get("text", "") for f in seen) == "abcd"
    url = f"/api/requests/{request_id}/events"
    over = box.client.get(url, headers={"Accept": "text/event-stream", "Last-Event-ID": "6"})
    assert (over.status_code, over.content) == (204, b"")  # an EventSource does not come back after that
    assert stream(box, request_id, **{"Last-Event-ID": "4"}) == [f for f in seen if int(f["id"]) > 4]
    bad = box.client.get(url, headers={"Accept": "text/event-stream", "Last-Event-ID": "x"})
    assert bad.status_code == 400


def test_listeners_leave_nothing_behind(box: Any, until: Any) -> None:
    doorbell = box.app.state.services.doorbell
    request_id = box.submit()["id"]
    ask = f"GET /api/requests/{request_id}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    clients = [socket.create_connection(("127.0.0.1", box.port), timeout=30) for _ in range(20)]
    for one in clients:
        one.sendall(ask.encode())
    until(lambda: len(doorbell.listeners) == 20)
    hand = box.hand()
    hand.take()
    for one in clients[:10]:
        assert one.recv(10)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset, not a goodbye
    for one in clients:
        one.close()
    until(lambda: len(doorbell.listeners) == 0)
    hand.finish("x")


def test_json_and_lines_tell_the_same(box: Any) -> None:
    request_id = box.completed("a", "b")
    url = f"/api/requests/{request_id}/events"
    page = box.client.get(url).json()
    assert page["next"] is None
    lines = box.client.get(url, headers={"Accept": "application/x-ndjson"})
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line) for line in lines.text.splitlines()] == page["items"]
    assert [json.loads(f["data"]) for f in stream(box, request_id)] == page["items"]
    assert box.client.get(url, params={"after": "2"}).json()["items"] == page["items"][2:]
    assert box.client.get(url, params={"after": "99"}).json()["items"] == []
    assert box.client.get(url, params={"after": "-1"}).status_code == 400
    first = page["items"][0]
    assert {"seq", "version", "type", "at", "actor", "attempt", "cause", "data", "because"} <= set(first)
    assert first["data"]["decision"]["rule"] == "gpu-ready"
    assert first["data"]["decision"]["facts"]["gpu"]["context"] == 2048


def test_replay_shows_every_moment_as_it_was(box: Any) -> None:
    view = box.submit()
    request_id, url = view["id"], f"/api/requests/{view['id']}/replay"
    hand = box.hand()
    hand.take()
    hand.say("one ")
    then = box.show(request_id)
    hand.say("two ")
    hand.die()
    other = box.hand("cpu")
    other.take()
    other.finish("three")
    whole = box.client.get(url).json()
    assert (whole["version"], whole["state"]) == (8, "completed")
    assert len(whole["chain"]) == 8
    assert whole["chain"][5].startswith("Moved from the GPU lane to the CPU lane because the worker was killed")
    assert [(d["version"], d["rule"], d["same"]) for d in whole["decisions"]] == [
        (1, "gpu-ready", True),
        (6, "continue-identical", True),
    ]
    assert all(d["recorded"] == d["recomputed"] for d in whole["decisions"])
    assert whole["view"] == box.show(request_id)
    past = box.client.get(url, params={"at": then["version"]}).json()
    assert past["view"] == then
    assert len(past["decisions"]) == 1
    for at in ("0", "9", "x"):
        assert box.client.get(url, params={"at": at}).status_code == 400


def test_an_export_can_be_checked_without_us(box: Any) -> None:
    request_id = box.failed("abc")
    document = box.client.get(f"/api/requests/{request_id}/export").json()
    events = document["events"]
    assert [e["version"] for e in events] == list(range(1, len(events) + 1))
    fields = ("seq", "event_id", "stream", "version", "type", "schema", "at_us", "actor", "attempt", "lease_token",
              "device_epoch", "cause_seq", "data")  # fmt: skip
    linked = [(a, b) for a, b in itertools.pairwise(events) if b["seq"] == a["seq"] + 1]
    assert linked
    for before, after in linked:
        assert chain(before["hash"], tuple(after[name] for name in fields)) == after["hash"]
    secret = base64.b64decode(document["submission"]["secret"])
    spec = msgspec.convert(document["submission"] | {"secret": secret}, Spec)
    admitted = json.loads(events[0]["data"])
    assert hmac.new(secret, spec_body(spec), hashlib.sha256).hexdigest() == admitted["spec_digest"]
    (output,) = document["outputs"]
    assert (output["epoch"], output["first"], output["text"]) == (0, 0, "abc")
    body = chunk_body(output["tokens"], output["text"])
    checkpointed = next(json.loads(e["data"]) for e in events if e["type"] == "Checkpointed")
    assert hmac.new(secret, body, hashlib.sha256).hexdigest() == checkpointed["digest"]


def test_the_journal_is_whole_and_can_be_narrowed(make_box: Any) -> None:
    box = make_box()
    first, second = box.completed("a"), box.failed("b")
    seen, after = [], "0"
    while True:
        page = box.client.get("/api/events", params={"after": after, "limit": "3"}).json()
        seen += page["items"]
        if page["next"] is None:
            break
        after = page["next"]
    assert [e["seq"] for e in seen] == list(range(1, len(seen) + 1))
    own = box.client.get("/api/events", params={"stream": second}).json()["items"]
    assert [e["type"] for e in own] == ["Admitted", "Started", "Checkpointed", "FaultSeen", "Failed"]
    kind = box.client.get("/api/events", params={"type": "Admitted"}).json()["items"]
    assert [e["stream"] for e in kind] == [first, second]
    assert box.client.get("/api/events?type=Nothing").status_code == 400
    assert all(e["because"] for e in seen)


def test_the_doorbell_says_only_how_far(box: Any) -> None:
    with httpx.stream("GET", f"{box.url}/api/stream", timeout=60) as answer:
        got = frames(answer.iter_lines())
        first = json.loads(next(got)["data"])
        assert list(first) == ["seq"]
        box.submit()
        assert json.loads(next(got)["data"])["seq"] > first["seq"]


def test_the_doorbell_is_coalesced(box: Any) -> None:
    with httpx.stream("GET", f"{box.url}/api/stream", timeout=60) as answer:
        got = frames(answer.iter_lines())
        start = json.loads(next(got)["data"])["seq"]
        for _ in range(50):
            box.submit()
        end, rings = start, 0
        while end < start + 50:
            end, rings = json.loads(next(got)["data"])["seq"], rings + 1
        assert rings < 50
        assert end == start + 50


@pytest.mark.parametrize("path", ["/api/stream", "/api/requests/{}/events"])
def test_a_quiet_stream_pings(box: Any, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr("web.api.streams.PING_S", 0.1)
    url = box.url + path.format(box.submit()["id"])
    with httpx.stream("GET", url, headers={"Accept": "text/event-stream"}, timeout=60) as answer:
        assert ": ping" in answer.iter_lines()


def test_a_stream_that_begins_late_carries_only_what_is_new(box: Any) -> None:
    request_id = box.failed("abc")
    box.client.post(f"/api/requests/{request_id}/resume", json={"from": "start"})
    hand = box.hand()
    hand.take()
    hand.say("12")
    hand.finish("345")
    got = [json.loads(f["data"]) for f in stream(box, request_id, **{"Last-Event-ID": "8"})]
    assert [(v["type"], v["delta"]["text"], v["delta"]["from"]) for v in got] == [("Completed", "345", 2)]
