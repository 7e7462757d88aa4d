"""What the pages say, read as a browser without scripts reads them."""

import html
import re
from typing import Any

import pytest
from pages import HOSTILE, Page, read

from core import events as ev
from core.decision import Decision, SafepointFacts
from store.laneviews import LaneRow, put_lane, set_resident

# ---- for every page ------------------------------------------------------------------------------------------


RECORD = {
    "audit": "/events",
    "what-if": "/what-if",
    "models": "/models",
    "model": "/models/null",
    "imports": "/imports",
}


@pytest.fixture(params=["overview", "request", "travel", "stopped", "missing", *RECORD])
def any_page(request: pytest.FixtureRequest, box: Any) -> Any:
    if request.param in RECORD:
        return box.client.get(RECORD[request.param])
    path = {
        "overview": lambda: "/",
        "request": lambda: f"/requests/{box.moved()}",
        "travel": lambda: f"/requests/{box.moved()}?at=6",
        "stopped": lambda: f"/requests/{box.failed('abc')}",
        "missing": lambda: "/requests/req_unknown",
    }[request.param]()
    return box.client.get(path)


def test_nothing_on_a_page_needs_more_than_the_policy_allows(any_page: Any) -> None:
    (policy,) = any_page.headers.get_list("content-security-policy")
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    for tag, attrs in Page(any_page.text).elements:
        assert "style" not in attrs, (tag, attrs)
        assert not [name for name in attrs if name.startswith(("on", "hx-on"))], (tag, attrs)
        assert tag != "style"
        if tag == "script":
            assert attrs["src"].startswith("/static/")
        for name in ("src", "href", "action", "hx-get"):
            assert not re.match(r"(?i)[a-z]+:|//", attrs.get(name, "")), (tag, attrs)


def test_headers_keep_a_page_private(any_page: Any) -> None:
    assert any_page.headers["cache-control"] == "private, no-cache"
    assert any_page.headers["x-content-type-options"] == "nosniff"
    assert "hx-request" in any_page.headers["vary"].lower()


def test_a_page_can_be_walked_by_ear(any_page: Any) -> None:
    page = Page(any_page.text)
    assert len(page.all("h1")) == 1
    assert len(page.all("main")) == 1
    assert page.all("nav")
    assert all(nav.get("aria-label") for nav in page.all("nav"))
    assert page.all("html") == [{"lang": "en"}]
    first_link = page.all("a")[0]
    assert first_link == {"class": "skip", "href": "#main"}
    tables, captions = len(page.all("table")), len(page.all("caption"))
    assert tables == captions
    assert all(th.get("scope") in {"col", "row"} for th in page.all("th"))
    labelled = {label["for"] for label in page.all("label")}
    for tag in ("textarea", "select", "input"):
        for field in page.all(tag):
            assert field.get("type") == "hidden" or field["id"] in labelled
    for tag, attrs in page.elements:
        if "aria-labelledby" in attrs:
            assert attrs["aria-labelledby"] in page.texts, (tag, attrs)


def test_what_a_page_loads_is_there(box: Any) -> None:
    page = read(box, "/")
    wanted = [one["src"] for one in page.all("script")] + [one["href"] for one in page.all("link")]
    assert "/static/vendor/htmx.min.js" in wanted
    for path in wanted:
        assert box.client.get(path).status_code == 200, path


# ---- overview ------------------------------------------------------------------------------------------------


def test_an_empty_service_tells_what_to_do(make_box: Any) -> None:
    box = make_box()
    page = read(box, "/")
    command = page.text("requests")
    assert f"curl {box.url}/api/requests" in command
    body = html.unescape(command.partition("-d '")[2].partition("'")[0])
    accepted = box.client.post("/api/requests", content=body, headers={"content-type": "application/json"})
    assert accepted.status_code == 202, "the command on the page does not work"


def test_a_device_is_labelled_simulated_and_unknown_is_not_zero(box: Any) -> None:
    page = read(box, "/")
    devices = page.text("devices")
    assert "Simulated GPU simulated" in devices
    assert "unknown, no reading yet" in devices
    assert "In use Ours Foreign Size 0 B unknown unknown unknown 1.00 GiB" in devices


