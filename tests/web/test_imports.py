"""A request's history goes out as a file and comes in elsewhere: whole, checked, read-only, apart from what is live."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from pages import HOSTILE, Page, inert, read

from store.journal import chain
from store.transfer import FORMAT

FIELDS = ("seq", "event_id", "stream", "version", "type", "schema", "at_us", "actor", "attempt", "lease_token",
          "device_epoch", "cause_seq", "data")  # fmt: skip


def exported(box: Any, id_: str) -> dict[str, Any]:
    found: dict[str, Any] = box.client.get(f"/api/requests/{id_}/export").raise_for_status().json()
    return found


def send(box: Any, document: Any) -> Any:
    return box.client.post("/api/imports", json=document)


def brought(box: Any, document: Any) -> str:
    answer = send(box, document)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def rehash(document: dict[str, Any]) -> None:
    """What a forger would do: compute every link anew."""
    before = None
    for event in document["events"]:
        if before is not None and event["seq"] == before["seq"] + 1:
            event["previous"] = before["hash"]
        event["hash"] = chain(event["previous"], tuple(event[name] for name in FIELDS))
        before = event


def upload(box: Any, name: str, content: bytes, token: str | None = None) -> Any:
    form = read(box, "/imports")
    value = next(i["value"] for i in form.all("input") if i.get("name") == "_form") if token is None else token
    files = {"file": (name, content, "application/json")}
    return box.client.post("/imports", data={"_form": value}, files=files, follow_redirects=False)


def test_a_history_opens_elsewhere_as_it_was_there(make_box: Any) -> None:
    here, there = make_box(), make_box()
    id_ = here.moved()
    document = exported(here, id_)
    assert document["format"] == FORMAT
    import_id = brought(there, document)
    for at in range(1, 10):
        page, own = read(there, f"/imports/{import_id}?at={at}"), read(here, f"/requests/{id_}?at={at}")
        for part in ("output-text", "moment", "turns", "steps", "count"):
            assert page.text(part) == own.text(part), (at, part)
        assert f"Imported, read-only, verified · after event {at} of 9" in page.text("frozen")
        told = there.client.get(f"/api/imports/{import_id}?at={at}").json()
        assert told["replay"] == here.client.get(f"/api/requests/{id_}/replay?at={at}").json()
    assert read(there, f"/imports/{import_id}").text("output-text") == "one two three four"


def test_it_is_no_request_here_and_cannot_be_acted_on(make_box: Any) -> None:
    here, there = make_box(), make_box()
    id_ = here.failed("kept")
    head = there.client.get("/api/chain").json()
    import_id = brought(there, exported(here, id_))
    page = read(there, f"/imports/{import_id}")
    assert "resume-checkpoint" not in page.texts
    assert "cancel" not in page.texts
    actions = [f["action"] for f in page.all("form") if f.get("method") == "post"]
    assert actions == [f"/imports/{import_id}/remove"]
    links = [a.get("href", "") for a in page.all("a")]
    assert not [href for href in links if id_ in href]
    assert there.client.get(f"/api/requests/{id_}").status_code == 404
    assert there.client.get("/api/requests").json()["items"] == []
    assert there.client.get("/api/chain").json() == head, "the journal does not know of it"
    assert there.client.post(f"/imports/{import_id}/cancel").status_code == 404


def test_the_same_file_is_the_same_import_and_can_be_removed(make_box: Any) -> None:
    box = make_box()
    document = exported(box, box.moved())
    import_id = brought(box, document)
    again = send(box, document)
    assert (again.status_code, again.json()["id"]) == (200, import_id)
    assert [one["id"] for one in box.client.get("/api/imports").json()["items"]] == [import_id]
    assert box.client.delete(f"/api/imports/{import_id}").status_code == 204
    assert box.client.get(f"/imports/{import_id}").status_code == 404
    assert box.client.delete(f"/api/imports/{import_id}").status_code == 404
    assert box.client.get("/api/imports").json()["items"] == []


def test_what_was_erased_goes_out_and_comes_in_without_content(make_box: Any) -> None:
    box = make_box()
    id_ = box.completed("secret ", "words")
    box.erase(id_)
    document = exported(box, id_)
    assert (document["submission"], document["outputs"]) == (None, [])
    assert "secret words" not in json.dumps(document)
    page = read(box, f"/imports/{brought(box, document)}")
    assert "Prompt and output were erased." in page.text("output")
    assert "its content was erased" in page.text("frozen")


@pytest.mark.parametrize("end", ["refused", "resumed", "active"])
def test_every_kind_of_history_can_be_taken_along(make_box: Any, end: str) -> None:
    box = make_box(gpu_queue_limit=1, cpu_queue_limit=1)
    if end == "refused":
        for _ in range(2):
            box.submit()
        answer = box.client.post("/api/requests", json={"model": "null", "prompt": "x", "max_tokens": 4})
        assert answer.status_code == 429
        id_ = answer.json()["request_id"]
    elif end == "resumed":
        id_ = box.failed("first run")
        box.client.post(f"/api/requests/{id_}/resume", json={"from": "start"}).raise_for_status()
        hand = box.hand()
        assert hand.take() == id_
        hand.say("second run")
    else:
        id_ = box.submit()["id"]
    import_id = brought(box, exported(box, id_))
    page = read(box, f"/imports/{import_id}")
    if end == "resumed":
        assert page.text("output-text") == "second run"
        assert "first run" in page.text("older-0")


Change = Callable[[dict[str, Any]], Any]


def event(document: dict[str, Any], type_: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in document["events"] if one["type"] == type_)
    return found


def edit(document: dict[str, Any], type_: str, **changes: Any) -> None:
    one = event(document, type_)
    one["data"] = json.dumps(json.loads(one["data"]) | changes)


FORGERIES: dict[str, tuple[Change, str]] = {
    "actor": (lambda d: event(d, "Started").update(actor="nobody"), "event 2 does not match its hash"),
    "data": (lambda d: edit(d, "Rerouted", reason="xid"), "event 6 does not match its hash"),
    "hash": (lambda d: event(d, "Started").update(hash="0" * 64), "event 2 does not match its hash"),
    "link": (
        lambda d: (
            event(d, "Started").update(previous="0" * 64),
            event(d, "Started").update(
                hash=chain("0" * 64, tuple(event(d, "Started")[name] for name in FIELDS)),
            ),
        ),
        "event 2 is not chained",
    ),
    "gone": (lambda d: d["events"].pop(3), "event 4 is not version 4"),
    "order": (lambda d: d["events"].reverse(), "event 1 is not version 1"),
    "output": (lambda d: d["outputs"][0].update(text="two "), "is not what event"),
    "prompt": (lambda d: d["submission"]["body"].update(prompt="bye"), "prompt of"),
    "secret": (lambda d: d["submission"].update(secret="AAAA"), "prompt of"),
    "base64": (lambda d: d["submission"].update(secret="?"), "base64"),
    "no prompt": (lambda d: d.update(submission=None), "is missing"),
    "no output": (lambda d: d["outputs"].pop(), "is missing"),
    "more output": (lambda d: d["outputs"].append({"epoch": 7, "first": 0, "tokens": [1], "text": "x"}), "no event"),
    "erased": (lambda d: d.update(erased=True), "otherwise than its events"),
    "id": (lambda d: d.update(id="req_other"), "event 1 is not version 1 of req_other"),
    "format": (lambda d: d.update(format="failsoft-export-1"), "this version reads failsoft-export-2"),
    "future type": (lambda d: (event(d, "Started").update(type="Teleported"), rehash(d)), "unknown to this version"),
    "illegal": (lambda d: (event(d, "Rerouted").update(type="Completed"), rehash(d)), "event 6 cannot follow there"),
    "backwards": (lambda d: (edit(d, "Completed", units=1), rehash(d)), "event 9 cannot follow there"),
    "elsewhere": (
        lambda d: (event(d, "Started").update(type="DrainAsked", data='{"reason":"x"}'), rehash(d)),
        "happens to no request",
    ),
    "seq": (lambda d: (event(d, "Rerouted").update(seq=1), rehash(d)), "which is not after"),
    "time": (lambda d: (edit(d, "Admitted", deadline_us=10**18), rehash(d)), "names a time that is none"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_does_not_fit_is_refused_with_the_place(box: Any, forgery: str) -> None:
    document = exported(box, box.moved())
    change, told = FORGERIES[forgery]
    change(document)
    answer = send(box, document)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert told in answer.json()["detail"]
    page = upload(box, "x.json", json.dumps(document).encode())
    assert page.status_code == 422
    assert "This history was not taken in" in Page(page.text).text("main")
    assert box.client.get("/api/imports").json()["items"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[]",
        b'{"format": "failsoft-export-2"}',
        b"[" * 100_000,
        b'{"format":"failsoft-export-2","id":"x","erased":false,"events":[],"submission":null,"outputs":[]}',
        b'{"a":"\\ud800"}',
    ],
)
def test_what_is_no_such_file_is_malformed(box: Any, body: bytes) -> None:
    answer = box.client.post("/api/imports", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert upload(box, "x.json", body).status_code == 400


def test_a_file_that_is_too_large_is_refused(box: Any) -> None:
    body = b'{"format":"' + b"x" * (9 << 20) + b'"}'
    answer = box.client.post("/api/imports", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "8 MiB" in answer.json()["detail"]


def test_the_form_takes_a_file_and_leads_to_its_page(box: Any) -> None:
    id_ = box.moved(prompt="Größe — 大きさ")
    answer = upload(box, "history.json", box.client.get(f"/api/requests/{id_}/export").content)
    assert answer.status_code == 303, answer.text
    path = answer.headers["location"]
    assert re.fullmatch(r"/imports/imp_[0-9a-f]{32}", path)
    assert "Größe — 大きさ" in read(box, path).texts["asked"]
    assert path in [a.get("href") for a in read(box, "/imports").all("a")]
    form = next(f for f in read(box, path).all("form") if f.get("action") == f"{path}/remove")
    assert form["method"] == "post"
    token = next(i["value"] for i in read(box, path).all("input") if i.get("name") == "_form")
    assert box.client.post(f"{path}/remove", data={"_form": token}).status_code == 303
    assert box.client.get(path).status_code == 404


def test_a_form_of_another_site_is_not_taken(box: Any) -> None:
    document = json.dumps(exported(box, box.moved())).encode()
    assert upload(box, "x.json", document, token="guess").status_code == 403
    import_id = brought(box, json.loads(document))
    assert box.client.post(f"/imports/{import_id}/remove", data={"_form": "guess"}).status_code == 403
    assert box.client.get(f"/imports/{import_id}").status_code == 200
    box.client.delete(f"/api/imports/{import_id}")


def test_a_page_has_the_link_that_exports_it(box: Any) -> None:
    id_ = box.moved()
    assert f"/api/requests/{id_}/export" in [a.get("href") for a in read(box, f"/requests/{id_}").all("a")]


def test_hostile_text_in_a_history_is_inert(make_box: Any) -> None:
    box = make_box()
    box.submit(prompt=HOSTILE)
    hand = box.hand()
    id_ = hand.take()
    hand.say(HOSTILE)
    document = exported(box, id_)
    document["events"][0]["actor"] = HOSTILE
    edit(document, "Admitted", model=HOSTILE, served_model=HOSTILE)
    rehash(document)
    import_id = brought(box, document)
    for path in (f"/imports/{import_id}", f"/imports/{import_id}?at=1", "/imports"):
        inert(box, path)
    assert read(box, f"/imports/{import_id}").texts["output-text"] == HOSTILE
