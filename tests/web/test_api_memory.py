"""Memory as the API tells it: what is promised of a device, what a model takes, what was shortened or waits."""

from typing import Any

import msgspec
import pytest

from store import reservations
from store.laneviews import LaneRow, put_lane
from store.learned import learn
from store.models.catalog import NULL_ENTRY

MIB = 1 << 20


@pytest.fixture
def accounted(make_box: Any) -> Any:
    """A card of 1 GiB with nothing kept back, 24 MiB of it reserved and 100 used by others; a MiB for each token."""
    box = make_box(headroom_bytes=0)
    row = LaneRow(
        "gpu", "null", True, None, 2048, "sim-0", "null", NULL_ENTRY.contract, load_bytes=100 * MIB, token_bytes=MIB
    )
    doc = {"state": "ok", "total": 1024 * MIB, "used": 100 * MIB, "reserved": 24 * MIB, "processes": {}}

    def unit(tx: Any) -> None:
        put_lane(tx, row)
        reservations.promise(tx, "sim-0", "model:null", "null", 100 * MIB)
        text = msgspec.json.encode(doc).decode()
        tx.execute("INSERT INTO readings (device, at_us, doc) VALUES ('sim-0',?,?)", (tx.now_us, text))

    box.writer.run(unit)
    return box


def submit(box: Any, tokens: int, **fields: Any) -> dict[str, Any]:
    return dict(box.submit(prompt="hello", max_tokens=tokens - 5, **fields))


def test_a_device_tells_what_is_promised_and_what_is_left(accounted: Any) -> None:
    submit(accounted, 300)
    devices = {device["id"]: device for device in accounted.client.get("/api/devices").json()["items"]}
    card = devices["sim-0"]
    assert card["promised"] == [
        {"holder": "null", "bytes": 400 * MIB, "returns_bytes": 300 * MIB, "seen_bytes": None},
    ]
    assert (card["headroom"], card["foreign"]) == (0, 100 * MIB)
    assert card["available"] == (1024 - 24 - 100 - 400) * MIB
    assert devices["host"]["promised"] is None


def test_a_delayed_request_tells_what_it_waits_for(accounted: Any) -> None:
    first = submit(accounted, 700)
    assert (first["queue"]["waits_for"], first["queue"]["waits_for_code"]) == (None, None)
    second = submit(accounted, 700, allow_shrink=False)
    assert second["queue"]["waits_for_code"] == "fits-soon"
    assert second["queue"]["waits_for"] == "its memory comes back when other requests end"
    assert second["queue"]["position"] == 1
    hand = accounted.hand()
    assert hand.take() == first["id"]
    hand.finish("x")
    assert accounted.hand().take() == second["id"]
    assert accounted.show(second["id"])["queue"]["waits_for"] is None


def test_a_shortened_answer_says_so(accounted: Any) -> None:
    view = submit(accounted, 1000)
    assert view["degraded"]["limits"] == {"max_tokens": {"asked": 995, "given": 795}}
    assert (view["degraded"]["rule"], view["progress"]["of"]) == ("fits-shrunk", 795)
    assert submit(accounted, 5 + 1)["degraded"] is None


def test_a_model_tells_what_the_formula_says_beside_what_was_seen(accounted: Any) -> None:
    def model() -> dict[str, Any]:
        return dict(accounted.client.get("/api/models").json()["items"][0])

    before = model()["footprint"]
    assert (before["basis"], before["formula_bytes"], before["learned_bytes"]) == ("formula", 100 * MIB, None)
    accounted.writer.run(
        lambda tx: learn(
            tx, runner="r", engine="null", model="null", settings="context=2048", formula=100 * MIB, seen=120 * MIB
        )
    )
    after = model()["footprint"]
    assert (after["formula_bytes"], after["learned_bytes"], after["loads_seen"]) == (100 * MIB, 120 * MIB, 1)
    assert (model()["readiness"], model()["resident"]) == ("cold", [])


def test_what_can_never_fit_names_no_time(accounted: Any) -> None:
    body = {"model": "null", "prompt": "hello", "max_tokens": 1500, "allow_shrink": False, "failover": "gpu-only"}
    answer = accounted.client.post("/api/requests", json=body)
    assert answer.status_code == 503
    assert "retry-after" not in answer.headers
    told = answer.json()
    assert told["error"]["code"] == "never_fits"
    assert "can ever give" in told["detail"]
    refused = accounted.client.get(f"/api/requests/{told['request_id']}/events").json()["items"][0]["data"]
    assert (refused["reason"], refused["retry_after_s"]) == ("never-fits", None)


def test_what_does_not_fit_now_names_a_time(accounted: Any) -> None:
    doc = b'{"state":"ok","total":1073741824,"used":943718400,"reserved":25165824,"processes":{}}'
    accounted.writer.run(lambda tx: tx.execute("UPDATE readings SET doc=?, at_us=?", (doc.decode(), tx.now_us)))
    body = {"model": "null", "prompt": "hello", "max_tokens": 600, "allow_shrink": False, "failover": "gpu-only"}
    answer = accounted.client.post("/api/requests", json=body)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["code"] == "gpu_only"