def test_a_reading_is_drawn_to_scale_and_stands_in_the_table(make_box: Any) -> None:
    box = make_box()
    doc = '{"state":"ok","total":1073741824,"used":536870912,"ours":268435456,"foreign":268435456}'
    box.writer.run(lambda tx: tx.execute("INSERT INTO readings VALUES ('sim-0', ?, ?)", (tx.now_us, doc)))
    page = read(box, "/")
    assert "512 MiB 256 MiB 256 MiB 1.00 GiB" in page.text("devices")
    drawn = {a["class"]: (float(a["x"]), float(a["width"])) for a in page.all("rect") if a["class"].startswith("seg ")}
    assert drawn["seg ours"] == (0, 250)
    assert drawn["seg foreign"] == (250, 250)


def test_a_lane_whose_model_is_being_loaded_says_so_and_since_when(make_box: Any) -> None:
    box = make_box()

    def worker(state: str, ago_s: int = 0) -> None:
        def unit(tx: Any) -> None:
            tx.execute("DELETE FROM runners")
            tx.execute(
                "INSERT INTO runners (id, lane, model, device, engine, pid, ticks, boot_id, state, rss_bytes, beat_us, "
                "started_us) VALUES ('r', 'gpu', 'null', 'sim-0', 'null', 1, 1, 'b', ?, 0, ?, ?)",
                (state, tx.now_us, tx.now_us - ago_s * 1_000_000),
            )

        box.writer.run(unit)

    def gpu() -> str:
        return str(read(box, "/").text("lanes")).partition("GPU simulated ")[2].partition(" CPU ")[0]

    assert gpu().startswith("starting 0 0 of 64"), "nobody is there yet"
    worker("loading", ago_s=7200)
    assert gpu().startswith("loading began 2 h ago 0 0 of 64")
    worker("idle")
    assert gpu().startswith("serving 0 0 of 64")
    box.writer.run(lambda tx: (tx.execute("DELETE FROM runners"), set_resident(tx, "gpu", "null", resident=False)))
    assert gpu().startswith("serving on demand 0 0 of 64")
    worker("loading")
    box.lane_out("gpu", "load-failed")
    assert gpu().startswith("out the model could not be loaded 0 0 of 64")


def test_the_banner_comes_before_the_heading_and_goes_away(box: Any) -> None:
    assert read(box, "/").text("alarm") == ""
    box.lane_out("gpu", "load-failed")
    page = read(box, "/")
    assert page.order.index("alarm") < page.order.index("h1")
    alarm = page.text("alarm")
    assert "GPU lane, null: The GPU lane takes no new work: the model could not be loaded." in alarm
    assert "Answers instead: CPU lane · null · 2,048 tokens each, one at a time, 0 of 32 places taken" in alarm
    assert page.text("spoken").startswith("Degraded. GPU lane, null")
    event = next(a["href"] for a in page.all("a") if a["href"].startswith("/events?stream=lane-gpu"))
    path, _, place = event.partition("#")
    told = read(box, path).text(place)
    assert told.startswith("LaneOut The GPU lane takes no new work: the model could not be loaded.")
    box.lane_out("gpu", None)
    page = read(box, "/")
    assert page.text("alarm") == ""
    assert page.text("spoken") == ""


def test_nothing_answers_when_both_lanes_are_out(box: Any) -> None:
    box.lane_out("gpu", "load-failed")
    box.lane_out("cpu", "load-failed")
    assert read(box, "/").text("alarm").count("Answers instead: nothing") == 2


def test_a_machine_without_accelerator_is_not_degraded(box: Any) -> None:
    box.lane_out("gpu", "no-device")
    box.submit()
    assert read(box, "/").text("alarm") == ""


def test_completed_after_failover_does_not_look_like_completed(box: Any) -> None:
    plain, scarred = box.completed("a", "b"), box.moved()
    page = read(box, "/")
    rows = page.text("requests")
    assert rows.partition(scarred[-7:])[2].startswith(" completed after failover CPU")
    assert page.order.index(f"row-{scarred}") < page.order.index(f"row-{plain}"), "newest first"
    after = rows.partition(plain[-7:])[2]
    assert after.startswith(" completed GPU")


