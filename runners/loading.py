"""Getting a runner's model into memory: the device's bytes first, then the engine, then what was seen of it.

1. The memory is taken from the device as it was promised, whole or in part; what the device refuses is never loaded.
2. Which engine computes is the model's entry's word, unless an upstream computes this lane.
3. On a real card the engine takes the memory itself; afterwards the card is looked at, whether it did.
4. An engine that takes several requests at once over one cache gets a pool, which says who has place in it.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from core.cores import fixed_share
from core.decision import Part
from core.errors import AllocationFailed, EngineFault
from runners.devices.base import Device, Reading
from runners.devices.garbling import Garbling
from runners.devices.real import RealDevice
from runners.devices.simulated import SimulatedDevice
from runners.engines.base import Engine, Loaded, LoadPlan
from runners.engines.registry import engine_named
from runners.needs import ModelNeed, need_of, process_bytes
from runners.onboard import held_on
from runners.pool import Pool
from runners.process import usable_cores
from store import hostlane, laneviews, reservations, roster
from store.claims import Owner
from store.database import Paths, read_engine
from store.journal import Look, Tx
from store.learned import learn, record_load
from store.models.catalog import ModelEntry, load_prompt_side
from store.settings import Settings, Upstream
from store.writer import Writer

UPSTREAM = "upstream:"
"""Devices whose names begin so are servers of others."""
UPSTREAM_SLOTS = 64
"""Most requests at once that an upstream is asked for; it queues by itself what it cannot take."""
_ALL_LAYERS_MORE = 3
"""The embedded engine counts its cache as layers too; more than there are is all of them."""


class Place(msgspec.Struct, frozen=True):
    """A model in memory, and what it can do there."""

    loaded: Loaded
    slots: int
    """Requests it works on at once."""
    token_bytes: int
    """Bytes of the device that each token of a request takes beside the model's own."""
    threads: int | None
    """Those it keeps, where its engine cannot change them."""
    pool: Pool | None
    cores: bool
    """It computes on this machine's cores."""
    resumes: bool
    """Its engine goes on with an answer exactly where it stopped."""


def upstream_of(settings: Settings, lane: str, model: str) -> Upstream | None:
    """The server that computes this lane of a model, if one does."""
    return next((up for up in settings.upstreams if (up.lane, up.model) == (lane, model)), None)


def engine_build(engine: str) -> str:
    """Engine name and version, as contracts and pages show it."""
    return f"{engine}/{engine_named(engine).version}"


def build_of(settings: Settings, entry: ModelEntry, lane: str) -> str:
    """What computes this lane of a model, as contracts and pages show it."""
    upstream = upstream_of(settings, lane, entry.id)
    return engine_build(entry.engine) if upstream is None else f"upstream/{upstream.name}"


def wanted_slots(settings: Settings, entry: ModelEntry, lane: str) -> int:
    """Requests that a lane is to work on at once, as far as its engine can."""
    theirs = upstream_of(settings, lane, entry.id) is not None
    most = UPSTREAM_SLOTS if theirs else engine_named(entry.engine).capabilities.slots
    return min(most, settings.gpu_slots if lane == "gpu" else settings.cpu_slots)


