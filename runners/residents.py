"""Carrying the residency plan out on one device: what to load, what to unload, and when its bytes are promised anew.

1. The plan is pure (`core.residency`), and its facts are read without the gate. What it says is done in a unit that
   looks again inside its transaction: bytes are promised only if they are free then, and a model that got work
   meanwhile is not unloaded. Only after its commit is a process started or told to end.
2. A model's process is promised before it is started. Told to end, it keeps its promise until a reading taken after its
   death shows the bytes back, or `release_wait_s` has passed; then what was not seen to come back is recorded.
3. Requests whose model cannot be brought in as things are now are looked at again: they move, or wait with the reason.
"""

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import msgspec

from core import events as ev
from core.ledger import available
from core.policy import Policy
from core.residency import ModelFacts, ResidencyFacts, Step, plan
from runners.children import Child
from store import house, laneviews, promises, reservations, secondlook
from store.clock import Clock
from store.journal import Look, Tx

_NEVER: Final = 1e9
_LOOK_AGAIN_S: Final = 1.0

Submit = Callable[[Callable[[Tx], Any]], "Future[Any]"]


class _Leaving(msgspec.Struct):
    """A process told to end: what it was seen to hold, and what of the device no process was seen to hold, before."""

    pid: int
    held: int
    unlisted: int | None
    died_us: int | None = None
    since: float = 0.0


