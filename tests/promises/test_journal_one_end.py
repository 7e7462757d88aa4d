"""A cancel that races with the end of the work: whoever comes first, there is exactly one end."""

import random
import threading
import time

from desk import Desk

from core.errors import Conflict, Fenced
from store import claims, commands

ROUNDS = 200


def test_cancel_beside_completion(desk: Desk) -> None:
    moments = random.Random(7)
    ends: dict[str, int] = {}
    for _round in range(ROUNDS):
        request = desk.admit()
        claim = desk.take()
        desk.checkpoint(claim, 2)
        barrier = threading.Barrier(2)
        waits = moments.uniform(0, 0.001), moments.uniform(0, 0.001)

        def finish(claim: claims.Claim = claim, wait: float = waits[0], barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            time.sleep(wait)
            if desk.state(claim.state.id).cancel_asked:
                desk.run(lambda tx: claims.cancelled(tx, claim.fence))
                return
            try:
                desk.complete(claim, 4, first=2)
            except Fenced:
                desk.run(lambda tx: claims.late_write(tx, claim.fence, "completion", 4))

        def cancel(request: str = request, wait: float = waits[1], barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            time.sleep(wait)
            try:
                desk.run(lambda tx: commands.cancel(tx, request, actor="test"))
            except Conflict:
                assert desk.state(request).state == "completed"

        threads = [threading.Thread(target=work) for work in (finish, cancel)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        types = desk.types(request)
        over = [name for name in types if name in {"Completed", "Cancelled", "Expired"}]
        assert len(over) == 1, types
        state = desk.state(request)
        assert state.state == over[0].lower()
        assert not state.running
        ends[state.state] = ends.get(state.state, 0) + 1
    assert set(ends) == {"completed", "cancelled"}, f"no race at all: {ends}"
    assert desk.ask("SELECT count(*) FROM leases") == [(0,)]
    assert desk.verify().ok