class Loading:
    """One load, in the order it must happen."""

    def __init__(
        self,
        paths: Paths,
        settings: Settings,
        owner: Owner,
        entry: ModelEntry,
        device: Device | None,
        writer: Writer,
        waiting: Callable[[], None],
    ) -> None:
        """`waiting` is called now and then while a server is started and tried out."""
        self._paths = paths
        self._settings = settings
        self._owner = owner
        self._entry = entry
        self._device = device
        self._writer = writer
        self._waiting = waiting

    def run(self) -> Place:
        """Take the memory, load the model, say so.

        Raises `AllocationFailed`, `DeviceFault` or `EngineFault`.
        """
        began = time.monotonic_ns()
        need, part, runners = self._looked()
        gpu_layers, before = 0, Reading("unknown")
        if self._device is not None:
            before = self._device.observe()
            self._device.allocate(need.formula if part is None else part.load)
            every = self._entry.layers + _ALL_LAYERS_MORE if part is None else part.layers
            gpu_layers = 0 if self._device.simulated else every
        engine = self._engine()
        slots = self._slots(engine)
        threads = fixed_share(total=usable_cores(), reserve=self._settings.policy.reserve_cores, runners=runners)
        context = min(self._settings.context_on(self._owner.lane), self._entry.context_length)
        plan = LoadPlan(
            context=context,
            gpu_layers=gpu_layers,
            threads=threads if engine.capabilities.fixed_threads else 1,
            slots=slots,
            cells=self._settings.pool_tokens if slots > 1 else 0,
            snapshots=self._paths.snapshots if self._settings.policy.snapshot_bytes else None,
            contract=self._entry.contract,
            server=self._settings.llama_server if self._entry.engine == "llamacpp" else "",
        )
        expected = (need.formula if part is None else part.load) - process_bytes(self._owner.device)
        loaded = self._loaded(engine, plan, expected)
        took_us = (time.monotonic_ns() - began) // 1000
        seen = self._seen(engine, loaded, before, expected)
        if isinstance(self._device, SimulatedDevice):
            loaded = Garbling(loaded, self._device)
        self._tell(need, part, before.foreign, took_us, seen)
        return Place(
            loaded=loaded,
            slots=slots,
            token_bytes=need.token if self._owner.lane == "gpu" else 0,
            threads=threads if engine.capabilities.fixed_threads else None,
            pool=self._pool(slots, plan),
            cores=engine.name not in {"null", "upstream"},
            resumes=engine.capabilities.resume == "token",
        )

    def _loaded(self, engine: Engine, plan: LoadPlan, expected: int) -> Loaded:
        """The engine with its model. One that fails where a real card has less than is needed was refused memory."""
        try:
            return engine.load(Path(self._entry.prepared), plan)
        except EngineFault as fault:
            free = self._device.observe().free if isinstance(self._device, RealDevice) else None
            if free is None or free >= expected:
                raise
            text = f"{self._owner.device} has {free} bytes free where {expected} are needed ({fault})"
            raise AllocationFailed(text, need=expected, free=free) from fault

    def _looked(self) -> tuple[ModelNeed, Part | None, int]:
        """What the model needs, the part of it that was promised (None: all of it), and how many runners there are."""
        with read_engine(self._paths).connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            look = Look(driver, self._writer.clock.now_us())
            owner = self._owner
            need = need_of(look, self._entry, self._settings, owner.engine, owner.lane, owner.device)
            return need, self._part(look, need), laneviews.places(look)

    def _engine(self) -> Engine:
        if not self._owner.device.startswith(UPSTREAM):
            return engine_named(self._entry.engine)
        from runners.engines.upstream import UpstreamEngine

        upstream = upstream_of(self._settings, self._owner.lane, self._entry.id)
        if upstream is None:
            raise EngineFault(f"{self._owner.device} is not in the settings any more. Start the service again.")
        return UpstreamEngine(upstream, load_prompt_side(self._entry), waiting=self._waiting)

    def _slots(self, engine: Engine) -> int:
        """One at a time unless more are asked for; the built-in model works on as many as it can by itself."""
        wanted = self._settings.gpu_slots if self._owner.lane == "gpu" else self._settings.cpu_slots
        if engine.name == "null" and wanted == 1:
            return engine.capabilities.slots
        return min(engine.capabilities.slots, wanted)

    def _pool(self, slots: int, plan: LoadPlan) -> Pool | None:
        shared = self._entry.engine == "llamacpp" or (self._entry.engine == "null" and plan.cells > 0)
        if slots == 1 or not shared or self._owner.device.startswith(UPSTREAM):
            return None
        policy = self._settings.policy
        return Pool(plan.cells or plan.context * slots, mode=policy.kv_pool, limit=policy.preempt_limit)

    def _part(self, look: Look, need: ModelNeed) -> Part | None:
        if self._owner.lane != "gpu":
            return None
        layers = laneviews.layers_promised(look, self._owner.model)
        return next((part for part in need.parts if layers is not None and part.layers == layers), None)

    # ---- what was seen ------------------------------------------------------------------------------------

    def _tell(self, need: ModelNeed, part: Part | None, before: int | None, took_us: int, seen: int | None) -> None:
        owner = self._owner

        def unit(tx: Tx) -> None:
            held = seen or need.load
            record_load(
                tx,
                runner=owner.runner,
                model=owner.model,
                device=owner.device,
                took_us=took_us,
                held=held,
                before=before,
            )
            self._learn(tx, need, seen if part is None else None)
            roster.ready(tx, owner.runner)
            laneviews.set_engine(tx, owner.lane, owner.model, owner.engine)
            if owner.lane == "gpu" or not hostlane.held_back(tx, owner.model):
                laneviews.set_serving(tx, owner.lane, owner.model, None, actor=owner.runner)

        self._writer.run(unit)

    def _seen(self, engine: Engine, loaded: Loaded, before: Reading, expected: int) -> int | None:
        """Bytes of the device this process holds now, as the device tells; None: it does not. Raises `NotOnDevice`."""
        if isinstance(self._device, RealDevice):
            if engine.name == "null":
                return None  # it takes nothing anywhere
            try:
                return held_on(self._device, before, expected, self._writer.clock.now_us(), self._waiting)
            except EngineFault:
                loaded.close()
                raise
        if self._device is None:
            return None
        return (self._device.observe().processes or {}).get(os.getpid())

    def _learn(self, tx: Tx, need: ModelNeed, seen: int | None) -> None:
        if seen is None or need.basis == "declared":
            return
        owner = self._owner
        after = learn(
            tx,
            runner=owner.runner,
            engine=owner.engine,
            model=owner.model,
            settings=need.settings,
            formula=need.formula,
            seen=seen,
        )
        laneviews.set_learned(tx, owner.model, after.value)
        reservations.raise_to(tx, reservations.process_of(owner.model), after.value)
