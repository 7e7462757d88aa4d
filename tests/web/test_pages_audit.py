"""The audit page and the journal as lines: everything is there once, in order, narrowed by what the address says."""

import json
import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from pages import HOSTILE, inert, read

from core import events as ev
from store import audit
from store.verify import anchor

ROWS = 50


def seqs(page: Any) -> list[int]:
    return [int(one[1:]) for one in page.order if re.fullmatch(r"e[0-9]+", one)]


def lines(box: Any, query: str = "") -> tuple[list[dict[str, Any]], Any]:
    answer = box.client.get(f"/api/events?format=ndjson{query}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()], answer


def noted(box: Any, count: int, stream: str = "device-sim-0") -> None:
    """Events that belong to no request."""

    def unit(tx: Any) -> None:
        for number in range(count):
            tx.append(stream, ev.PressureRose(number, 1000), actor="test")

    box.writer.run(unit)


def test_pages_hold_the_whole_journal_once_newest_first(make_box: Any) -> None:
    box = make_box()
    noted(box, 2 * ROWS + 7)
    head = box.client.get("/api/chain").json()["seq"]
    seen, path = [], "/events"
    while path:
        page = read(box, path)
        seen += seqs(page)
        path = next((a["href"] for a in page.all("a") if a.get("rel") == "next"), "")
        noted(box, 3)  # what comes meanwhile moves nothing
    assert seen == list(range(head, 0, -1))


def test_checkpoints_of_two_that_take_turns_are_one_line_for_each(make_box: Any) -> None:
    box = make_box()
    box.submit()
    moved = box.hand()
    first = moved.take()
    moved.die()
    gpu, cpu = box.hand("gpu"), box.hand("cpu")
    assert cpu.take() == first
    second = box.submit()["id"]
    assert gpu.take() == second
    start = box.client.get("/api/chain").json()["seq"]
    for _ in range(40):
        gpu.say("x")
        cpu.say("y")
    page = read(box, "/events")
    # By hand: 80 events, in turn; the newest of each request stands for its 40.
    assert seqs(page)[:3] == [start + 80, start + 79, start]
    assert page.text(f"e{start + 79}").startswith("40 checkpoints, the last: Token 40 is durable")
    assert f"events {start + 1} to {start + 79}" in page.text(f"e{start + 79}")
    for seq, id_ in ((start + 79, second), (start + 80, first)):
        href = next(a["href"] for a in page.all("a") if f"stream={id_}" in a["href"] and "Checkpointed" in a["href"])
        assert seqs(read(box, href)) == list(range(seq, start, -2)), "the link leads to each of them"
    twin = next(a["href"] for a in page.all("a") if "order=newest" in a.get("href", ""))
    items = box.client.get(f"{twin}&limit=500").json()["items"]
    assert [item["seq"] for item in items] == list(range(start + 80, 0, -1)), "JSON tells each event"


def test_two_checkpoints_are_two_lines_and_a_page_goes_on_behind_what_it_folded(
    make_box: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from web.dashboard import audit as pages

    box = make_box()
    box.submit()
    hand = box.hand()
    hand.take()
    hand.say("a")
    hand.say("b")
    head = box.client.get("/api/chain").json()["seq"]
    assert seqs(read(box, "/events"))[:3] == [head, head - 1, head - 2]
    for _ in range(20):
        hand.say("x")
    noted(box, 1)
    monkeypatch.setattr(pages, "ROWS", 2)
    monkeypatch.setattr(pages, "_BATCH", 4)  # so that one page takes several reads
    seen, path = [], "/events"
    while path:
        page = read(box, path)
        for seq in seqs(page):
            told = re.search(r"events ([0-9]+) to ([0-9]+)", page.text(f"e{seq}"))
            seen += list(range(int(told[2]), int(told[1]) - 1, -1)) if told else [seq]
        path = next((a["href"] for a in page.all("a") if a.get("rel") == "next"), "")
    assert seen == list(range(head + 21, 0, -1)), "nothing is told twice, nothing is left out"


def test_each_event_is_a_sentence_with_its_stream_its_cause_and_its_json(box: Any) -> None:
    id_ = box.failed("abc")
    page = read(box, "/events")
    for event in box.client.get(f"/api/requests/{id_}/events").json()["items"]:
        told = page.text(f"e{event['seq']}")
        assert event["because"] in told
        assert event["type"] in told
        assert json.loads(page.texts[f"raw-{event['seq']}"].removeprefix(" JSON").strip())["seq"] == event["seq"]
    links = {a["href"] for a in page.all("a")}
    assert f"/requests/{id_}" in links
    failed = next(e for e in box.client.get(f"/api/requests/{id_}/events").json()["items"] if e["type"] == "Failed")
    assert f"because of event {failed['cause']}" in page.text(f"e{failed['seq']}")
    assert f"/requests/{id_}?at=4" in links


def test_a_cause_outside_of_requests_leads_to_its_place_in_the_journal(make_box: Any) -> None:
    box = make_box()
    noted(box, 1)
    cause = box.client.get("/api/chain").json()["seq"]
    box.writer.run(lambda tx: tx.append("lane-gpu", ev.LaneOut("gpu", "device-lost"), actor="test", cause=cause))
    href = next(a["href"] for a in read(box, "/events").all("a") if a.get("href", "").endswith(f"#e{cause}"))
    assert seqs(read(box, href.partition("#")[0]))[0] == cause


def test_the_form_keeps_what_was_asked_and_narrows_by_it(make_box: Any) -> None:
    box = make_box()
    first, second = box.completed("a"), box.failed("b")
    page = read(box, f"/events?type=Started&stream={first}&since=1h&until=")
    (only,) = seqs(page)
    assert "Started" in page.text(f"e{only}")
    fields = {i["name"]: i.get("value", "") for i in page.all("input")}
    assert (fields["stream"], fields["since"], fields["until"]) == (first, "1h", "")
    assert [o for o in page.all("option") if "selected" in o], "the type stays chosen"
    assert len(seqs(read(box, f"/events?stream={second}"))) == 5
    assert seqs(read(box, "/events?until=1h")) == []
    assert "No event matches" in read(box, "/events?until=1h").text("events")


def test_the_twin_tells_the_same_and_the_export_what_is_narrowed(make_box: Any) -> None:
    box = make_box()
    box.completed("a")
    id_ = box.failed("b")
    page = read(box, f"/events?stream={id_}")
    twin = next(a["href"] for a in page.all("a") if "order=newest" in a.get("href", ""))
    assert [e["seq"] for e in box.client.get(twin).json()["items"]] == seqs(page)
    export = next(a["href"] for a in page.all("a") if "format=ndjson" in a.get("href", ""))
    told, answer = lines(box, "&" + urlsplit(export).query.replace("&format=ndjson", ""))
    assert [e["seq"] for e in told] == sorted(seqs(page))
    assert "link" not in answer.headers
    whole, _ = lines(box)
    assert [e["seq"] for e in whole] == list(range(1, len(whole) + 1))
    by_accept = box.client.get("/api/events", headers={"accept": "application/x-ndjson"})
    assert by_accept.text.count("\n") == len(whole)


def test_an_export_has_a_bound_and_says_where_it_goes_on(make_box: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from web.api import journal

    monkeypatch.setattr(journal, "MOST_LINES", 700)  # more than one read
    box = make_box()
    noted(box, 1500, "device-other")
    seen: list[int] = []
    query = "&type=PressureRose"
    for expected in (700, 700, 100):
        told, answer = lines(box, query)
        assert len(told) == expected
        seen += [e["data"]["used"] for e in told]
        following = re.fullmatch(r'<(.+)>; rel="next"', answer.headers.get("link", ""))
        if following is None:
            break
        pairs = parse_qsl(urlsplit(following[1]).query)
        query = "".join(f"&{name}={value}" for name, value in pairs if name != "format")
    assert seen == list(range(1500))


def test_the_chain_shows_its_head_and_whether_the_anchor_still_fits(make_box: Any) -> None:
    box = make_box()
    assert "none yet" in read(box, "/events").text("chain")
    anchor(box.paths)
    noted(box, 1)
    told = box.client.get("/api/chain").json()
    assert (told["anchor_seq"], told["fits"]) == (told["seq"] - 1, True)
    page = read(box, "/events")
    assert f"event {told['seq']} {told['hash']}" in page.text("chain")
    assert "still in its place" in page.text("chain")
    with (box.paths.root / "anchors.txt").open("a") as file:
        file.write(f"{told['seq']} {'0' * 64}\n999")  # and a line that is not whole
    assert box.client.get("/api/chain").json()["fits"] is False
    assert "the journal says otherwise" in read(box, "/events").text("chain")
    assert "failsoft verify" in read(box, "/events").text("chain")


def test_a_long_file_of_anchors_is_read_from_its_end(make_box: Any) -> None:
    box = make_box()
    (box.paths.root / "anchors.txt").write_text("".join(f"{n} {n:064x}\n" for n in range(1, 500)))
    assert audit.last_anchor(box.paths) == (499, f"{499:064x}")


@pytest.mark.parametrize(
    "query",
    [
        "type=Nothing",
        "since=soon",
        "since=1h&until=2h",
        "before=x",
        "stream=a&stream=b",
    ],
)
def test_what_cannot_be_asked_is_a_page_that_says_so(box: Any, query: str) -> None:
    answer = box.client.get(f"/events?{query}")
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/html")
    assert query.partition("=")[0] in answer.text


@pytest.mark.parametrize("query", ["after=1&order=newest", "before=5", "format=xml", "format=ndjson&before=3"])
def test_orders_that_do_not_go_together_are_refused(box: Any, query: str) -> None:
    assert box.client.get(f"/api/events?{query}").status_code == 400


def test_hostile_text_is_inert(make_box: Any) -> None:
    box = make_box()
    rtl = "\u202eevil " + "w" * 500

    def unit(tx: Any) -> None:
        tx.append(f"device-{HOSTILE}", ev.DeviceFound(HOSTILE, False, None), actor=rtl)
        tx.append(f"device-{rtl}", ev.DeviceLost(rtl, 2), actor=HOSTILE)

    box.writer.run(unit)
    inert(box, "/events")
    hostile = read(box, "/events")
    again = next(a["href"] for a in hostile.all("a") if "stream=device-%3C" in a.get("href", ""))
    inert(box, again)
    assert len(seqs(read(box, again))) == 1
