"""Cancel, resume, erase."""

from typing import Any

import pytest


def post(box: Any, request_id: str, act: str, body: Any = None) -> Any:
    return box.client.post(f"/api/requests/{request_id}/{act}", json=body)


def test_cancel_settles_at_once_what_nobody_works_on(box: Any) -> None:
    view = box.submit()
    answer = post(box, view["id"], "cancel")
    assert answer.status_code == 202
    assert answer.json()["state"] == "cancelled"
    again = post(box, view["id"], "cancel")
    assert again.status_code == 202
    assert again.json()["version"] == answer.json()["version"]


def test_cancel_asks_the_runner_and_what_was_shown_stays(box: Any) -> None:
    view = box.submit()
    hand = box.hand()
    hand.take()
    hand.say("so far")
    asked = post(box, view["id"], "cancel").json()
    assert asked["state"] == "checkpointed"
    assert post(box, view["id"], "cancel").json()["version"] == asked["version"]
    hand.stop_as_asked()
    done = box.show(view["id"])
    assert (done["state"], done["output"]) == ("cancelled", {"text": "so far"})
    assert done["error"] is None


def test_cancel_after_the_end_conflicts(box: Any) -> None:
    answer = post(box, box.completed("x"), "cancel")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "conflict"
    assert answer.headers["x-should-retry"] == "false"


def test_a_resumable_error_names_the_choices(box: Any) -> None:
    request_id = box.failed("abc")
    error = box.show(request_id)["error"]
    assert error["status"] == 503
    assert "3 tokens are kept" in error["detail"]
    assert "Resume it from its checkpoint, resume it from the start, or cancel it." in error["detail"]
    assert [(c["action"], c["body"]) for c in error["choices"]] == [
        ("resume", {"from": "checkpoint"}),
        ("resume", {"from": "start"}),
        ("cancel", None),
    ]
    for choice in error["choices"][:1]:
        assert box.client.request(choice["method"], choice["href"], json=choice["body"]).status_code == 202


@pytest.mark.parametrize("body", [None, {}, {"from": "checkpoint"}])
def test_resume_goes_on_after_the_checkpoint(box: Any, body: Any) -> None:
    request_id = box.failed("abc")
    answer = post(box, request_id, "resume", body)
    assert answer.status_code == 202
    resumed = answer.json()
    assert resumed["state"] == "checkpointed"
    assert resumed["resumed_version"] == resumed["version"]
    again = post(box, request_id, "resume", body).json()
    assert again["resumed_version"] == resumed["resumed_version"]
    hand = box.hand()
    assert hand.take() == request_id
    hand.finish("def")
    assert box.show(request_id)["output"] == {"text": "abcdef"}
    # Still the same answer, until it fails again.
    assert post(box, request_id, "resume", body).json()["resumed_version"] == resumed["resumed_version"]


def test_resume_from_the_start_begins_a_new_output(box: Any) -> None:
    request_id = box.failed("abc")
    resumed = post(box, request_id, "resume", {"from": "start", "deadline_s": 300}).json()
    assert (resumed["state"], resumed["output_epoch"], resumed["output"]) == ("admitted", 1, {"text": ""})
    hand = box.hand()
    hand.take()
    hand.finish("xyz")
    assert box.show(request_id)["output"] == {"text": "xyz"}
    frames = box.client.get(f"/api/requests/{request_id}/events").json()["items"]
    assert [f["output"] for f in frames if f["type"] == "Resumed"] == ["restarted"]
    assert [(f["delta"]["from"], f["delta"]["to"], f["delta"]["text"]) for f in frames if "delta" in f] == [
        (0, 3, "abc"),
        (0, 3, "xyz"),
    ]


def test_resume_of_what_never_failed_conflicts(box: Any) -> None:
    answer = post(box, box.completed("x"), "resume")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "not_resumable"
    assert post(box, box.submit()["id"], "resume").status_code == 409


@pytest.mark.parametrize("body", [{"from": "middle"}, {"form": "start"}, {"deadline_s": -1}, [], "start"])
def test_resume_bodies_that_mean_nothing(box: Any, body: Any) -> None:
    assert post(box, box.failed("abc"), "resume", body).status_code == 400


def test_a_cancelled_error_stays_cancelled(box: Any) -> None:
    request_id = box.failed("abc")
    assert post(box, request_id, "cancel").json()["state"] == "cancelled"
    assert post(box, request_id, "resume").status_code == 409


def test_erasing_leaves_the_record_and_takes_the_words(box: Any) -> None:
    request_id = box.completed("secret ", "words")
    answer = box.client.delete(f"/api/requests/{request_id}/content")
    assert (answer.status_code, answer.content) == (204, b"")
    assert box.client.delete(f"/api/requests/{request_id}/content").status_code == 204
    view = box.show(request_id)
    assert (view["state"], view["output"]) == ("completed", {"text": None, "erased": True})
    for path in ("events", "replay", "replay?at=3", "export"):
        text = box.client.get(f"/api/requests/{request_id}/{path}").raise_for_status().text
        assert "secret" not in text.replace('"secret":', ""), path
        assert "words" not in text, path
    frames = box.client.get(f"/api/requests/{request_id}/events").json()["items"]
    assert [f["type"] for f in frames if f.get("erased")] == ["Checkpointed", "Completed"]
    assert not any("delta" in f for f in frames)
    assert frames[-1]["type"] == "ContentErased"


def test_erased_is_gone_and_active_is_not_erased(box: Any) -> None:
    request_id = box.failed("abc")
    assert box.client.delete(f"/api/requests/{request_id}/content").status_code == 204
    gone = post(box, request_id, "resume")
    assert gone.status_code == 410
    assert gone.json()["error"]["code"] == "erased"
    assert [c["action"] for c in box.show(request_id)["error"]["choices"]] == ["cancel"]
    busy = box.client.delete(f"/api/requests/{box.submit()['id']}/content")
    assert busy.status_code == 409
