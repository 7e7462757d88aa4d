"""What can be done from the pages without scripts: forms, their tokens, and the page one sees next."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pages import Page


class Visitor:
    """A browser without scripts: it keeps cookies, and sends a form as the page holds it."""

    def __init__(self, box: Any) -> None:
        self.http = httpx.Client(base_url=box.url, timeout=30)

    def open(self, path: str) -> str:
        return self.http.get(path).raise_for_status().text

    def token(self, path: str) -> str:
        found = re.search(r'name="_form" value="([^"]+)"', self.open(path))
        assert found
        return found[1]

    def send(self, path: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        return self.http.post(path, data=fields, headers=headers)


@pytest.fixture
def visitor(box: Any) -> Iterator[Visitor]:
    made = Visitor(box)
    yield made
    made.http.close()


def events(box: Any, id_: str) -> list[str]:
    return [one["type"] for one in box.client.get(f"/api/requests/{id_}/events").json()["items"]]


def page_key(page: str) -> str:
    key = re.search(r'name="key" value="([^"]+)"', page)
    assert key
    return key[1]


def prompt_form(visitor: Visitor, **changed: str) -> dict[str, str]:
    fields = {
        "_form": visitor.token("/"),
        "key": page_key(visitor.open("/")),
        "prompt": "hello",
        "model": "null",
        "max_tokens": "16",
    }
    return fields | changed


def test_a_prompt_can_be_sent_from_the_page(box: Any, visitor: Visitor) -> None:
    answer = visitor.send("/submit", prompt_form(visitor, prompt="line one\r\nline two"))
    assert answer.status_code == 303
    id_ = answer.headers["location"].removeprefix("/requests/")
    view = box.show(id_)
    assert (view["state"], view["progress"]["of"]) == ("admitted", 16)
    page = visitor.open(answer.headers["location"])
    assert "<h3>user</h3>" in page
    assert ">\nline one\nline two</pre>" in page


def test_sent_twice_it_is_one_request(box: Any, visitor: Visitor) -> None:
    fields = prompt_form(visitor)
    first, second = visitor.send("/submit", fields), visitor.send("/submit", fields)
    assert first.status_code == second.status_code == 303
    assert first.headers["location"] == second.headers["location"]


@pytest.mark.parametrize(
    ("changed", "status", "told"),
    [
        ({"prompt": "  "}, 400, "The prompt is empty"),
        ({"max_tokens": "many"}, 400, "Max tokens must be a whole number"),
        ({"max_tokens": "5000"}, 422, "the longest lane of null holds 2048"),
        ({"model": "<b>none</b>"}, 422, "There is no model"),
    ],
)
def test_what_cannot_be_sent_is_explained_on_a_page(
    visitor: Visitor, changed: dict[str, str], status: int, told: str
) -> None:
    fields = prompt_form(visitor, **changed)
    answer = visitor.send("/submit", fields)
    assert answer.status_code == status
    assert told in answer.text
    page = Page(answer.text)
    assert told in page.text("wrong")
    assert f">{fields['prompt']}</textarea>" in answer.text
    assert f'value="{fields["max_tokens"]}"' in answer.text
    assert "<b>none" not in answer.text
    assert page.text("live") == ""
    again = visitor.send(
        "/submit", fields | {"prompt": "x", "model": "null", "max_tokens": "8", "key": page_key(answer.text)}
    )
    assert again.status_code == 303


def test_a_refused_prompt_leads_to_its_record(box: Any, visitor: Visitor) -> None:
    fields = prompt_form(visitor)
    for lane in ("gpu", "cpu"):
        box.lane_out(lane, "load-failed")
    answer = visitor.send("/submit", fields)
    assert answer.status_code == 303
    assert "Refused because no lane serves now." in visitor.open(answer.headers["location"])


def test_cancel_from_the_page(box: Any, visitor: Visitor) -> None:
    id_ = box.submit()["id"]
    answer = visitor.send(f"/requests/{id_}/cancel", {"_form": visitor.token(f"/requests/{id_}")})
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/requests/{id_}"
    assert box.show(id_)["state"] == "cancelled"


def test_a_cancel_that_comes_too_late_is_explained(box: Any, visitor: Visitor) -> None:
    id_ = box.completed("a", "b")
    answer = visitor.send(f"/requests/{id_}/cancel", {"_form": visitor.token(f"/requests/{id_}")})
    assert answer.status_code == 409
    assert "only active requests and resumable errors can be cancelled" in answer.text
    assert f'href="/requests/{id_}"' in answer.text


@pytest.mark.parametrize(("origin", "units", "epoch"), [("checkpoint", 3, 0), ("start", 0, 1)])
def test_resume_from_the_page(box: Any, visitor: Visitor, origin: str, units: int, epoch: int) -> None:
    id_ = box.failed("abc")
    answer = visitor.send(f"/requests/{id_}/resume", {"_form": visitor.token(f"/requests/{id_}"), "from": origin})
    assert answer.status_code == 303
    view = box.show(id_)
    assert (view["progress"]["done"], view["output_epoch"]) == (units, epoch)
    assert events(box, id_)[-1] == "Resumed"


def test_a_resume_needs_a_choice_and_an_error(box: Any, visitor: Visitor) -> None:
    id_ = box.failed("abc")
    token = visitor.token(f"/requests/{id_}")
    assert visitor.send(f"/requests/{id_}/resume", {"_form": token}).status_code == 400
    done = box.completed("a", "b")
    assert visitor.send(f"/requests/{done}/resume", {"_form": token, "from": "start"}).status_code == 409
    assert visitor.send("/requests/req_none/resume", {"_form": token, "from": "start"}).status_code == 404


# ---- forms from elsewhere ------------------------------------------------------------------------------------


def test_a_form_without_the_token_of_this_browser_changes_nothing(box: Any, visitor: Visitor) -> None:
    id_ = box.submit()["id"]
    address = f"/requests/{id_}/cancel"
    mine = visitor.token(f"/requests/{id_}")
    stranger = Visitor(box)
    theirs = stranger.token("/")
    assert theirs != mine
    refused = [
        visitor.send(address, {"anything": "else"}),
        visitor.send(address, {"_form": theirs}),
        visitor.send(address, {"_form": mine}, Origin="http://evil.example"),
        visitor.send(address, {"_form": mine}, **{"Sec-Fetch-Site": "cross-site"}),
        visitor.send(address, {"_form": mine}, **{"Sec-Fetch-Site": "same-site"}),
        httpx.post(box.url + address, data={"_form": mine}),
        httpx.post(box.url + address, data={"_form": ""}),
    ]
    stranger.http.close()
    assert [one.status_code for one in refused] == [403] * len(refused)
    assert events(box, id_) == ["Admitted"]
    assert visitor.send(address, {"_form": mine}, **{"Sec-Fetch-Site": "same-origin"}).status_code == 303


def test_the_token_cannot_be_read_by_scripts_and_stays(box: Any, visitor: Visitor) -> None:
    first = visitor.http.get("/")
    told = first.headers["set-cookie"]
    assert "HttpOnly" in told
    assert "SameSite=strict" in told
    token = visitor.token("/")
    again = visitor.http.get("/")
    assert "set-cookie" not in again.headers
    assert visitor.token("/") == token


def test_only_forms_are_read_as_forms(box: Any, visitor: Visitor) -> None:
    id_ = box.submit()["id"]
    token = visitor.token("/")
    answer = visitor.http.post(f"/requests/{id_}/cancel", json={"_form": token})
    assert answer.status_code == 400
    garbage = visitor.http.post(
        f"/requests/{id_}/cancel",
        content=b"_form=" + token.encode() + b"&a=%ff",
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert garbage.status_code == 400
    huge = visitor.send(f"/requests/{id_}/cancel", {"_form": token, "x": "y" * 60_000})
    assert huge.status_code == 413
    assert events(box, id_) == ["Admitted"]
