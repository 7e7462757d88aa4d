"""The what-if page: the same counts as the API gives, from a form whose values are in the address."""

import json
from typing import Any

import pytest
from pages import Page, inert, read

MIB = 1 << 20


def numbers(page: Page) -> dict[str, str]:
    """The figures of the page, by their names."""
    told = page.text("outcome")
    names = (
        "Decisions",
        "Failovers avoided",
        "Failovers added",
        "Refusals avoided",
        "Refusals added",
        "Risks taken",
    )
    return {name: told.partition(f" {name} ")[2].split()[0] for name in names}


def test_failovers_avoided_and_risks_taken_are_those_of_the_api(accounted: Any) -> None:
    # By hand: 1,024 MiB, nothing ever read from the card. With no headroom and no margin all 1,024 MiB are free, so
    # the two of 900 MiB run; the record says 1,024 - 256 - 128 = 640 were free, so each promises 260 MiB too much.
    page = read(accounted, "/what-if?headroom_mib=0&margin_mib=0&since=1d")
    assert numbers(page) == {
        "Decisions": "5",
        "Failovers avoided": "2",
        "Failovers added": "0",
        "Refusals avoided": "0",
        "Refusals added": "0",
        "Risks taken": "2",
    }
    told = page.text("outcome")
    assert "2 of 5 decisions would have been others" in told
    assert "260 MiB at most" in told
    assert "go to the CPU lane reroute-cpu run on the GPU lane run-gpu 2" in told
    body = json.loads(page.texts["body"])
    answer = accounted.client.post("/api/what-if", json=body).json()
    for example in answer["examples"]:
        href = f"/requests/{example['request_id']}?at={example['version']}"
        assert href in [a.get("href") for a in page.all("a")]
        assert accounted.client.get(href).status_code == 200
    assert answer["failovers_avoided"] == 2


def test_nothing_is_tried_until_something_is_asked(accounted: Any) -> None:
    page = read(accounted, "/what-if")
    assert "Nothing is tried yet" in page.text("outcome")
    assert "the decisions of this period are asked again" in page.text("outcome")
    assert "Failovers avoided" not in page.text("outcome")
    limits = {one["name"]: (one["min"], one["max"]) for one in page.all("input") if one.get("type") == "number"}
    assert limits["gpu_queue"] == limits["cpu_queue"] == ("1", "1000000")
    assert "in force: 256 MiB" in page.text("headroom_mib-now")
    assert "in force: 32" in page.text("cpu_queue-now")
    assert "Decision by decision, no knock-on effects." in page.text("main")
    same = read(accounted, "/what-if?headroom_mib=256&margin_mib=&gpu_queue=&cpu_queue=&since=7d")
    assert "All 5 decisions would have been the same" in same.text("outcome")


def test_more_headroom_adds_failovers_and_the_form_keeps_its_values(accounted: Any) -> None:
    # 1,024 - 900 of headroom - 128 kept back since nothing was read: -4 MiB are free, so none of the three runs.
    page = read(accounted, "/what-if?headroom_mib=900&ignore_pressure=1&since=all")
    assert numbers(page)["Failovers added"] == "3"
    fields = {i["name"]: i for i in page.all("input")}
    assert fields["headroom_mib"]["value"] == "900"
    assert "checked" in fields["ignore_pressure"]
    (chosen,) = [o for o in page.all("option") if "selected" in o]
    assert chosen["value"] == "all"


def test_the_form_works_without_scripts_and_recalculates_with_them(accounted: Any) -> None:
    page = read(accounted, "/what-if")
    form = next(f for f in page.all("form") if f.get("id") == "what-if")
    assert (form["method"], form["action"], form["hx-get"]) == ("get", "/what-if", "/what-if")
    parts = read(accounted, "/what-if?headroom_mib=0", **{"HX-Request": "true"})
    swapped = {attrs["id"] for _tag, attrs in parts.elements if attrs.get("hx-swap-oob") == "true"}
    assert swapped == {"outcome", "body"}


@pytest.mark.parametrize(
    "query", ["headroom_mib=-1", "headroom_mib=1.5", "cpu_queue=0", "gpu_queue=x", "since=2y", "ignore_pressure=no"]
)
def test_a_value_out_of_range_is_named(box: Any, query: str) -> None:
    answer = box.client.get(f"/what-if?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in Page(answer.text).text("main")


def test_what_is_asked_for_is_escaped(box: Any) -> None:
    inert(box, "/what-if?other=%3Cscript%3Ealert(1)%3C/script%3E")
    answer = box.client.get("/what-if?since=%3Cscript%3Ealert(1)%3C/script%3E")
    assert answer.status_code == 400
    assert "<script>alert" not in answer.text
