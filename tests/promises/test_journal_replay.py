"""Every decision can be replayed: what is stored with it gives the same decision again, from a fresh process's view."""

from desk import Desk

from core.replay import fold, redecide
from store.database import read_engine
from store.journal import history

CHOICES = ["auto", "identical", "boundary", "never", "gpu-only"]
KINDS = [("killed", "worker"), ("crashed", "worker"), ("device-lost", "device"), ("service-stopped", "host")]


def test_each_recorded_decision_is_made_again(desk: Desk) -> None:
    seen = set()
    for choice in CHOICES:
        for kind, fault in KINDS:
            for units in (0, 4):
                request = desk.admit(failover=choice)
                claim = desk.take()
                if units:
                    desk.checkpoint(claim, units)
                desk.fault(request, kind, fault=fault)
                with read_engine(desk.paths).connect() as connection:
                    driver = connection.connection.driver_connection
                    assert driver is not None
                    records = list(history(driver, request))
                again = redecide(records)
                assert [decided.same for decided in again] == [True] * len(again)
                assert len(again) == 2
                assert fold(records) == desk.state(request)
                seen.add(again[-1].rule)
                left = desk.state(request)
                if left.state not in {"resumable-error", "cancelled"}:
                    desk.complete(desk.take(left.lane or "gpu"), units + 1)
    assert seen >= {
        "restart-nothing-shown",
        "continue-identical",
        "boundary-passed",
        "failover-never",
        "gpu-only-device-lost",
        "stay-on-gpu",
        "service-restarted",
    }
