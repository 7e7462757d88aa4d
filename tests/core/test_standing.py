"""Waiting and stuck are told apart."""

import msgspec
import pytest

from core.standing import StandingFacts, standing

WELL = StandingFacts(running=False, lane="gpu", waits_for=None, draining=False, present=True, out_reason=None)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"running": True, "held": True}, "running", ""),
        ({}, "waiting", ""),
        ({"waits_for": "fits-soon"}, "waiting", "Its memory comes back when other requests end."),
        ({"out_reason": "load-failed"}, "waiting", "Its worker is started again."),
        ({"out_reason": "host-memory"}, "waiting", "when there is room"),
        ({"up": False}, "waiting", "Its lane has no worker just now"),
        ({"up": False, "waits_for": "fits-soon"}, "waiting", "when other requests end"),
        ({"out_reason": "starting"}, "waiting", "Its lane is on its way"),
        ({"breaker": "open", "breaker_reason": "killed", "out_reason": "breaker-open"}, "waiting", "tried again"),
        ({"breaker": "half-open", "out_reason": "breaker-open"}, "waiting", "being tried with canaries"),
        ({"waits_for": "cpu-lane-full", "held": True, "breaker": "open"}, "waiting", "where there is room first"),
        ({"breaker": "open", "held": True, "breaker_reason": "device-lost"}, "stuck", "until its device answers"),
        ({"present": False}, "stuck", "not set up"),
        ({"waits_for": "no-room"}, "stuck", "nothing of ours gives that back"),
        ({"waits_for": "device-unseen"}, "stuck", "cannot be read"),
        ({"draining": True}, "stuck", "the next start"),
    ],
)
def test_by_rule(changes: dict[str, object], status: str, words: str) -> None:
    found = standing(msgspec.structs.replace(WELL, **changes))
    assert found.status == status
    assert words in found.why
    assert found.why == "" or found.why.endswith(".")
