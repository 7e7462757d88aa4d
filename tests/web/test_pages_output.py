"""Outputs on pages: the end of a long one, all of a short one, and the whole as text at an address of its own."""

from typing import Any

import pytest
from pages import HOSTILE, read

LINE = "0123456789abcde\n"  # 16 characters
STEP = LINE * 1024  # 16,384 characters, as far as the window moves at a time


def spoken(box: Any, *texts: str) -> str:
    """A request that runs, with these texts durable, one token each."""
    id_ = str(box.submit(failover="boundary")["id"])
    hand = box.hand()
    assert hand.take() == id_
    for text in texts:
        hand.say(text, tokens=(1,))
    return id_


@pytest.mark.parametrize(
    ("steps", "left_out"),
    [(2, 0), (3, 1), (4, 2), (9, 7)],
)
def test_a_page_shows_the_last_two_steps_and_never_three(box: Any, steps: int, left_out: int) -> None:
    id_ = spoken(box, *[STEP] * steps, "and 7\u00fc\U0001f98a")
    page = read(box, f"/requests/{id_}")
    assert page.texts["output-text"] == STEP * (steps - left_out) + "and 7\u00fc\U0001f98a"
    (pre,) = [one for one in page.all("pre") if one.get("id") == "output-text"]
    assert pre["data-start"] == str(left_out * len(STEP))
    (note,) = [one for one in page.all("p") if one.get("id") == "output-cut"]
    assert ("hidden" in note) == (left_out == 0)


def test_nearly_three_steps_are_shown_whole(box: Any) -> None:
    text = STEP * 3
    assert read(box, f"/requests/{spoken(box, text[:-1])}").texts["output-text"] == text[:-1]


def test_one_chunk_larger_than_the_window_is_cut_inside(box: Any) -> None:
    id_ = spoken(box, "a", STEP * 4 + "b", "c")
    assert read(box, f"/requests/{id_}").texts["output-text"] == ("a" + STEP * 4 + "bc")[2 * len(STEP) :]


def test_what_begins_with_an_empty_line_keeps_it(box: Any) -> None:
    id_ = spoken(box, "\n\nfirst words")
    assert read(box, f"/requests/{id_}").texts["output-text"] == "\n\nfirst words"


def test_the_whole_is_text_at_any_moment_of_any_run(box: Any) -> None:
    id_ = spoken(box, STEP * 4, HOSTILE)
    first = STEP * 4 + HOSTILE
    answer = box.client.get(f"/requests/{id_}/output")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.text == first
    # 1 Admitted, 2 Started, 3 and 4 the texts.
    for at, text in ((2, ""), (3, STEP * 4), (4, first)):
        assert box.client.get(f"/requests/{id_}/output?at={at}").text == text
    page = read(box, f"/requests/{id_}?at=3")
    assert f"/requests/{id_}/output?run=1&at=3" in [one.get("href") for one in page.all("a")]


def test_earlier_runs_are_cut_the_same_way_and_kept_whole(box: Any) -> None:
    id_ = str(box.submit(failover="boundary")["id"])
    hand = box.hand()
    hand.take()
    hand.say(STEP * 4 + "first run", tokens=(1,))
    hand.die()
    box.client.post(f"/api/requests/{id_}/resume", json={"from": "start"}).raise_for_status()
    hand = box.hand()
    assert hand.take() == id_
    hand.say(STEP * 3 + "second run", tokens=(1,))
    page = read(box, f"/requests/{id_}")
    assert page.texts["output-text"] == STEP * 2 + "second run"
    assert page.texts["older-0"].endswith(STEP * 2 + "first run")
    assert page.texts["older-0"].count(LINE) == 2 * 1024
    links = [one.get("href") for one in page.all("a")]
    for run, text in ((1, STEP * 4 + "first run"), (2, STEP * 3 + "second run")):
        assert f"/requests/{id_}/output?run={run}" in links
        assert box.client.get(f"/requests/{id_}/output?run={run}").text == text
    assert box.client.get(f"/requests/{id_}/output").text == STEP * 3 + "second run"
    assert box.client.get(f"/requests/{id_}/output?run=2&at=4").status_code == 400, "there was one run only"
    imported = box.client.post("/api/imports", json=box.client.get(f"/api/requests/{id_}/export").json()).json()["id"]
    page = read(box, f"/imports/{imported}")
    assert page.texts["output-text"] == STEP * 2 + "second run"
    (link,) = [one["href"] for one in page.all("a") if "output?run=1" in one.get("href", "")]
    assert box.client.get(link).text == STEP * 4 + "first run"


def test_there_is_no_text_of_what_is_erased_or_never_was(box: Any) -> None:
    id_ = box.completed("secret words ", "here")
    assert box.client.get(f"/requests/{id_}/output").text == "secret words here"
    box.erase(id_)
    for query in ("", "?at=3", "?run=1"):
        answer = box.client.get(f"/requests/{id_}/output{query}")
        assert answer.status_code == 410
        assert "secret" not in answer.text
    for address in ("/requests/req_none/output", "/imports/imp_none/output"):
        assert box.client.get(address).status_code == 404
    for query in ("?run=0", "?run=2", "?run=x", "?at=0", "?at=99"):
        assert box.client.get(f"/requests/{box.submit()['id']}/output{query}").status_code == 400
