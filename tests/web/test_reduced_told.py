"""What a person is told of an answer that is not the one asked for: another model, fewer tokens, nothing at all."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from pages import Page, read

from core.explain import sizes
from store import breakers
from store.laneviews import LaneRow, put_lane, set_serving
from store.models.catalog import NULL_ENTRY, Catalog
from store.settings import Settings
from web.commands import show

MIB = 1 << 20
SMALL = "null-small"


@pytest.fixture
def two(make_two: Callable[..., Any]) -> Any:
    """A service of two models, of which the second may answer for the first, which no lane serves."""
    box = make_two(models=("null", SMALL), fallback={"null": SMALL})

    def unit(tx: Any) -> None:
        contract = Catalog(box.paths.models).get(SMALL).contract
        for lane, device in (("gpu", "sim-0"), ("cpu", "cpu")):
            put_lane(tx, LaneRow(lane, SMALL, True, None, 2048, device, "null", contract))  # type: ignore[arg-type]
            set_serving(tx, lane, "null", "load-failed", actor="test")  # type: ignore[arg-type]

    box.writer.run(unit)
    return box


@pytest.fixture
def make_two(tmp_path: Path, box_class: Any) -> Any:
    made: list[Any] = []

    def make(**settings: Any) -> Any:
        made.append(box_class(tmp_path, Settings(**settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def box_class(make_box: Any) -> Any:
    return type(make_box())


def test_another_model_that_answers_is_told_everywhere(two: Any, capsys: pytest.CaptureFixture[str]) -> None:
    view = two.submit(allow_fallback_model=True)
    named = f"null, answered by {SMALL}"
    page = read(two, f"/requests/{view['id']}")
    assert named in page.text("facts")
    assert f"Answered by {SMALL} instead of null, because no lane serves now." in page.text("head")
    told = page.text("pictures")
    assert "Admission of null, which was asked for" in told
    assert "not run-gpu: the GPU lane is out" in told
    assert told.index("which was asked for") < told.rindex("Rule")
    rows = read(two, "/").text("requests")
    assert named in rows
    assert "other model" in rows
    assert view["degraded"]["model"] == SMALL
    show._print(view, [])
    assert named in capsys.readouterr().out
    assert show.reduced(view) == [f"{named}, because no lane serves now"]


def test_it_is_still_told_after_it_was_sent_to_the_cpu(two: Any) -> None:
    two.writer.run(lambda tx: set_serving(tx, "gpu", SMALL, "load-failed", actor="test"))
    view = two.submit(allow_fallback_model=True)
    assert view["lane"] == "cpu"
    head = read(two, f"/requests/{view['id']}").text("head")
    assert f"Answered by {SMALL} instead of null, because no lane serves now. Sent to the CPU lane because" in head
    assert "other model; the GPU lane is out" in read(two, "/").text("requests")


def test_the_banner_names_the_model_that_may_answer(two: Any) -> None:
    alarm = read(two, "/").text("alarm")
    assert f"Answers instead: GPU lane · {SMALL}, where the request allows it" in alarm
    assert "Answers instead: nothing" not in alarm


def test_a_shorter_answer_says_by_how_much(make_box: Any, capsys: pytest.CaptureFixture[str]) -> None:
    # 1,024 MiB less 256 of headroom less 128 that cannot be seen: 640 tokens of 1 MiB; five are the prompt's.
    box = make_box()
    row = LaneRow("gpu", "null", True, None, 2048, "sim-0", "null", NULL_ENTRY.contract, token_bytes=MIB)
    box.writer.run(lambda tx: put_lane(tx, row))
    view = box.submit(prompt="hello", max_tokens=1000, allow_shrink=True)
    given = view["progress"]["of"]
    assert given < 1000
    words = f"asked 1,000 tokens, given {given}"
    page = read(box, f"/requests/{view['id']}")
    assert words in page.text("head")
    assert words in page.text("facts")
    show._print(view, [])
    assert words in capsys.readouterr().out
    assert words in show.reduced(view)


def test_a_refused_request_shows_nothing_that_never_was(make_box: Any) -> None:
    box = make_box()
    for lane in ("gpu", "cpu"):
        box.lane_out(lane, "load-failed")
    refused = box.client.post("/api/requests", json={"model": "null", "prompt": "hello"}).json()["request_id"]
    page = read(box, f"/requests/{refused}")
    assert "Nothing is durable yet" not in box.client.get(f"/requests/{refused}").text
    assert "Before the first attempt" not in page.text("events")
    assert "Attempt" not in page.text("facts")
    assert "Prompt" not in page.text("facts")
    assert page.text("output") == ""


def test_a_device_that_is_still_lost_is_not_tried(make_box: Any) -> None:
    box = make_box()
    policy = box.settings.policy
    box.writer.run(lambda tx: breakers.device_lost(tx, "sim-0", policy, reason="gone", actor="monitor"))
    said = "he device is still lost; there is nothing to try until it answers"

    def reads(state: str) -> None:
        document = msgspec.json.encode({"state": state, "simulated": True})
        box.writer.run(
            lambda tx: tx.execute(
                "INSERT INTO readings (device, at_us, doc) VALUES ('sim-0', ?, ?) "
                "ON CONFLICT (device) DO UPDATE SET at_us=excluded.at_us, doc=excluded.doc",
                (tx.now_us + 1, document),
            )
        )

    reads("lost")
    answer = box.client.post("/api/devices/sim-0/reset-breaker", json={"reason": "look"})
    assert (answer.status_code, said in answer.json()["detail"]) == (409, True)
    with httpx.Client(base_url=box.url, timeout=30) as visitor:
        token = re.search(r'name="_form" value="([^"]+)"', visitor.get("/").text)
        assert token
        page = visitor.post("/devices/sim-0/reset-breaker", data={"_form": token[1], "reason": "look"})
    assert (page.status_code, said in Page(page.text).text("main")) == (409, True)
    assert not box.client.get("/api/events?type=BreakerHalfOpened").json()["items"]
    reads("ok")
    assert box.client.post("/api/devices/sim-0/reset-breaker", json={"reason": "look"}).status_code == 200


def test_a_frozen_page_says_when_it_was_accepted_not_how_long_ago(make_box: Any) -> None:
    box = make_box()
    id_ = box.completed("a", "b")
    whole = box.client.get(f"/requests/{id_}?at=1").text
    accepted = whole.partition("accepted ")[2].partition("</p>")[0]
    assert "ago" not in accepted
    assert box.show(id_)["created_at"][:19].replace("T", " ") + " UTC" in accepted


def test_the_longest_answer_that_can_be_asked_for_is_in_the_form(make_box: Any) -> None:
    field = next(one for one in read(make_box(), "/").all("input") if one.get("id") == "max_tokens")
    assert field["max"] == "2048"


def test_a_file_that_is_no_export_is_named_so(make_box: Any) -> None:
    box = make_box()
    with httpx.Client(base_url=box.url, timeout=30) as visitor:
        token = re.search(r'name="_form" value="([^"]+)"', visitor.get("/imports").text)
        assert token
        answer = visitor.post("/imports", data={"_form": token[1]}, files={"file": ("x.json", b"no json")})
    assert answer.status_code == 400
    assert "This file is not an exported history" in Page(answer.text).text("main")


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        (
            f"{900 * MIB} bytes are needed, {830 * MIB} are free ({70 * MIB} short); 0 are held by other programs",
            "900.0 MiB are needed, 830.0 MiB are free (70.0 MiB short); 0 B are held by other programs",
        ),
        (
            "1048577 bytes are needed, 1048576 are free (1 short)",
            "1.0 MiB (1,048,577 bytes) are needed, 1.0 MiB (1,048,576 bytes) are free (1 B short)",
        ),
        ("5 tokens are asked for, and the lane holds 4", "5 tokens are asked for, and the lane holds 4"),
        ("2048 bytes for each of 20 tokens", "2.0 KiB for each of 20 tokens"),
    ],
)
def test_bytes_are_shown_for_people_and_exactly_where_the_rounding_hides_them(recorded: str, shown: str) -> None:
    assert sizes(recorded) == shown