def test_requests_by_state_and_by_page(make_box: Any) -> None:
    box = make_box(gpu_queue_limit=100)
    ids = [box.submit()["id"] for _ in range(27)]
    box.client.post(f"/api/requests/{ids[3]}/cancel")
    only = read(box, "/?state=cancelled")
    assert [one for one in only.order if one.startswith("row-")] == [f"row-{ids[3]}"]
    first = read(box, "/")
    older = next(a["href"] for a in first.all("a") if "cursor=" in a["href"])
    second = read(box, older.partition("#")[0])
    seen = [one.removeprefix("row-") for page in (first, second) for one in page.order if one.startswith("row-")]
    assert seen == list(reversed(ids))
    wrong = box.client.get("/?state=<b>")
    assert wrong.status_code == 400
    assert "<b>" not in wrong.text


def test_the_same_address_gives_the_parts_alone(box: Any) -> None:
    for path in ("/", f"/requests/{box.moved()}", f"/requests/{box.moved()}?at=3"):
        whole, parts = read(box, path), read(box, path, **{"HX-Request": "true"})
        assert not parts.all("html")
        swapped = [attrs["id"] for _tag, attrs in parts.elements if attrs.get("hx-swap-oob") == "true"]
        assert swapped
        assert set(swapped) <= set(whole.order), "a part has no place on the page"
        assert not [1 for _tag, attrs in whole.elements if "hx-swap-oob" in attrs]
        back = read(box, path, **{"HX-Request": "true", "HX-History-Restore-Request": "true"})
        assert back.all("html")


# ---- one request ---------------------------------------------------------------------------------------------


def test_a_failover_is_told_in_three_lines(box: Any) -> None:
    page = read(box, f"/requests/{box.moved()}")
    turns = page.text("turns")
    assert "Seen Fault seen on the GPU lane: the worker was killed. v5" in turns
    assert "Rule continue-identical the CPU path answers identically" in turns
    assert "Chosen continue-cpu" in turns
    assert "not restart-cpu: it would change or repeat text that was shown" in turns
    assert "not requeue: the GPU worker just failed" in turns
    assert page.text("output-text") == "one two three four"
    passed = page.text("head").partition("Waited")[0].rpartition("shown word. ")[2]
    assert re.sub(r" [0-9.]+ s", "", passed).strip() == (
        "admitted GPU running on the GPU GPU checkpointed GPU moved to the CPU CPU checkpointed CPU "
        "completed after failover CPU"
    )


def test_the_cause_chain_is_links_and_each_event_has_its_json(box: Any) -> None:
    id_ = box.moved()
    page = read(box, f"/requests/{id_}")
    history = box.client.get(f"/api/requests/{id_}/events").json()["items"]
    assert [one for one in page.order if re.fullmatch(r"v[0-9]+", one)] == [f"v{e['version']}" for e in history]
    for event in history:
        assert event["because"] in page.text(f"v{event['version']}")
        assert f'"seq": {event["seq"]}' in page.text(f"raw-{event['version']}")
    rerouted = next(e for e in history if e["type"] == "Rerouted")
    fault = next(e for e in history if e["type"] == "FaultSeen")
    assert rerouted["cause"] == fault["seq"]
    assert f"because of v{fault['version']}" in page.text(f"v{rerouted['version']}")
    targets = {a["href"] for a in page.all("a") if a.get("href", "").startswith("#")}
    assert {t.removeprefix("#") for t in targets} <= set(page.order)


def test_many_checkpoints_fold_into_one_entry(box: Any) -> None:
    box.submit()
    hand = box.hand()
    id_ = hand.take()
    for _ in range(5):
        hand.say("x")
    page = read(box, f"/requests/{id_}")
    assert "5 checkpoints and saved states v3 to v7 Token 5 is durable" in page.text("run-v3")


def test_of_very_many_checkpoints_the_last_are_on_the_page(box: Any) -> None:
    """v1 and v2 are not of them; so v3 to v27 are 25, of which v8 to v27 are the last 20."""
    box.submit()
    hand = box.hand()
    id_ = hand.take()
    for _ in range(25):
        hand.say("x")
    page = read(box, f"/requests/{id_}")
    told = page.text("run-v3")
    assert "25 checkpoints and saved states v3 to v27 Token 25 is durable" in told
    assert "The last 20 of them; before these 5 more." in told
    assert [one for one in page.order if re.fullmatch(r"v[0-9]+", one)] == [
        "v1",
        "v2",
        *(f"v{n}" for n in range(8, 28)),
    ]
    assert f"/requests/{id_}?at=7" in {a["href"] for a in page.all("a")}
    assert "Token 5 is durable" in read(box, f"/requests/{id_}?at=7").text("v7")


