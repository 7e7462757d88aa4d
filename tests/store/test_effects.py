"""An effect of what a request said is never repeated: it is gone on with, or stops; notices about it are none."""

import pytest
from desk import Desk

from core import events as ev
from core.errors import Conflict
from store import commands, outbox

PAID = ev.EffectDelivered("call-0", "tool pay", of_output=True)
TOLD = ev.EffectDelivered("req-0-4", "webhook request.rerouted")


def append(desk: Desk, request: str, event: ev.EffectDelivered) -> None:
    desk.run(lambda tx: tx.append(request, event, actor="test"))


def test_a_notice_is_no_effect_of_the_answer(desk: Desk) -> None:
    request = desk.admit()
    desk.checkpoint(desk.take(), 2)
    append(desk, request, TOLD)
    assert desk.fault(request).lane == "cpu"
    assert desk.types(request)[-1] == "Rerouted"


@pytest.mark.parametrize("units", [0, 2])
def test_an_effect_since_the_checkpoint_stops_it(desk: Desk, units: int) -> None:
    """Neither from the prompt nor from the checkpoint, by no lane."""
    request = desk.admit()
    claim = desk.take()
    if units:
        desk.checkpoint(claim, units)
    append(desk, request, PAID)
    append(desk, request, TOLD)
    after = desk.fault(request)
    assert (after.state, after.failure and after.failure.rule) == ("resumable-error", "effects-pending")
    decision = desk.events(request)[-1].event.decision  # type: ignore[union-attr]
    assert {one.action for one in decision.rejected} == {"continue-cpu", "restart-cpu", "requeue"}
    with pytest.raises(Conflict, match="effects outside") as refused:
        desk.run(lambda tx: commands.resume(tx, request, "start", None, actor="test"))
    assert refused.value.code == "effects"
    assert desk.state(request).state == "resumable-error"
    if units:
        resumed = desk.run(lambda tx: commands.resume(tx, request, "checkpoint", None, actor="test"))
        assert (resumed.state, resumed.units, resumed.output_epoch) == ("checkpointed", units, 0)
    else:
        with pytest.raises(Conflict):
            desk.run(lambda tx: commands.resume(tx, request, "checkpoint", None, actor="test"))
    assert desk.verify().ok


def test_an_effect_before_the_checkpoint_is_behind_it(desk: Desk) -> None:
    """Going on after it repeats nothing; beginning anew would."""
    request = desk.admit(failover="boundary")
    claim = desk.take()
    desk.checkpoint(claim, 2)
    append(desk, request, PAID)
    assert desk.run(lambda tx: outbox.effects(tx, request, since_checkpoint=True))
    desk.checkpoint(claim, 4, first=2)
    assert not desk.run(lambda tx: outbox.effects(tx, request, since_checkpoint=True))
    after = desk.fault(request)
    assert (after.state, after.failure and after.failure.rule) == ("resumable-error", "boundary-passed")
    with pytest.raises(Conflict, match="submit it again"):
        desk.run(lambda tx: commands.resume(tx, request, "start", None, actor="test"))
    desk.run(lambda tx: commands.resume(tx, request, "checkpoint", None, actor="test"))
    desk.complete(desk.take(), 6, first=4)
    assert desk.state(request).state == "completed"


def test_where_nothing_happened_outside_it_may_begin_anew(desk: Desk) -> None:
    request = desk.admit(failover="boundary")
    desk.checkpoint(desk.take(), 2)
    append(desk, request, TOLD)
    desk.fault(request)
    assert desk.run(lambda tx: commands.resume(tx, request, "start", None, actor="test")).output_epoch == 1
