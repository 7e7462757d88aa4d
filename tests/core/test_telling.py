"""Short words: whatever has a code has words for people, and nothing stored is shown as it is."""

import re
from typing import Any, get_args

import msgspec
import pytest

from core import admission, pool, returning, safepoint
from core.explain import REASONS
from core.state import DegradedMark, FailoverMark, FailureMark, RequestState
from core.telling import action_words, ending, field_words, mark_words, need_words, question, value_words
from core.whatif import OtherPolicy
from core.words import FinishReason

STATE = RequestState(
    id="req_1",
    owner="local",
    workload="generate",
    model="m",
    served_model="m",
    state="completed",
    version=4,
    created_us=0,
    updated_us=9,
)
DEGRADED = DegradedMark(0, 2, "killed", "continue-identical", "cpu", "m")
TRIED: dict[str, Any] = {
    "headroom_bytes": 2 << 30,
    "device_cap_bytes": 0,
    "reading_max_age_s": 2.5,
    "unseen_margin_bytes": 5 << 20,
    "blind_takes_work": True,
    "gpu_queue_limit": 3,
    "cpu_queue_limit": 4,
    "shrink_floor": 0.25,
    "host_floor": 0.1,
    "ignore_pressure": True,
}


@pytest.mark.parametrize(
    "action",
    [
        *(admission.RUN_GPU, admission.DELAY, admission.OFFLOAD, admission.SHRINK, admission.REROUTE),
        *(admission.REFUSE, safepoint.CONTINUE, safepoint.RESTART, safepoint.REQUEUE, safepoint.FAIL),
        *(safepoint.CANCEL, returning.RETURN, returning.STAY, pool.WAIT, pool.PREEMPT),
    ],
)
def test_each_action_has_words(action: str) -> None:
    assert not re.search(r"[a-z]-[a-z]", action_words(action))
    assert action_words(action).split()[0] in {"run", "wait", "go", "start", "stop", "stay", "refuse", "cancel", "give"}


def test_an_unknown_code_is_shown_as_it_is() -> None:
    assert action_words("dance-twice") == "dance-twice"
    assert mark_words("Danced") == "Danced"


@pytest.mark.parametrize("code", get_args(FinishReason))
def test_how_it_ended(code: Any) -> None:
    words, shown = ending(msgspec.structs.replace(STATE, finish_reason=code))
    assert (words != code, shown) == (True, code)
    assert ending(STATE) == ("", "")
    assert ending(msgspec.structs.replace(STATE, ended_by="ttl")) == (REASONS["ttl"], "ttl")


def test_marks_are_told_by_their_reasons_and_codes_stand_beside() -> None:
    assert value_words("degraded", DEGRADED) == ("the worker was killed", "killed, rule continue-identical")
    assert value_words("failure", FailureMark(5, "hung", "failover-never")) == (
        "the worker stopped making progress",
        "hung, rule failover-never",
    )
    moves = (FailoverMark(6, 0, "gpu", "cpu", "continue-identical", "killed"),)
    assert value_words("failovers", moves) == ("event 6: to the CPU lane", "continue-identical")
    assert value_words("ended_by", "deadline") == ("its deadline passed", "deadline")
    assert value_words("model", "deadline") is None, "a model may be named like a code"


def test_no_field_of_a_request_is_shown_by_its_name_alone() -> None:
    assert {name for name in RequestState.__struct_fields__ if name.endswith("_us") and "us" in field_words(name)} <= {
        "created_us",
        "updated_us",
    }


@pytest.mark.parametrize("name", OtherPolicy.__struct_fields__)
def test_everything_that_can_be_tried_can_be_asked_in_words(name: str) -> None:
    told = question({name: TRIED[name]})
    assert told.startswith("What if ")
    assert name not in told


def test_a_question_of_two_values() -> None:
    assert question({"headroom_bytes": 2 << 30, "cpu_queue_limit": 4}) == (
        "What if 2.0 GiB of the device had been kept free, and 4 new requests might have waited for the CPU lane?"
    )
    assert "as they were made" in question({})


def test_what_a_lane_counts() -> None:
    assert need_words(0, 0, "formula") == ""
    assert need_words(3 << 20, 0, "formula") == "3.0 MiB, by formula"
    assert need_words(0, 1 << 20, "declared") == "0.0 MiB, and 1.0 MiB for each token, as the settings say"
