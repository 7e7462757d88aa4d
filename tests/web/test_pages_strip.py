"""The pressure strip: drawn to scale, gaps as gaps, failovers where they were, and all of it in a table."""

import json
import re
from typing import Any

from pages import HOSTILE, inert, read

from core import events as ev
from store import house
from store.samples import SPAN_US, STEP_US

MIB = 1 << 20


def past(box: Any, uses: dict[int, int | None], device: str = "sim-0") -> int:
    """Readings so many steps ago of so many MiB of 1,000; gives the time they are counted from."""

    def unit(tx: Any) -> int:
        for ago, used in uses.items():
            doc = json.dumps({"state": "ok", "total": 1000 * MIB, "used": None if used is None else used * MIB})
            house.put_reading(tx, device, tx.now_us - ago * STEP_US, doc)
        return int(tx.now_us)

    found: int = box.writer.run(unit)
    return found


def areas(page: Any) -> list[str]:
    return [a["d"] for a in page.all("path") if a.get("class") == "area"]


def test_use_is_drawn_to_scale_and_a_gap_is_a_gap(make_box: Any) -> None:
    box = make_box()
    past(box, {100: 250, 99: 500, 98: None, 50: 1000})
    (path,) = areas(read(box, "/"))
    # By hand: a quarter in use is three quarters of 40 from the top; all of it is the top. Three places, two runs.
    assert [part.partition("V")[2].partition("H")[0] for part in path.split("M")[1:]] == ["30.0", "0.0"]
    assert "L" in path.split("M")[1]
    assert "20.0" in path.split("M")[1]
    starts = [float(part.split()[0]) for part in path.split("M")[1:]]
    # Steps of five seconds are 1000/180 of the width; between the first run and the second lie 50 of them.
    assert abs((starts[1] - starts[0]) - 50 * 1000 / 180) <= 0.2


def test_the_table_says_the_same_by_the_minute(make_box: Any) -> None:
    box = make_box()
    past(box, {120: 250, 40: 500, 0: 750})
    told = read(box, "/").text("strip-numbers")
    for share in ("250 MiB of 1000 MiB, 25%", "500 MiB of 1000 MiB, 50%", "750 MiB of 1000 MiB, 75%"):
        assert share in told
    assert told.index("75%") < told.index("50%") < told.index("25%"), "newest first"
    assert "750 MiB of 1000 MiB, 75%" in read(box, "/").text("strip")


def test_failovers_and_losses_are_marked_and_told(make_box: Any) -> None:
    box = make_box()
    past(box, {3: 100, 0: 100})
    view = box.submit()
    box.hand().take()
    box.hand().die()
    page = read(box, "/")
    marks = [a for a in page.all("path") if a.get("class", "").startswith("mark")]
    assert marks
    assert "1 move marked" in page.text("strip")
    assert {a["class"] for a in marks} == {"mark tone-move"}
    for mark in marks:
        assert re.fullmatch(r"M(99\d\.\d|1000\.0|1000) 0V40", mark["d"]), mark["d"]
    assert "Moved from the GPU lane to the CPU lane" in page.text("strip-numbers")
    assert f"/requests/{view['id']}" in [a.get("href") for a in page.all("a") if a.get("class") == "no"]
    told = box.client.get("/api/pressure").json()
    assert [one["type"] for one in told["marks"]] == ["Rerouted"]
    samples = {one["id"]: one["samples"] for one in told["devices"]}
    assert [one["used"] for one in samples["sim-0"]] == [100 * MIB, 100 * MIB]
    assert samples["host"] == []


def test_what_is_older_is_not_shown(make_box: Any) -> None:
    box = make_box()
    past(box, {SPAN_US // STEP_US + 2: 900})
    assert "Nothing was read yet" in read(box, "/").text("strip")


def test_a_device_that_is_read_no_more_is_unknown_now(make_box: Any) -> None:
    box = make_box()
    past(box, {20: 500})
    assert "Simulated GPU unknown" in read(box, "/").text("strip")


def test_a_hostile_reason_is_inert(make_box: Any) -> None:
    box = make_box()
    past(box, {0: 500})
    box.writer.run(lambda tx: tx.append("device-sim-0", ev.DeviceLost(HOSTILE, 2), actor="test"))
    page = inert(box, "/")
    assert "A device is out (" in page.text("strip-numbers")
