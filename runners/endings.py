"""How a piece of work ends other than with its answer: each way is one transaction that also says what follows.

1. Asked to stop: what was computed is durable first, then the lease is given back; where to is the reason's word.
2. A fault: evidence and its consequence under the fence. A suspect worker ends after that; the exit code is told.
3. Not ours any more: nothing is written but that it was tried.
"""

import logging
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from core import events as ev
from core import safepoint
from core.errors import AllocationFailed, EngineFault, Fenced, NoPlace, StopWork
from core.policy import Policy
from core.words import FaultClass
from runners import stops
from runners.boundary import GiveWay, GoneBack, LeftSlow
from runners.doubts import InDoubt
from runners.host import CANCEL
from runners.work import Work
from store import breakers, claims, failover, hostlane, snapshots
from store.claims import Claim, Owner
from store.journal import Tx
from store.writer import Writer

log = logging.getLogger("failsoft.runner")

_QUOTE: Final = re.compile(r""": | \(| ['"]""")
_WHY_CHARS: Final = 200


class Endings:
    """For one runner. Methods answer the code the runner must exit with, or None when it is sound."""

    def __init__(self, owner: Owner, writer: Writer, policy: Policy) -> None:
        self._owner = owner
        self._writer = writer
        self._policy = policy

    def stopped(self, taken: Claim, work: Work, stop: StopWork) -> None:
        """It was asked to stop: by its client, by the service, or for another request; or it has moved already."""
        if isinstance(stop, (GoneBack, LeftSlow)):
            return
        try:
            work.settle()
            self._writer.run(lambda tx: self._stop(tx, taken, stop))
        except Fenced:
            self.refused(taken, work)

    def _stop(self, tx: Tx, taken: Claim, stop: StopWork) -> None:
        claims.check(tx, taken.fence)
        state = tx.state(taken.fence.request_id)
        assert state is not None
        if stop.code == CANCEL or state.cancel_asked:
            claims.cancelled(tx, taken.fence)
        elif isinstance(stop, GiveWay):
            claims.write(tx, taken.fence, ev.Preempted(stop.decision))
            claims.release(tx, state.id)
        elif isinstance(stop, InDoubt):
            told: dict[str, str | int | float] = {"sign": stop.sign}
            fault = self._nobodys(safepoint.IN_DOUBT, told)
            failover.after_fault(tx, state.id, fault, self._policy, actor=self._owner.runner)
        else:
            fault = self._nobodys("service-stopped", {})
            decision = failover.decide(tx, state, fault, self._policy)
            failover.follow(tx, state, decision, "service-stopped", actor=self._owner.runner, cause=None)

    def _nobodys(self, kind: str, evidence: dict[str, str | int | float]) -> ev.FaultSeen:
        owner = self._owner
        return ev.FaultSeen("host", kind, owner.lane, owner.runner, owner.device, evidence=evidence)

    def refused(self, taken: Claim, work: Work) -> None:
        """Somebody else owns it now; nothing of ours counts."""
        log.warning("attempt %s of %s is not ours any more", taken.fence.attempt, taken.fence.request_id)
        self._writer.run(lambda tx: claims.late_write(tx, taken.fence, work.writing, work.units))

    def device_lost(self, reason: str) -> int:
        """The device is gone, and everything on it moves."""
        log.error("device lost: %s", reason)
        owner, policy = self._owner, self._policy
        self._writer.run(lambda tx: breakers.device_lost(tx, owner.device, policy, reason=reason, actor=owner.runner))
        return stops.DEVICE_LOST

    def no_memory(self, taken: Claim, refused: AllocationFailed) -> None:
        """The device refused the request's bytes though the ledger had them: a fault of size, the worker is sound."""
        numbers = {key: value for key, value in refused.extra.items() if isinstance(value, int)}
        self._fault(taken, "size", "allocation-failed", numbers, blames_input=False)

    def over_budget(self, taken: Claim) -> int:
        """The host gave no more memory: nobody's fault the first time, the request's size the second."""
        log.error("no memory is left for %s", taken.fence.request_id)
        self._fault(taken, "host", "over-budget", {}, blames_input=False)
        return stops.OVER_BUDGET

    def cannot_continue(self, taken: Claim, why: Exception) -> None:
        """The engine cannot go on with an answer begun elsewhere; it is sound, and somebody else must."""
        log.warning("%s cannot go on here: %s", taken.fence.request_id, why)
        self._fault(taken, "host", "cannot-continue", {}, blames_input=False)

    def unworkable(self, taken: Claim, why: Exception) -> None:
        """The engine is sound and refuses this work; no other engine would do better."""
        log.warning("%s is refused by the engine: %s", taken.fence.request_id, why)
        self._fault(taken, "size", "engine-refused", _evidence(why), blames_input=False)

    def restore_failed(self, taken: Claim, why: Exception) -> int:
        """A saved state did not come back as it was: it is never used again, and neither is this worker's memory."""
        log.error("restore failed for %s: %s", taken.fence.request_id, why)
        self._fault(taken, "worker", "restore-failed", {}, blames_input=False, without_snapshot=True)
        return stops.ENGINE_FAILED

    def engine_failed(self, taken: Claim, error: Exception) -> int:
        """The engine raised something; all of it is its fault."""
        log.error("engine failed on %s: %r", taken.fence.request_id, error)
        blames = not isinstance(error, NoPlace)
        self._fault(taken, "worker", "engine-failed", _evidence(error), blames_input=blames)
        return stops.ENGINE_FAILED

    def _fault(
        self,
        taken: Claim,
        fault: FaultClass,
        kind: str,
        evidence: Mapping[str, str | int | float],
        *,
        blames_input: bool,
        without_snapshot: bool = False,
    ) -> None:
        """Tell a fault of a request we hold, and what follows from it, under the fence."""
        owner = self._owner
        seen = ev.FaultSeen(fault, kind, owner.lane, owner.runner, owner.device, blames_input, dict(evidence))

        def unit(tx: Tx) -> None:
            claims.check(tx, taken.fence)
            bad = snapshots.kept(tx, taken.fence.request_id, taken.state.output_epoch) if without_snapshot else None
            if bad is not None:
                snapshots.reject(tx, taken.fence, bad, "not-restored")
            large = hostlane.too_large(tx, kind, taken.fence.request_id)
            told = msgspec.structs.replace(seen, fault="size") if large else seen
            failover.after_fault(tx, taken.fence.request_id, told, self._policy, actor=owner.runner)

        try:
            self._writer.run(unit)
        except Fenced:
            log.warning("%s was taken from us meanwhile", taken.fence.request_id)


def _evidence(error: Exception) -> dict[str, str]:
    """What the record keeps of an engine's failure.

    It outlives the contents, so it ends where a fault begins to quote: a server may say the prompt or the answer back.
    """
    evidence = {"error": type(error).__name__}
    if isinstance(error, EngineFault):
        evidence["why"] = _QUOTE.split(str(error), maxsplit=1)[0].rstrip(".")[:_WHY_CHARS]
    return evidence
