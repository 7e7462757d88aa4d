"""`POST /api/what-if`: the record under another policy."""

from typing import Any

import pytest

from core.policy import Policy

MIB = 1 << 20


def ask(box: Any, **body: Any) -> dict[str, Any]:
    answer = box.client.post("/api/what-if", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_failover_that_less_headroom_would_have_avoided(accounted: Any) -> None:
    # Nothing was ever read from the card, so 128 MiB more are kept back: 640 of 1,024 MiB were free to promise.
    told = ask(accounted, policy={"headroom_bytes": "0MiB", "unseen_margin_bytes": 0})
    assert told["policy"] == {"headroom_bytes": 0, "unseen_margin_bytes": 0}
    assert (told["decisions"], told["changed"], told["failovers_avoided"]) == (5, 2, 2)
    assert told["moves"] == {"reroute-cpu -> run-gpu": 2}
    assert (told["risks"], told["most_over_bytes"]) == (2, (900 - 640) * MIB)
    assert "by itself" in told["note"]
    example = told["examples"][0]
    assert (example["recorded"]["rule"], example["other"]["rule"]) == ("never-fits", "gpu-ready")
    events = accounted.client.get(f"/api/requests/{example['request_id']}/events").json()["items"]
    recorded = events[example["version"] - 1]["data"]["decision"]
    assert (recorded["action"], recorded["rule"]) == (example["recorded"]["action"], example["recorded"]["rule"])


def test_a_move_at_admission_is_one_decision(accounted: Any) -> None:
    assert ask(accounted, policy={})["decisions"] == 5


def test_only_of_the_time_asked_for(accounted: Any) -> None:
    assert ask(accounted, policy={}, since="1h")["decisions"] == 5
    assert ask(accounted, policy={}, until="1h")["decisions"] == 0
    assert ask(accounted, policy={}, since="9999999d")["decisions"] == 5
    assert ask(accounted, policy={}, since="0001-01-01T00:00:00+23:59")["decisions"] == 5
    assert ask(accounted, policy={}, until="9999-12-31T23:59:59-23:59")["decisions"] == 5
    assert ask(accounted, policy={}, since="2020-01-01T00:00:00Z", until="2021-01-01")["decisions"] == 0


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"policy": {"headrom_bytes": 1}}, "headrom_bytes"),
        ({"policy": {"lease_s": 1}}, "does not bear on"),
        ({"policy": {"pressure_high": 0.9}}, "ignore_pressure"),
        ({"policy": {"headroom_bytes": -1}}, "headroom_bytes"),
        ({"policy": {"headroom_bytes": "2 elephants"}}, "is not a size"),
        ({"policy": {"shrink_floor": 7}}, "shrink_floor"),
        ({"policy": {}, "since": "yesterday"}, "since"),
        ({"policy": {}, "since": "1h", "until": "2h"}, "since"),
        ({"policy": {}, "sincee": "1h"}, "sincee"),
        ({}, "policy"),
        ({"policy": []}, "policy"),
    ],
)
def test_what_cannot_be_tried_is_named(box: Any, body: dict[str, Any], word: str) -> None:
    answer = box.client.post("/api/what-if", json=body)
    assert answer.status_code == 400, answer.text
    assert word in answer.json()["detail"]


def test_every_name_is_one_of_the_policy() -> None:
    from core.whatif import OtherPolicy

    assert set(OtherPolicy.__struct_fields__) - {"ignore_pressure"} <= set(Policy.__struct_fields__)
