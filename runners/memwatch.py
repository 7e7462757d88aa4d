"""The watch on the memory of the CPU lane's workers; the supervisor asks it all the time, it looks ten times a second.

1. What it sees is judged in `core.hostbudget`; here it is carried out. While the lane takes nothing more, its runners
   claim nothing, new requests are decided as if they did not fit, and who waits goes to the GPU lane where that can
   take it. No worker is started that would not fit. The GPU lane is not touched.
2. A worker that is ended is nobody's fault; what it worked on goes on from its checkpoint.
3. What a worker has started counts with it: so does a command that serves the CPU lane as a server of its own.
4. Resident bytes are cheap to read and never too small; only where they pass a limit it is looked at who shares them.
"""

import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from core import hostbudget
from core.admission import HOST_MEMORY
from core.hostbudget import Worker
from core.policy import Policy
from runners.children import Child
from runners.hostbudget import HostBudget
from runners.process import Size, proportional, size_of, with_descendants
from store import failover, hostlane, laneviews
from store.journal import Look, Tx

log = logging.getLogger("failsoft")

LOOK_S: Final = 0.1
_SLOW_S: Final = 1.0

Submit = Callable[[Callable[[Tx], Any]], "Future[Any]"]


class MemoryWatch:
    """The CPU-lane children of one run that take of this machine's memory."""

    def __init__(
        self, budget: HostBudget, children: list[Child], driver: sqlite3.Connection, submit: Submit, policy: Policy
    ) -> None:
        self._budget = budget
        chosen = [child for child in children if child.spec and child.spec.in_budget]
        self._children = {child.spec.model: child for child in chosen if child.spec}
        self._seen_now = Look(driver, 0)
        self._submit = submit
        self._policy = policy
        self._taking = True
        self._passed_at = self._stopped_at = 0.0
        self._next = self._next_slow = 0.0
        self._pids: dict[str, list[int]] = {}
        self._sizes: dict[str, Size] = {}
        self._loads: dict[str, int] = {}
        self._seen: set[str] = set()
        """Runners that were seen with their model."""
        self._after_loading: dict[str, int] = {}
        """By model: bytes of a worker's own after it had loaded."""
        self._asked: dict[str, Future[Any]] = {}
        self._told: hostlane.LaneMemory | None = None
        self._look(slow=True)

    def tick(self) -> None:
        """Look, act, and hand in what is to be written."""
        now = time.monotonic()
        if now < self._next or not self._children:
            return
        self._next = now + LOOK_S
        slow = now >= self._next_slow
        if slow:
            self._next_slow = now + _SLOW_S
        self._look(slow=slow)
        self._judge(now)
        self._see_loaded()
        if slow:
            self._recycle()
        self._lanes()
        self._tell(slow=slow)

    def holds(self, child: Child) -> bool:
        """Whether a worker is not to be started now, since it would not fit."""
        if child.spec is None or child not in self._children.values():
            return False
        return not self._taking or not self._fits(child.spec.model)

    def killed_for(self, child: Child) -> str | None:
        """Why a worker that nobody of us has ended is gone, as far as memory is concerned."""
        ours = child in self._children.values()
        return "out-of-memory" if ours and self._budget.kernel_ended_one() else None

    # ---- looking ------------------------------------------------------------------------------------------

    def _look(self, *, slow: bool) -> None:
        if slow:
            self._loads = {lane.model: lane.load_bytes for lane in hostlane.lanes(self._seen_now)}
        for model, child in self._children.items():
            if slow or child.pid not in self._pids.get(model, ()):
                self._pids[model] = with_descendants(child.pid) if child.pid else []
        self._sizes = {model: size_of(pids) for model, pids in self._pids.items()}
        held = sum(size.resident for size in self._sizes.values())
        _, self._limits = self._budget.now(held, sum(size.files for size in self._sizes.values()))
        if slow:
            self._budget.follow(self._limits.hard)
        self._used = held
        if held > self._limits.soft:
            self._used = sum(proportional(pids) for pids in self._pids.values())

    def _fits(self, model: str) -> bool:
        load = self._loads.get(model, 0)
        others = sum(self._to_come(other) for other, child in self._children.items() if other != model and child.pid)
        return load + others + self._used <= self._limits.soft

    def _to_come(self, model: str) -> int:
        """What a worker that is up has still to take, as far as is known."""
        return max(0, self._loads.get(model, 0) - self._sizes[model].resident)

    # ---- acting -------------------------------------------------------------------------------------------

    def _judge(self, now: float) -> None:
        if self._used > self._limits.soft:
            self._passed_at = now
        taking = hostbudget.takes(self._taking, self._used, self._limits, now - self._passed_at)
        if self._taking and not taking:
            self._stopped_at = now
            log.warning(
                "the CPU lane takes nothing more: its workers hold %d bytes, and %d is their soft limit (%s)",
                self._used,
                self._limits.soft,
                self._limits.limited_by,
            )
        elif taking and not self._taking:
            log.info("the CPU lane takes work again")
        self._taking = taking
        if (model := hostbudget.ends(self._used, self._limits, self._workers())) is not None:
            child = self._children[model]
            log.error("%s passes the memory the CPU lane may hold; ending it", child.id)
            child.told = {"held": self._used, "budget": self._limits.hard}
            child.kill("over-budget")

    def _workers(self) -> dict[str, Worker]:
        return {model: self._worker(model, child) for model, child in self._children.items()}

    def _worker(self, model: str, child: Child) -> Worker:
        size, first = self._sizes[model], self._after_loading.get(model)
        return Worker(size.resident, size.own, first, child.at_rest(), child.killed_for is not None)

    def _see_loaded(self) -> None:
        """Keep what each worker holds when it is first seen with its model; the least of all of the same model."""
        for model, child in self._children.items():
            if child.id in self._seen or child.pulse is None or child.pulse.phase() not in {"idle", "busy"}:
                continue
            self._seen = {one.id for one in self._children.values() if one.id in self._seen} | {child.id}
            own = self._sizes[model].own
            self._after_loading[model] = min(self._after_loading.get(model, own), own)

    def _recycle(self) -> None:
        """A worker that does not give back is started anew while it is idle."""
        workers = self._workers()
        for model, child in self._children.items():
            stopped_s = time.monotonic() - self._stopped_at
            why = hostbudget.begins_anew(self._policy, model, workers, taking=self._taking, stopped_s=stopped_s)
            own, first = workers[model].own, workers[model].after_loading
            if why == "stuck":
                said = "%s is at rest, and the CPU lane takes nothing for what it holds; starting it anew"
                log.warning(said, child.id)
                self._stopped_at = time.monotonic()
                child.told = {"held": own, "soft_limit": self._limits.soft}
                child.retire("recycled")
            elif why == "grown" and first is not None:
                log.warning("%s holds %d bytes at rest, %d after loading; starting it anew", child.id, own, first)
                child.told = {"held": own, "after_loading": first}
                child.retire("recycled")

    def _lanes(self) -> None:
        """Take lanes out and in, as far as the record says otherwise."""
        for lane in hostlane.lanes(self._seen_now):
            model, serving, reason = lane.model, lane.serving, lane.out_reason
            child = self._children.get(model)
            asked = self._asked.get(model)
            if child is None or (asked is not None and not asked.done()):
                continue
            out = not self._taking or (not child.pid and not self._fits(model))
            if out and serving:
                self._asked[model] = self._submit(partial(take_out, model=model, policy=self._policy))
            elif not out and reason == HOST_MEMORY:
                self._asked[model] = self._submit(partial(take_in, model=model))

    def _tell(self, *, slow: bool) -> None:
        told = hostlane.LaneMemory(
            by=self._budget.by,
            why=self._budget.why,
            budget=self._limits.soft,
            limited_by=self._limits.limited_by,
            held={model: size.resident for model, size in self._sizes.items() if size.resident},
            mapped=sum(size.files for size in self._sizes.values()),
            taking=self._taking,
        )
        before = self._told
        if (slow and told != before) or before is None or before.taking != told.taking:
            self._told = told
            self._submit(partial(hostlane.put, memory=told))


def take_out(tx: Tx, model: str, policy: Policy) -> None:
    """The CPU lane takes nothing more for a model; who waits there goes to the GPU lane where that can take it."""
    row = laneviews.lane_row(tx, "cpu", model)
    if row is not None and row.serving:
        failover.cpu_lane_out(tx, model, HOST_MEMORY, policy, actor="supervisor")


def take_in(tx: Tx, model: str) -> None:
    """It takes work again, unless it is out for another reason."""
    if hostlane.held_back(tx, model):
        laneviews.set_serving(tx, "cpu", model, None, actor="supervisor")
