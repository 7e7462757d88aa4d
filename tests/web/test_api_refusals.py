"""Every way to be turned away has its status, in one body for all clients."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

BODY = {"model": "null", "prompt": "hello"}


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["title"]
    assert body["type"].startswith("urn:failsoft:problem:")
    assert body["detail"] == body["error"]["message"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "instance" in body
    assert "request_id" in body
    assert "Traceback" not in answer.text
    return body


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"null", None),
        (b"\xff\xfe", None),
        (b"[" * 40_000, None),
        (b'{"model":"null","prompt":"\\ud800"}', None),
        (b'{"model":"null","prompt":"x","max_tokens":NaN}', None),
        (b'{"model":"null","prompt":"x","temperature":1e999}', None),
        (b'{"model":"null","prompt":"x","max_tokens":0}', "max_tokens"),
        (b'{"model":"null","prompt":"x","max_tokens":-1}', "max_tokens"),
        (b'{"model":"null","prompt":"x","max_tokens":1.5}', "max_tokens"),
        (b'{"model":"null","prompt":"x","max_tokens":"8"}', "max_tokens"),
        (b'{"model":"null","prompt":"x","max_tokens":true}', "max_tokens"),
        (b'{"model":"null","prompt":"x","max_tokens":99999999999999999999999}', "max_tokens"),
        (b'{"model":"null","prompt":"x","temperature":2.1}', "temperature"),
        (b'{"model":"null","prompt":"x","top_p":0}', "top_p"),
        (b'{"model":"null","prompt":"x","top_k":-1}', "top_k"),
        (b'{"model":"null","prompt":"x","seed":99999999999999999999999}', "seed"),
        (b'{"model":"null","prompt":"x","seed":1.0e1}', None),
        (b'{"model":"null","prompt":"x","stop":[""]}', "stop"),
        (b'{"model":"null","prompt":"x","stop":""}', "stop"),
        (b'{"model":"null","prompt":"x","stop":["1","2","3","4","5","6","7","8","9"]}', "stop"),
        (b'{"model":"null","prompt":"x","stop":7}', "stop"),
        (b'{"model":"null","prompt":"x","failover":"maybe"}', "failover"),
        (b'{"model":"null","prompt":"x","priority":"urgent"}', "priority"),
        (b'{"model":"null","prompt":"x","deadline_s":0}', "deadline_s"),
        (b'{"model":"null","prompt":"x","metadata":{"a":1}}', "metadata[...]"),
        (b'{"model":"null","prompt":"x","maxtokens":5}', "maxtokens"),
        (b'{"model":"null","prompt":"x","workload":"paint"}', "workload"),
        (b'{"model":"null","prompt":""}', "prompt"),
        (b'{"model":"null","messages":[]}', "messages"),
        (b'{"model":"null"}', "messages"),
        (b'{"prompt":"x"}', "model"),
        (b'{"model":"null","prompt":"x","messages":[{"role":"user","content":"x"}]}', "messages"),
        (b'{"model":"null","messages":[{"role":"robot","content":"x"}]}', "messages[0].role"),
        (b'{"model":"null","messages":[{"role":"user","content":"x","name":"y"}]}', None),
        (b'{"model":"null","messages":[{"role":"user"}]}', None),
        (b'{"model":null,"prompt":"x"}', "model"),
    ],
)  # fmt: skip
def test_400_what_cannot_be_read(box: Any, raw: bytes, param: str | None) -> None:
    before = box.client.get("/api/events?limit=500&type=Admitted").json()["items"]
    answer = box.client.post("/api/requests", content=raw, headers={"Content-Type": "application/json"})
    if raw.endswith(b'"seed":1.0e1}') and answer.status_code == 202:
        return  # a whole number, however it is written
    body = problem(answer, 400)
    if param is not None:
        assert body["error"]["param"] == param, body
    assert answer.headers["x-should-retry"] == "false"
    assert box.client.get("/api/events?limit=500&type=Admitted").json()["items"] == before


def test_400_metadata_and_keys_over_their_limits(box: Any) -> None:
    problem(box.client.post("/api/requests", json=BODY | {"metadata": {"a": "x" * 17_000}}), 400)
    for key in ("", '""', "k" * 256, '"' + "k" * 256 + '"'):
        problem(box.client.post("/api/requests", json=BODY, headers={"Idempotency-Key": key}), 400)
    longest = box.client.post("/api/requests", json=BODY, headers={"Idempotency-Key": '"' + "k" * 255 + '"'})
    assert longest.status_code == 202


@pytest.mark.parametrize("query", ["wait=x", "wait=-1", "wait=nan"])
def test_400_waits_that_are_no_time(box: Any, query: str) -> None:
    view = box.submit()
    problem(box.client.get(f"/api/requests/{view['id']}?{query}"), 400)


def test_404_and_405(box: Any) -> None:
    assert problem(box.client.get("/api/requests/req_none"), 404)["request_id"] == "req_none"
    for path in ("events", "replay", "export"):
        problem(box.client.get(f"/api/requests/req_none/{path}"), 404)
    for path in ("cancel", "resume"):
        problem(box.client.post(f"/api/requests/req_none/{path}"), 404)
    problem(box.client.delete("/api/requests/req_none/content"), 404)
    problem(box.client.get("/api/nothing"), 404)
    wrong = box.client.put("/api/requests", json={})
    problem(wrong, 405)
    assert "POST" in wrong.headers["allow"]


def test_413_whether_the_length_is_announced_or_not(box: Any) -> None:
    limit = box.settings.policy.max_body_bytes
    big = b'{"model":"null","prompt":"' + b"x" * limit + b'"}'
    headers = {"Content-Type": "application/json"}
    problem(box.client.post("/api/requests", content=big, headers=headers), 413)

    def parts() -> Iterator[bytes]:
        for start in range(0, len(big), 1000):
            yield big[start : start + 1000]

    chunked = box.client.post("/api/requests", content=parts(), headers=headers)
    assert chunked.request.headers["transfer-encoding"] == "chunked"
    problem(chunked, 413)
    fits = b'{"model":"null","prompt":"' + b"x" * 100 + b'"}' + b" " * (limit - 128)
    assert len(fits) == limit
    assert box.client.post("/api/requests", content=fits, headers=headers).status_code == 202


def test_413_for_a_length_that_is_only_claimed(box: Any) -> None:
    with socket.create_connection(("127.0.0.1", box.port), timeout=30) as raw:
        raw.sendall(
            b"POST /api/requests HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 999999999999\r\n\r\n{"
        )
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "nonsense", ""]
)
def test_415_bodies_that_are_not_json(box: Any, kind: str) -> None:
    headers = {"Content-Type": kind}
    for url in (f"{box.url}/api/requests", f"{box.url}//api/requests"):
        problem(httpx.post(url, content=b'{"model":"null","prompt":"x"}', headers=headers), 415)


def test_415_without_any_type_but_no_body_needs_none(box: Any) -> None:
    raw = httpx.Request("POST", f"{box.url}/api/requests", content=b"{}")
    assert "content-type" not in raw.headers
    problem(box.client.send(raw), 415)
    view = box.submit()
    assert box.client.post(f"/api/requests/{view['id']}/cancel").status_code == 202


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"model": "gpt-9"}, "unknown_model"),
        ({"model": "../../etc/passwd"}, "unknown_model"),
        ({"model": "x" * 5000}, "unknown_model"),
        ({"workload": "transcribe"}, "workload_not_served"),
        ({"workload": "embed", "input": ["x"]}, "workload_not_served"),
        ({"webhook": {"url": "http://localhost/x"}}, "webhook_target"),
        ({"webhook": {"url": "http://[::ffff:10.0.0.1]/x"}}, "webhook_target"),
        ({"webhook": {"url": "ftp://example.com/x"}}, "webhook_url"),
        ({"webhook": {"url": "https://user:word@example.com/x"}}, "webhook_url"),
        ({"max_tokens": 100_000}, "context_length_exceeded"),
        ({"prompt": "x" * 3000}, "context_length_exceeded"),
    ],
)
def test_422_what_can_never_be_served_here(box: Any, change: dict[str, Any], code: str) -> None:
    answer = box.client.post("/api/requests", json=BODY | change)
    body = problem(answer, 422)
    assert body["error"]["code"] == code
    assert answer.headers["x-should-retry"] == "false"
    if code == "unknown_model":
        assert "null" in body["detail"]
        assert len(body["detail"]) < 500


def test_422_a_known_model_that_is_not_served(make_box: Any, tmp_path: Any) -> None:
    box = make_box()
    (box.paths.models / "broken.json").write_text("{")
    body = problem(box.client.post("/api/requests", json=BODY | {"model": "broken"}), 422)
    assert body["error"]["code"] == "model_not_served"
    assert "served are: null" in body["detail"]


def test_503_for_those_who_want_the_gpu_or_nothing(box: Any) -> None:
    box.lane_out("gpu", "device-lost")
    answer = box.client.post("/api/requests", json=BODY | {"failover": "gpu-only"})
    body = problem(answer, 503)
    assert body["reason"] == "gpu-only"
    assert "retry-after" in answer.headers
    assert box.show(body["request_id"])["state"] == "refused"


def test_503_while_draining(make_box: Any) -> None:
    box = make_box()
    box.writer.run(lambda tx: tx.execute("INSERT INTO service (key, value) VALUES ('draining', '1')"))
    body = problem(box.client.post("/api/requests", json=BODY), 503)
    assert body["reason"] == "draining"
    assert box.client.get("/readyz").status_code == 503


def test_507_when_the_store_is_full_and_nothing_is_half_made(make_box: Any) -> None:
    box = make_box()
    held = box.submit()["id"]
    services = box.app.state.services
    before = box.client.get("/api/events").json()

    def fill(tx: Any) -> None:
        (pages,) = tx.execute("PRAGMA page_count").fetchone()
        tx.execute(f"PRAGMA max_page_count={pages}")

    services.writer.run(fill)
    answer = None
    for _ in range(200):
        answer = box.client.post("/api/requests", json=BODY | {"prompt": "y" * 1900, "max_tokens": 1})
        if answer.status_code != 202:
            break
    assert answer is not None
    body = problem(answer, 507)
    assert body["error"]["code"] == "no_space"
    assert "free space" in body["detail"]
    assert box.show(held)["state"] == "admitted"
    admitted = box.client.get("/api/events?limit=500&type=Admitted").json()["items"]
    listed = box.client.get("/api/requests?limit=500").json()["items"]
    assert len(admitted) == len(listed)
    assert box.client.get("/api/events").json()["items"][: len(before["items"])] == before["items"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "a@localhost", "", "127.0.0.1:x"]
)
def test_403_hosts_that_are_not_ours(box: Any, host: str) -> None:
    problem(box.client.get("/api/lanes", headers={"Host": host}), 403)
    problem(box.client.get("/livez", headers={"Host": host}), 403)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:8765", "127.9.9.9"])
def test_hosts_that_are_ours(box: Any, host: str) -> None:
    assert box.client.get("/livez", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost", ""])
def test_403_origins_that_are_not_ours(box: Any, origin: str) -> None:
    problem(box.client.post("/api/requests", json=BODY, headers={"Origin": origin}), 403)
    assert box.client.get("/api/lanes", headers={"Origin": origin}).status_code == 200


def test_our_own_origin_may(box: Any) -> None:
    assert box.client.post("/api/requests", json=BODY, headers={"Origin": box.url}).status_code == 202


@pytest.mark.parametrize("wild", ["req_%00", "req_%0d%0aset-cookie:%20a=b", "req_%F0%9F%A6%9C"])
def test_what_the_path_says_gets_into_no_header(box: Any, wild: str) -> None:
    answer = box.client.get(f"/api/requests/{wild}")
    problem(answer, 404)
    assert "x-request-id" not in answer.headers
    assert "set-cookie" not in answer.headers