class Residents:
    """The GPU-lane children of one device, and which of them are to be there."""

    def __init__(
        self,
        device: str,
        children: list[Child],
        driver: sqlite3.Connection,
        submit: Submit,
        policy: Policy,
        clock: Clock,
        pinned: tuple[str, ...],
    ) -> None:
        self._device = device
        self._children = {child.spec.model: child for child in children if child.spec is not None}
        self._driver = driver
        self._submit = submit
        self._policy = policy
        self._clock = clock
        self._pinned = pinned
        self._first_wish = set(self._children)
        self._last_work = dict.fromkeys(self._children, time.monotonic())
        self._last_look = dict.fromkeys(self._children, -_NEVER)
        self._last_evict = -_NEVER
        self._asked: dict[str, tuple[str, Future[Any]]] = {}
        """Units under way, by model: `load`, `evict` or `look`."""
        self._leaving: dict[str, _Leaving] = {}
        for child in children:
            child.wanted = False

    def tick(self) -> None:
        """Look, plan, act, and hand in what is to be written."""
        if not self._children:
            return
        self._settle()
        self._release()
        if not self._reading():
            return  # nothing is planned before the device was seen once
        demand = self._demand()
        facts = self._facts(demand)
        if facts is None:
            for model in demand:
                self._look_again(model)
            return
        for step in plan(facts):
            if step.model not in self._asked:
                self._act(step)

    def died(self, child: Child, pid: int) -> None:
        """A child that was to leave is gone: its promise ends when its bytes are back."""
        assert child.spec is not None
        child.deaths, child.not_before = 0, 0.0  # it did what it was told; nothing speaks against starting it again
        leaving = self._leaving.get(child.spec.model)
        if leaving is not None and leaving.pid == pid:
            leaving.died_us, leaving.since = self._clock.now_us(), time.monotonic()

    def refused(self, child: Child) -> None:
        """The device refused the memory though the ledger had it: the promise ends, and it is planned anew."""
        assert child.spec is not None
        model = child.spec.model
        child.wanted = False
        self._first_wish.add(model)
        self._submit(lambda tx: promises.give_back(tx, reservations.process_of(model)))

    # ---- looking ------------------------------------------------------------------------------------------

    def _demand(self) -> set[str]:
        return laneviews.demand(self._look(), "gpu") & self._children.keys()

    def _look(self) -> Look:
        return Look(self._driver, self._clock.now_us())

    def _facts(self, demand: set[str]) -> ResidencyFacts | None:
        look = self._look()
        device = reservations.device_facts(look, self._device, self._policy)
        free = available(device) if device is not None and device.state != "lost" else None
        if free is None:
            return None
        loads = laneviews.load_bytes(look, "gpu")
        models = tuple(
            self._model(model, child, wanted=model in demand, load=loads.get(model, 0))
            for model, child in self._children.items()
        )
        since = time.monotonic() - self._last_evict
        return ResidencyFacts(models, free, since, self._policy.evict_period_s)

    def _model(self, model: str, child: Child, *, wanted: bool, load: int) -> ModelFacts:
        held = self._promised(reservations.process_of(model))
        if wanted:
            self._last_work[model] = time.monotonic()
        resident = child.wanted or model in self._leaving or child.process is not None
        return ModelFacts(
            model=model,
            # A promise made at admission is this model's own: the plan need not find its bytes a second time.
            load=(held or 0) if resident else (load if held is None else 0),
            resident=resident,
            wanted=wanted,
            wished=model in self._first_wish and not resident,
            busy=child.pulse is not None and child.pulse.phase() in {"busy", "loading", "unused"},
            pinned=model in self._pinned,
            idle_s=time.monotonic() - self._last_work[model],
        )

    # ---- acting -------------------------------------------------------------------------------------------

    def _act(self, step: Step) -> None:
        if step.action == "load":
            self._ask(step.model, "load", self._load(step))
        elif step.action == "evict":
            self._ask(step.model, "evict", self._evict(step))
        elif step.rule == "cannot-make-room":
            self._look_again(step.model)
        elif step.rule == "no-room-yet" and self._reading():
            self._first_wish.discard(step.model)
        elif step.rule == "not-wanted" and self._promised(reservations.process_of(step.model)) is not None:
            self._ask(step.model, "look", self._unused(step.model))

    def _promised(self, holder: str) -> int | None:
        return reservations.promised(self._look(), holder)

    def _ask(self, model: str, what: str, unit: Callable[[Tx], bool]) -> None:
        self._asked[model] = (what, self._submit(unit))

    def _settle(self) -> None:
        """What was committed is carried out; what failed is planned anew."""
        for model, (what, future) in list(self._asked.items()):
            if not future.done():
                continue
            del self._asked[model]
            if future.cancelled() or future.exception() is not None or not future.result():
                continue
            child = self._children[model]
            if what == "load":
                child.wanted = True
                self._first_wish.discard(model)
                self._last_work[model] = time.monotonic()
            elif what == "evict":
                self._end(model, child)

    def _end(self, model: str, child: Child) -> None:
        reading = self._reading()
        listed = (reading.get("processes") or {}).get(str(child.pid))
        held = self._promised(reservations.leaving_of(model)) or 0
        leaving = _Leaving(child.pid, held if listed is None else int(listed), _unlisted(reading))
        self._leaving[model] = leaving
        self._last_evict = time.monotonic()
        child.wanted = False
        if child.process is None:
            leaving.died_us, leaving.since = self._clock.now_us(), time.monotonic()
        child.terminate()

    def _load(self, step: Step) -> Callable[[Tx], bool]:
        device, model, policy = self._device, step.model, self._policy

        def unit(tx: Tx) -> bool:
            holder = reservations.process_of(model)
            ahead = reservations.promised(tx, holder)
            facts = reservations.device_facts(tx, device, policy, without=holder)
            free = available(facts) if facts is not None else None
            size = ahead if ahead is not None else laneviews.load_bytes(tx, "gpu")[model]
            if free is None or size > free:
                promises.give_back(tx, holder)
                secondlook.look_again(tx, model, policy, actor="supervisor")
                return False
            reservations.promise(tx, device, holder, model, size)
            tx.append(f"model-{model}", ev.LoadPlanned(model, device, step.rule, step.why), actor="supervisor")
            laneviews.arrives(tx, model, whole=ahead is None)
            return True

        return unit

    def _evict(self, step: Step) -> Callable[[Tx], bool]:
        device, model = self._device, step.model

        def unit(tx: Tx) -> bool:
            if laneviews.has_work(tx, "gpu", model):
                return False
            tx.append(f"model-{model}", ev.EvictAsked(model, device, step.rule, step.why), actor="supervisor")
            reservations.leave(tx, model)
            return True

        return unit

    def _unused(self, model: str) -> Callable[[Tx], bool]:
        """A promise made for work that is gone, before its process was started, ends."""

        def unit(tx: Tx) -> bool:
            if laneviews.has_work(tx, "gpu", model):
                return False
            promises.give_back(tx, reservations.process_of(model))
            return True

        return unit

    def _look_again(self, model: str) -> None:
        """Its requests wait for a model that cannot be brought in as things are."""
        child = self._children[model]
        quiet = time.monotonic() - self._last_look[model] < _LOOK_AGAIN_S
        if quiet or child.wanted or child.process is not None or model in self._asked:
            return
        self._last_look[model] = time.monotonic()

        def unit(tx: Tx) -> bool:
            secondlook.look_again(tx, model, self._policy, actor="supervisor")
            return True

        self._ask(model, "look", unit)

    # ---- what comes back ----------------------------------------------------------------------------------

    def _reading(self) -> dict[str, Any]:
        """The latest reading, with its time as `at_us`; empty when there is none."""
        found = house.reading_of(self._look(), self._device)
        return {"at_us": found[0]} | msgspec.json.decode(found[1]) if found else {}

    def _release(self) -> None:
        for model, leaving in list(self._leaving.items()):
            if leaving.died_us is None:
                continue
            missing = _missing(self._reading(), leaving)
            if missing != 0 and time.monotonic() - leaving.since < self._policy.release_wait_s:
                continue
            del self._leaving[model]
            self._submit(self._evicted(model, leaving.held if missing is None else missing))

    def _evicted(self, model: str, missing: int) -> Callable[[Tx], None]:
        device = self._device

        def unit(tx: Tx) -> None:
            holder = reservations.leaving_of(model)
            held = reservations.promised(tx, holder) or 0
            promises.give_back(tx, holder)
            tx.append(f"model-{model}", ev.Evicted(model, device, held, missing), actor="supervisor")

        return unit


def _unlisted(reading: dict[str, Any]) -> int | None:
    """Bytes in use that no listed process holds: of those just gone, of others that are not listed. None: not told."""
    used, processes = reading.get("used"), reading.get("processes")
    return None if used is None or processes is None else int(used) - sum(size or 0 for size in processes.values())


def _missing(reading: dict[str, Any], leaving: _Leaving) -> int | None:
    """Bytes of an ended process that are not back by this reading; None: it does not tell yet.

    Without a list of processes it never tells, and after the wait all of it counts as not seen to come back.
    """
    if leaving.died_us is None or reading.get("at_us", 0) <= leaving.died_us:
        return None
    listed = int((reading.get("processes") or {}).get(str(leaving.pid)) or 0)
    unlisted = _unlisted(reading)
    if unlisted is None or leaving.unlisted is None:
        # A device that is lost holds nothing any more.
        return 0 if reading.get("state") == "lost" else None
    return min(leaving.held, max(listed, unlisted - leaving.unlisted, 0))