def test_a_resumable_error_names_both_choices_and_older_output_stays(box: Any) -> None:
    id_ = box.failed("kept words")
    page = read(box, f"/requests/{id_}")
    actions = page.text("actions")
    assert "Keeps the 10 tokens there are; only what comes after them is new." in actions
    assert "Begins a new output. The one there is stays readable as an earlier run." in actions
    assert "Stopped because the worker was killed" in page.text("head")
    box.client.post(f"/api/requests/{id_}/resume", json={"from": "start"}).raise_for_status()
    page = read(box, f"/requests/{id_}")
    assert page.text("output-text") == ""
    assert "kept words" in page.text("older-0")
    assert "run 2" in page.text("output")


def test_how_it_ended_is_told_in_words_with_the_code_beside(box: Any) -> None:
    page = read(box, f"/requests/{box.completed('a', 'b')}")
    assert "How it ended the model ended its answer" in page.text("facts")
    assert "stop" in {one.get("title") for one in page.all("dd")}
    id_ = box.submit()["id"]
    box.client.post(f"/api/requests/{id_}/cancel").raise_for_status()
    assert "How it ended it was asked for" in read(box, f"/requests/{id_}").text("facts")


def test_what_cannot_be_done_is_disabled_not_hidden(box: Any) -> None:
    ended = read(box, f"/requests/{box.completed('a', 'b')}")
    cancel = next(b for b in ended.all("button") if b.get("id") == "cancel")
    assert "disabled" in cancel
    assert "It has ended. There is nothing left to cancel." in ended.text("cancel-why")
    active = read(box, f"/requests/{box.submit()['id']}")
    assert "disabled" not in next(b for b in active.all("button") if b.get("id") == "cancel")


def test_erased_content_is_gone_from_the_page(box: Any) -> None:
    id_ = box.completed("secret ", "words")
    box.erase(id_)
    for path in (f"/requests/{id_}", f"/requests/{id_}?at=3"):
        page = read(box, path)
        assert "Prompt and output were erased." in page.text("output")
        assert "secret" not in page.texts["main"]


def test_an_unknown_request_gets_a_friendly_page(box: Any) -> None:
    for path in ("/requests/req_unknown", "/requests/device-sim-0", "/requests/%3Cscript%3Ealert(1)"):
        answer = box.client.get(path)
        assert answer.status_code == 404
        page = Page(answer.text)
        assert page.all("h1")
        assert "There is nothing here" in page.text("main")
        assert not [one for one in page.all("script") if "src" not in one]


# ---- time travel ---------------------------------------------------------------------------------------------


def test_each_moment_is_what_the_replay_says(box: Any) -> None:
    id_ = box.moved()
    last = len(box.client.get(f"/api/requests/{id_}/events").json()["items"])
    assert last == 9
    for at in range(1, last + 1):
        told = box.client.get(f"/api/requests/{id_}/replay?at={at}").json()
        page = read(box, f"/requests/{id_}?at={at}")
        assert f"Frozen after event {at} of {last}" in page.text("frozen")
        assert page.texts["output-text"] == told["view"]["output"]["text"]
        assert page.text("count") == f"{told['view']['progress']['done']}/40"
        shown = [one for one in page.order if re.fullmatch(r"v[0-9]+", one)]
        assert shown == [f"v{n}" for n in range(1, at + 1)]
        for decision in told["decisions"]:
            assert f"v{decision['version']} {decision['rule']}" in page.text("moment")
        assert page.text("moment").count(" same ") - page.text("moment").count("decide the same") == len(
            told["decisions"]
        )


