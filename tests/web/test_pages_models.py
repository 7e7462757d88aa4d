"""The pages of models: what the API says, with footprints that fit a hand calculation and the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from pages import HOSTILE, inert, read

from core import events as ev
from core.contract import PathFacts
from runners.needs import need_of
from store import learned, proofs
from store.laneviews import LaneRow, put_lane
from store.models import llamacpp
from store.models.catalog import NULL_ENTRY, Catalog, packaged_smollm2
from web import cli

MIB = 1 << 20
PLACES: dict[Any, str] = {"gpu": "sim-0", "cpu": "cpu"}


@pytest.fixture(scope="module")
def small(need: Any) -> Path:
    found = packaged_smollm2()
    if found is None:
        need("the small model", "make setup")
    return Path(found)


def proof(box: Any, pair: str, *, kind: str = "nvidia-x") -> None:
    source, target = PathFacts("null", NULL_ENTRY.contract, kind), PathFacts("null", NULL_ENTRY.contract, "host")
    event = ev.EquivalenceProved(source.name, target.name, source.contract, pair, 12, 7, 500, 490, 0.002)  # type: ignore[arg-type]
    box.writer.run(lambda tx: proofs.keep(tx, source, target, event, actor="test"))


def card(box: Any) -> None:
    """The GPU lane of the null model on a card of its own."""
    row = LaneRow("gpu", "null", True, None, 2048, "GPU-1", "null", NULL_ENTRY.contract)

    def unit(tx: Any) -> None:
        tx.append("device-GPU-1", ev.DeviceFound("NVIDIA X", simulated=False, total_bytes=8 << 30), actor="test")
        put_lane(tx, row)

    box.writer.run(unit)


def test_the_catalog_lists_every_model_those_served_first(box: Any) -> None:
    page = read(box, "/models")
    assert "/models/null" in [a.get("href") for a in page.all("a")]
    told = page.text("models")
    assert "null Built-in null model not loaded CPU, GPU null" in told
    items = box.client.get("/api/models").json()["items"]
    assert [one["id"] for one in items] == ["null"]


def test_a_model_is_shown_with_its_lanes_and_what_is_not_known(box: Any) -> None:
    page = read(box, "/models/null")
    assert "GPU not loaded sim-0 null 2048" in page.text("lanes")
    assert "Not known: it has no file" in page.text("footprint")
    assert "No load on a device was seen yet" in page.text("footprint")
    assert NULL_ENTRY.contract in page.text("facts")
    box.lane_out("gpu", "load-failed")
    assert "GPU out the model could not be loaded" in read(box, "/models/null").text("lanes")


def test_a_simulated_card_and_the_host_are_identical_without_measuring(box: Any) -> None:
    told = read(box, "/models/null").text("pair")
    assert told.startswith("How alike its lanes answer identical known without measuring")
    assert "the answer is the one it would have been" in told
    assert "auto: yes, identical: yes, boundary: no, never: no" in told
    assert "failsoft models equivalence null null --model null" in told


def test_a_card_is_not_alike_until_it_is_measured(make_box: Any) -> None:
    box = make_box()
    card(box)
    told = read(box, "/models/null").text("pair")
    assert "not alike not measured · null@nvidia-x and null@host" in told
    assert "stops as a resumable error" in told
    assert "failsoft models equivalence null:layers=99,device=nvidia-x null --model null" in told
    proof(box, "faithful")
    page = read(box, "/models/null")
    assert "faithful measured" in page.text("pair")
    assert "its wording may differ" in page.text("pair")
    # By hand: 490 of 500 are 98 of a hundred.
    assert "gave 7 equal answers; 98.0% of 500 next tokens agree, so the pair is faithful." in page.text("pair")
    href = next(a["href"] for a in page.all("a") if "EquivalenceProved" in a.get("href", ""))
    assert href.partition("#")[2] in read(box, href.partition("#")[0]).order
    view = box.client.get("/api/models/null").json()["pair"]
    assert (view["class"], view["proof"], view["permits"]["identical"]) == ("faithful", "faithful", False)


def test_what_was_learned_stands_beside_the_formula(box: Any) -> None:
    def unit(tx: Any) -> None:
        learned.learn(
            tx, runner="r", engine="null", model="null", settings="ctx=2048", formula=100 * MIB, seen=125 * MIB
        )

    box.writer.run(unit)
    told = read(box, "/models/null").text("footprint")
    assert "null ctx=2048 100 MiB 125 MiB +25.0% 125 MiB 1" in told


def test_an_unknown_model_is_a_page_that_says_so(box: Any) -> None:
    for path in ("/models/nothing", "/models/%3Cscript%3E", "/models/%E2%80%AE"):
        answer = box.client.get(path)
        assert answer.status_code == 404, path
        assert "<script>" not in answer.text.replace('<script src="', "")
    assert box.client.get("/api/models/nothing").status_code == 404


def test_hostile_names_are_inert(make_box: Any) -> None:
    box = make_box()
    proof(box, "none", kind=HOSTILE)
    entry = {
        "id": "evil",
        "engine": "llamacpp",
        "name": HOSTILE + "\u202e" + "w" * 400,
        "contract": "c",
        "prepared": HOSTILE,
    }
    box.paths.models.mkdir(exist_ok=True)
    (box.paths.models / "evil.json").write_text(json.dumps(entry))
    for path in ("/models", "/models/evil", "/models/null"):
        inert(box, path)


@pytest.mark.model
def test_footprints_fit_a_hand_calculation_and_the_command(
    make_box: Any, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box = make_box()
    Catalog(box.paths.models).add(small, "small", trial=False)
    detail = box.client.get("/api/models/small").json()
    rows = {row["context"]: row for row in detail["footprints"]["rows"]}
    # By hand: 30 layers, 3 heads of keys and values of 64 numbers of 2 bytes each: 23,040 bytes for each token.
    assert rows[4096]["kv"] - rows[2048]["kv"] == 2048 * 2 * 30 * 3 * 64 * 2
    assert cli.main(["models", "predict", str(small), "--engine", detail["engine"], "--simulated", "--json"]) == 0
    items = {item["context"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    for context in (2048, 4096, 8192):
        assert rows[context]["device_bytes"] == items[context]["device_total"]
        assert rows[context]["cpu_lane_bytes"] == items[context]["cpu_lane_bytes"]
    page = read(box, "/models/small")
    told = page.text("footprint")
    assert "45 MiB" in told
    columns = [a for a in page.all("rect") if a.get("class", "").startswith("column")]
    known = [(r["context"], k) for r in rows.values() for k in ("device_bytes", "cpu_lane_bytes") if r[k] is not None]
    assert len(columns) == len(known) > 3
    tallest = max(columns, key=lambda one: float(one["height"]))
    assert float(tallest["height"]) == 100.0
    assert str(small) in page.text("facts") or "prepared" in page.text("facts")


@pytest.mark.model
def test_the_page_counts_what_decisions_count(make_box: Any, small: Path, need: Any) -> None:
    if not llamacpp.installed():
        need("the llama.cpp engine", "make setup")
    box = make_box()
    entry = Catalog(box.paths.models).add(small, "small", engine="llamacpp", trial=False)
    needs = {
        lane: box.writer.run(lambda tx, at=lane: need_of(tx, entry, box.settings, "llamacpp", at, PLACES[at]))
        for lane in PLACES
    }
    rows = {row["context"]: row for row in box.client.get("/api/models/small").json()["footprints"]["rows"]}
    row = rows[min(box.settings.context_on("cpu"), entry.context_length)]
    assert (row["device_bytes"], row["cpu_lane_bytes"]) == (needs["gpu"].load, needs["cpu"].load)


def test_the_drivers_share_is_of_cards_only_and_lanes_say_what_is_counted(make_box: Any) -> None:
    box = make_box()
    assert box.client.get("/api/models/null").json()["footprints"]["simulated"] is True
    row = LaneRow("gpu", "null", True, None, 2048, "sim-0", "null", NULL_ENTRY.contract, 100 * MIB, MIB, "learned")
    box.writer.run(lambda tx: put_lane(tx, row))
    told = read(box, "/models/null").text("lanes")
    assert "100.0 MiB, and 1.0 MiB for each token, as loads were seen to take it" in told
    card(box)
    assert box.client.get("/api/models/null").json()["footprints"]["simulated"] is False


def test_a_model_that_lost_its_file_says_so(make_box: Any, small: Path) -> None:
    box = make_box()
    copy = box.paths.root / "copy.gguf"
    copy.write_bytes(small.read_bytes())
    entry = Catalog(box.paths.models).add(copy, "small", trial=False)
    Path(entry.prepared).unlink()
    page = read(box, "/models/small")
    assert "It cannot be used" in page.text("main")
    assert "cannot be read" in page.text("footprint")
    assert "cannot be used" in read(box, "/models").text("models")
