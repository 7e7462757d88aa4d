"""Carrying the residency plan out on one device: what to load, what to unload, and when its bytes are promised anew.

1. The plan is pure (`core.residency`); its facts are read without the gate, what it says is written with the next unit.
2. A model's process is promised before it is started, and its promise ends when a reading taken after its death no
   longer shows it, or after `release_wait_s`, with what was not seen to come back.
"""

import sqlite3
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from core import events as ev
from core.ledger import available
from core.policy import Policy
from core.residency import ModelFacts, ResidencyFacts, Step, plan
from runners.children import Child
from store import promises, reservations
from store.clock import Clock
from store.journal import Look, Tx

_NEVER: Final = 1e9

Submit = Callable[[Callable[[Tx], Any]], Any]


class _Leaving(msgspec.Struct):
    pid: int
    died_us: int
    waited_since: float


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
        self._last_evict = -_NEVER
        self._leaving: dict[str, _Leaving] = {}
        for child in children:
            child.wanted = False

    def tick(self) -> None:
        """Look, plan, act, and hand in what is to be written."""
        if not self._children:
            return
        self._release()
        facts = self._facts()
        if facts is None:
            return
        for step in plan(facts):
            child = self._children[step.model]
            if step.action == "load":
                self._load(child, step, next(m.load for m in facts.models if m.model == step.model))
            elif step.action == "evict":
                self._evict(child, step)
            elif step.action == "wait" and step.rule == "cannot-make-room":
                self._first_wish.discard(step.model)

    def died(self, child: Child, pid: int) -> None:
        """A child that was to leave is gone: its promise ends when its bytes are back."""
        assert child.spec is not None
        self._leaving[child.spec.model] = _Leaving(pid, self._clock.now_us(), time.monotonic())

    def _facts(self) -> ResidencyFacts | None:
        look = Look(self._driver, self._clock.now_us())
        device = reservations.device_facts(look, self._device, self._policy)
        free = available(device) if device is not None and device.state != "lost" else None
        if free is None:
            return None
        demand = dict(
            self._driver.execute(
                "SELECT model, count(*) FROM requests WHERE lane='gpu' AND "
                "state IN ('admitted','running-gpu','checkpointed','rerouted-cpu') GROUP BY model"
            ).fetchall()
        )
        loads = dict(self._driver.execute("SELECT model, load_bytes FROM lanes WHERE lane='gpu'").fetchall())
        models = tuple(self._model(model, child, demand, loads) for model, child in self._children.items())
        since = time.monotonic() - self._last_evict
        return ResidencyFacts(models, free, since, self._policy.evict_period_s)

    def _model(self, model: str, child: Child, demand: dict[str, int], loads: dict[str, int]) -> ModelFacts:
        look = Look(self._driver, 0)
        held = reservations.promised(look, reservations.process_of(model))
        if demand.get(model):
            self._last_work[model] = time.monotonic()
        resident = child.wanted or model in self._leaving or child.process is not None
        promised_ahead = 0 if held is None else held
        return ModelFacts(
            model=model,
            # A promise made at admission is this model's own: the plan need not find its bytes a second time.
            load=promised_ahead if resident else (0 if promised_ahead else loads.get(model, 0)),
            resident=resident,
            wanted=bool(demand.get(model)) or (model in self._first_wish and not resident),
            busy=child.pulse is not None and child.pulse.phase() in {"busy", "loading", "unused"},
            pinned=model in self._pinned,
            idle_s=time.monotonic() - self._last_work[model],
        )

    def _load(self, child: Child, step: Step, size: int) -> None:
        assert child.spec is not None
        child.wanted = True
        self._first_wish.discard(step.model)
        self._last_work[step.model] = time.monotonic()
        device, model = self._device, step.model

        def unit(tx: Tx) -> None:
            holder = reservations.process_of(model)
            ahead = reservations.promised(tx, holder) or 0
            reservations.promise(tx, device, holder, model, ahead + size)
            tx.append(f"model-{model}", ev.LoadPlanned(model, device, step.rule, step.why), actor="supervisor")
            tx.execute("UPDATE lanes SET resident=1 WHERE lane='gpu' AND model=?", (model,))

        self._submit(unit)

    def _evict(self, child: Child, step: Step) -> None:
        child.wanted = False
        self._last_evict = time.monotonic()
        child.terminate()
        device, model = self._device, step.model

        def unit(tx: Tx) -> None:
            tx.append(f"model-{model}", ev.EvictAsked(model, device, step.rule, step.why), actor="supervisor")
            tx.execute("UPDATE lanes SET resident=0 WHERE lane='gpu' AND model=?", (model,))

        self._submit(unit)

    def _release(self) -> None:
        for model, leaving in list(self._leaving.items()):
            row = self._driver.execute("SELECT at_us, doc FROM readings WHERE device=?", (self._device,)).fetchone()
            reading: dict[str, Any] = msgspec.json.decode(row[1]) if row else {}
            listed = (reading.get("processes") or {}).get(str(leaving.pid))
            fresh = row is not None and row[0] > leaving.died_us
            back = fresh and reading.get("processes") is not None and listed is None
            if not back and time.monotonic() - leaving.waited_since < self._policy.release_wait_s:
                continue
            del self._leaving[model]
            self._submit(self._evicted(model, 0 if back else int(listed or 0), known=back))

    def _evicted(self, model: str, listed: int, *, known: bool) -> Callable[[Tx], None]:
        device = self._device

        def unit(tx: Tx) -> None:
            holder = reservations.process_of(model)
            held = reservations.promised(tx, holder) or 0
            promises.give_back(tx, holder)
            tx.execute("UPDATE lanes SET gpu_layers=NULL WHERE lane='gpu' AND model=?", (model,))
            missing = 0 if known else (listed or held)
            tx.append(f"model-{model}", ev.Evicted(model, device, held, missing), actor="supervisor")

        return unit