def test_steps_lead_along_the_history(box: Any) -> None:
    id_ = box.moved()
    address = f"/requests/{id_}"

    def steps(at: int) -> dict[str, str | None]:
        page = read(box, f"{address}?at={at}")
        return {a["id"]: a.get("href") for a in page.all("a") if a.get("id", "").startswith("step-")}

    assert steps(1) == {
        "step-first": None,
        "step-previous": None,
        "step-next": f"{address}?at=2",
        "step-last": f"{address}?at=9",
        "step-previous-failover": None,
        "step-next-failover": f"{address}?at=6",
    }
    assert steps(6)["step-next-failover"] is None
    assert steps(7)["step-previous-failover"] == f"{address}?at=6"
    assert steps(9)["step-next"] is None
    live = read(box, f"{address}?at=2")
    assert next(a["href"] for a in live.all("a") if a.get("id") == "go-live") == address


def test_the_slider_is_a_form_with_marks(box: Any) -> None:
    id_ = box.moved()
    page = read(box, f"/requests/{id_}?at=4")
    form = next(f for f in page.all("form") if f.get("id") == "travel")
    assert (form["method"], form["action"]) == ("get", f"/requests/{id_}")
    slider = next(i for i in page.all("input") if i.get("type") == "range")
    assert (slider["name"], slider["min"], slider["max"], slider["value"]) == ("at", "1", "9", "4")
    assert [o["value"] for o in page.all("option")] == ["5", "6"]


def test_what_an_event_changed_is_told_before_and_after(box: Any) -> None:
    page = read(box, f"/requests/{box.moved()}?at=6")
    told = page.text("moment")
    assert "What event 6 changed Rerouted" in told
    assert "state checkpointed rerouted-cpu moved to the CPU" in told
    assert "lane gpu cpu" in told
    assert "worked on yes no" in told
    assert "served less well — the worker was killed" in told
    assert {"killed, rule continue-identical"} <= {a.get("title") for a in page.all("td")}
    assert "moves — event 6: to the CPU lane" in told
    assert "tokens saved" not in told, "it did not change"


def test_a_decision_that_todays_rules_would_not_make_is_marked(box: Any) -> None:
    id_ = box.submit()["id"]
    facts = SafepointFacts(
        "worker", "killed", "gpu", 0, "auto", "identical", cpu_serving=True, deaths=0, poison_limit=2
    )
    old = Decision("continue-cpu", "continue-identical", facts)
    box.writer.run(lambda tx: tx.append(id_, ev.Rerouted("gpu", 0, "killed", old), actor="test"))
    told = read(box, f"/requests/{id_}?at=2").text("moment")
    assert "rules decide otherwise where marked." in told
    assert "differs action: continue-cpu → restart-cpu · rule: continue-identical → restart-nothing-shown" in told


def test_beyond_the_ends_the_nearest_event_is_shown(box: Any) -> None:
    id_ = box.completed("a", "b")
    assert "Frozen after event 4 of 4" in read(box, f"/requests/{id_}?at=999").text("frozen")
    assert "Frozen after event 1 of 4" in read(box, f"/requests/{id_}?at=0").text("frozen")
    assert box.client.get(f"/requests/{id_}?at=soon").status_code == 400


def test_the_past_cannot_be_acted_on(box: Any) -> None:
    id_ = box.failed("abc")
    page = read(box, f"/requests/{id_}?at=2")
    assert "disabled" in next(b for b in page.all("button") if b.get("id") == "cancel")
    assert "resume-checkpoint" not in page.texts


# ---- hostile text --------------------------------------------------------------------------------------------


def test_hostile_text_is_inert(make_box: Any) -> None:
    box = make_box()
    box.submit(prompt=HOSTILE)
    hand = box.hand()
    id_ = hand.take()
    hand.say(HOSTILE)

    def unit(tx: Any) -> None:
        tx.append("device-sim-0", ev.DeviceLost(HOSTILE, 2), actor=HOSTILE)
        put_lane(tx, LaneRow("gpu", HOSTILE, False, HOSTILE, 10, HOSTILE, HOSTILE, "x"))

    box.writer.run(unit)
    hand.die(HOSTILE)
    for path in ("/", f"/requests/{id_}", f"/requests/{id_}?at=4"):
        answer = box.client.get(path)
        page = Page(answer.text)
        assert not [one for one in page.all("script") if "src" not in one]
        assert not page.all("img")
        assert "<script>alert" not in answer.text
    page = read(box, f"/requests/{id_}")
    assert page.texts["output-text"] == HOSTILE
    assert HOSTILE in page.texts["asked"]
