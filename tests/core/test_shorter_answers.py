"""An answer that was granted shorter than asked for is told so for as long as it is, wherever the request goes.

Histories are written by hand, as the journal holds them; the ones of before that was kept must come to what they did.
"""

import msgspec
import pytest
from machine_cases import ADMIT, MOVE

from core import events as ev
from core.events import Recorded
from core.replay import fold
from core.state import RequestState

FACTS = msgspec.to_builtins(ADMIT.facts)
ADMITTED = {
    "owner": "local",
    "workload": "generate",
    "model": "null",
    "served_model": "null",
    "engine": "null",
    "contract": "c",
    "prompt_tokens": 5,
    "max_units": 40,
    "chunk_cap": 8,
    "failover": "auto",
    "priority": "interactive",
    "deadline_us": None,
    "spec_digest": "d",
    "asked_units": 64,
    "decision": {"action": "reroute-cpu", "rule": "gpu-out", "facts": FACTS, "units": 40},
}
REROUTED = {"from_lane": None, "resume_from": 0, "reason": "gpu-out", "decision": ADMITTED["decision"]}
STARTED = {"lane": "cpu", "runner": "cpu-1", "device": "cpu", "engine": "null/1", "resume_from": 0}
RETURNED = {"reason": "gpu-is-back", "resume_from": 0}


def folded(*history: tuple[str, dict[str, object]]) -> RequestState:
    """The state after events at 1, 2, 3 … microseconds."""
    records = []
    for at, (type_, data) in enumerate(history, start=1):
        event = ev.decode(type_, 1, msgspec.json.encode(data).decode())
        attempt = 1 if type_ == "Started" else None
        records.append(Recorded(at, str(at), "q1", at, type_, at, "test", attempt, None, event))
    state = fold(records)
    assert state is not None
    return state


def told(state: RequestState) -> tuple[str, str, str, int] | None:
    mark = state.degraded
    return None if mark is None else (mark.reason, mark.rule, mark.lane, mark.version)


WITH = ADMITTED | {"shorter": "shortened-for-cpu"}
BACK = (("Rerouted", REROUTED), ("Started", STARTED), ("Returned", RETURNED))


def test_back_on_the_gpu_lane_the_answer_is_still_shorter_and_that_is_told() -> None:
    on_cpu = folded(("Admitted", WITH), *BACK[:2])
    assert told(on_cpu) == ("gpu-out", "gpu-out", "cpu", 2)
    back = folded(("Admitted", WITH), *BACK)
    assert (back.lane, back.max_units, back.asked_units) == ("gpu", 40, 64)
    assert told(back) == ("shortened-for-cpu", "shortened-for-cpu", "gpu", 4)


@pytest.mark.parametrize("rule", ["fits-shrunk", "fits-shrunk-now"])
def test_what_was_shrunk_to_fit_the_device_is_so_still_after_a_way_over_the_cpu_lane(rule: str) -> None:
    decision = {"action": "shrink", "rule": rule, "facts": FACTS, "units": 40}
    admitted = ADMITTED | {"decision": decision, "shorter": rule}
    moved = {"from_lane": "gpu", "resume_from": 0, "reason": "killed", "decision": msgspec.to_builtins(MOVE)}
    history = (("Admitted", admitted), ("Rerouted", moved))
    assert told(folded(*history[:1])) == (rule, rule, "gpu", 1)
    assert told(folded(*history)) == ("killed", "continue-identical", "cpu", 2)
    assert told(folded(*history, ("Returned", RETURNED))) == (rule, rule, "gpu", 3)


@pytest.mark.parametrize("origin", ["checkpoint", "start"])
def test_resumed_on_the_gpu_lane_it_is_told_as_well(origin: str) -> None:
    failed = {"reason": "killed", "decision": msgspec.to_builtins(MOVE)}
    resumed = {"origin": origin, "lane": "gpu"}
    assert told(folded(("Admitted", WITH), *BACK[:1], ("Failed", failed), ("Resumed", resumed))) == (
        "shortened-for-cpu",
        "shortened-for-cpu",
        "gpu",
        4,
    )


def test_a_smaller_model_is_told_before_a_shorter_answer() -> None:
    smaller = WITH | {"model": "large", "instead": {"action": "refuse", "rule": "never-fits", "facts": FACTS}}
    assert told(folded(("Admitted", smaller), *BACK)) == ("fallback-model", "fallback-model", "gpu", 4)


def test_a_history_from_before_that_was_kept_comes_to_the_same_state_to_the_byte() -> None:
    expected = {
        "id": "q1",
        "owner": "local",
        "workload": "generate",
        "model": "null",
        "served_model": "null",
        "state": "admitted",
        "version": 4,
        "created_us": 1,
        "updated_us": 4,
        "engine": "null",
        "contract": "c",
        "lane": "gpu",
        "max_units": 40,
        "asked_units": 64,
        "prompt_tokens": 5,
        "attempt": 1,
        "waiting_since_us": 4,
        "started_us": 3,
        "failovers": [
            {"version": 2, "at_us": 2, "from_lane": None, "to_lane": "cpu", "rule": "gpu-out", "reason": "gpu-out"},
            {
                "version": 4,
                "at_us": 4,
                "from_lane": "cpu",
                "to_lane": "gpu",
                "rule": "returned",
                "reason": "gpu-is-back",
            },
        ],
    }
    assert msgspec.json.encode(folded(("Admitted", ADMITTED), *BACK)) == msgspec.json.encode(expected)
