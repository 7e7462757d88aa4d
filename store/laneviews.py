"""Lanes as deciders see them, read inside the write transaction."""

from typing import Final

import msgspec

from core import events as ev
from core.breaker import Word
from core.contract import HOST, PathFacts, kind_of, pair_class
from core.decision import LaneFacts, Part
from core.lanes import turn_us
from core.machine import CLAIMABLE_SQL
from core.state import RequestState
from core.words import Lane, PairClass
from store import proofs
from store.journal import Sees, Tx
from store.tables import ACTIVE

_WAITING: Final = f"SELECT count(*) FROM requests WHERE {CLAIMABLE_SQL} AND lane=? AND model=?"  # noqa: S608 -- constants
_LANE: Final = (
    "SELECT l.serving, l.out_reason, l.context, l.device, l.engine, l.contract, l.slots, "
    "coalesce(d.breaker, 'closed') FROM lanes l LEFT JOIN devices d ON d.id=l.device WHERE l.lane=? AND l.model=?"
)


class LaneRow(msgspec.Struct, frozen=True):
    """One lane for one model, as the supervisor keeps it. It serves only while its device's breaker is closed."""

    lane: Lane
    model: str
    serving: bool
    out_reason: str | None
    context: int
    device: str
    engine: str
    contract: str
    load_bytes: int = 0
    """What the model's process takes on the device; 0 together with `token_bytes`: memory is not accounted."""
    token_bytes: int = 0
    """What each token of a request takes beside that."""
    need_basis: str = "formula"
    resident: bool = True
    """Its runner is up, or on its way."""
    layers: int = 0
    """Layers of the model; 0: not known, or none."""
    parts: tuple[Part, ...] = ()
    """How it could be placed on the device in part, most layers first."""
    pinned: bool = False
    """Never unloaded to make room."""
    slots: int = 1
    """Requests it works on at once."""
    breaker: Word = "closed"
    """Of its device."""


BREAKER_OPEN: Final = "breaker-open"


def lane_row(tx: Sees, lane: Lane, model: str) -> LaneRow | None:
    """The lane's row, or None when this machine has no such lane for the model."""
    row = tx.execute(_LANE, (lane, model)).fetchone()
    if row is None:
        return None
    serving, reason, context, device, engine, contract, slots, breaker = row
    if serving and breaker != "closed":
        serving, reason = False, BREAKER_OPEN
    return LaneRow(lane, model, bool(serving), reason, context, device, engine, contract, slots=slots, breaker=breaker)


def put_lane(tx: Tx, row: LaneRow) -> None:
    """Set a lane up, or replace what was there."""
    tx.execute(
        "INSERT INTO lanes (lane, model, serving, out_reason, context, device, engine, contract, load_bytes, "
        "token_bytes, need_basis, resident, layers, parts, pinned, since_us, slots) "
        "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) "
        "ON CONFLICT (lane, model) DO UPDATE SET serving=excluded.serving, "
        "out_reason=excluded.out_reason, context=excluded.context, device=excluded.device, engine=excluded.engine, "
        "contract=excluded.contract, load_bytes=excluded.load_bytes, token_bytes=excluded.token_bytes, "
        "need_basis=excluded.need_basis, resident=excluded.resident, "
        "layers=excluded.layers, parts=excluded.parts, pinned=excluded.pinned, since_us=excluded.since_us, "
        "slots=excluded.slots",
        (
            row.lane,
            row.model,
            int(row.serving),
            row.out_reason,
            row.context,
            row.device,
            row.engine,
            row.contract,
            row.load_bytes,
            row.token_bytes,
            row.need_basis,
            int(row.resident),
            row.layers,
            msgspec.json.encode(row.parts).decode(),
            int(row.pinned),
            tx.now_us,
            row.slots,
        ),
    )


def set_serving(tx: Tx, lane: Lane, model: str, reason: str | None, *, actor: str, cause: int | None = None) -> None:
    """Take a lane out for a reason, or in with None. Says so in the journal when it changes."""
    before = tx.execute("SELECT serving, out_reason FROM lanes WHERE lane=? AND model=?", (lane, model)).fetchone()
    if before is None or (bool(before[0]), before[1]) == (reason is None, reason):
        return
    tx.execute(
        "UPDATE lanes SET serving=?, out_reason=?, since_us=? WHERE lane=? AND model=?",
        (int(reason is None), reason, tx.now_us, lane, model),
    )
    event: ev.Event = ev.LaneIn(lane) if reason is None else ev.LaneOut(lane, reason, {"model": model})
    tx.append(f"lane-{lane}", event, actor=actor, cause=cause)


def is_lost(tx: Sees, device: str) -> bool:
    """Whether the record says that the device is gone."""
    return tx.execute("SELECT 1 FROM devices WHERE id=? AND state<>'ok'", (device,)).fetchone() is not None


def has_work(tx: Sees, lane: Lane, model: str) -> bool:
    """Whether anybody waits for a lane, or is worked on there."""
    sql = f"SELECT 1 FROM requests WHERE lane=? AND model=? AND {ACTIVE} LIMIT 1"  # noqa: S608 -- a constant
    return tx.execute(sql, (lane, model)).fetchone() is not None


def demand(tx: Sees, lane: Lane) -> set[str]:
    """Models that somebody waits for on a lane, or is worked on with."""
    sql = f"SELECT DISTINCT model FROM requests WHERE lane=? AND {ACTIVE}"  # noqa: S608 -- a constant
    return {model for (model,) in tx.execute(sql, (lane,)).fetchall()}


def waiting_by_model(tx: Sees, lane: Lane) -> list[tuple[str, str]]:
    """(request, model) of all that are on a lane and were not moved there, in turn."""
    sql = "SELECT id, model FROM requests WHERE lane=? AND state IN ('admitted','running-gpu','checkpointed') "
    rows = tx.execute(f"{sql} ORDER BY turn_us, id", (lane,)).fetchall()
    return [(request_id, model) for request_id, model in rows]


def load_bytes(tx: Sees, lane: Lane) -> dict[str, int]:
    """By model, what its process takes there."""
    return dict(tx.execute("SELECT model, load_bytes FROM lanes WHERE lane=?", (lane,)).fetchall())


def arrives(tx: Tx, model: str, *, whole: bool) -> None:
    """The model's process is to come to the GPU lane; `whole`: with all its layers, whatever was planned before."""
    if whole:
        tx.execute("UPDATE lanes SET gpu_layers=NULL WHERE lane='gpu' AND model=?", (model,))
    tx.execute("UPDATE lanes SET resident=1 WHERE lane='gpu' AND model=?", (model,))


def places(tx: Sees) -> int:
    """How many runners there are to be, one for each lane and model."""
    (count,) = tx.execute("SELECT count(*) FROM lanes", ()).fetchone()
    return int(count)


def layers_promised(tx: Sees, model: str) -> int | None:
    """Layers of a model that were promised a place on the GPU lane's device; None: all of them."""
    row = tx.execute("SELECT gpu_layers FROM lanes WHERE lane='gpu' AND model=?", (model,)).fetchone()
    return None if row is None else row[0]


def lane_facts(tx: Tx, lane: Lane, model: str, limit: int, probes: int) -> LaneFacts:
    """What admission may know of a lane now; so many new requests as `probes` may wait while its device is tried."""
    row = lane_row(tx, lane, model)
    if row is None:
        return LaneFacts(present=False, serving=False, out_reason=None, waiting=0, limit=limit, context=0)
    if row.breaker == "half-open" and row.out_reason == BREAKER_OPEN and not _peopled(tx, row.device):
        # Nobody is there to be asked; a request that waits for the lane brings somebody.
        row, limit = msgspec.structs.replace(row, serving=True, out_reason=None), min(limit, probes)
    return LaneFacts(True, row.serving, row.out_reason, waiting(tx, lane, model), limit, row.context)


def _peopled(tx: Sees, device: str) -> bool:
    """Whether a runner of the device is up, or on its way."""
    return tx.execute("SELECT 1 FROM runners WHERE device=? LIMIT 1", (device,)).fetchone() is not None


def waiting(tx: Sees, lane: Lane, model: str) -> int:
    """Requests that wait in a lane's queue."""
    (count,) = tx.execute(_WAITING, (lane, model)).fetchone()
    return int(count)


def position(tx: Sees, state: RequestState) -> int | None:
    """How many requests go first in its lane's queue; None when it does not wait in one."""
    if state.running or state.lane is None or state.settled_us is not None:
        return None
    turn = turn_us(state.priority, state.created_us)
    key = (state.lane, state.model, turn, state.id)
    (ahead,) = tx.execute(f"{_WAITING} AND (turn_us, id) < (?, ?)", key).fetchone()
    return int(ahead)


def path_of(tx: Sees, row: LaneRow) -> PathFacts:
    """The lane as a path that answers. A card counts as its kind: what was proved outlives a change of cards."""
    found = tx.execute("SELECT simulated, name FROM devices WHERE id=?", (row.device,)).fetchone()
    if row.device.startswith("upstream:"):
        kind = row.device
    elif found is not None:
        kind = HOST if found[0] else kind_of(found[1])
    else:
        kind = HOST if row.lane == "cpu" else row.device
    return PathFacts(row.engine, row.contract, kind, row.slots)


def pair(tx: Sees, model: str) -> PairClass:
    """The class of going on at the CPU lane with what the GPU lane began."""
    gpu, cpu = lane_row(tx, "gpu", model), lane_row(tx, "cpu", model)
    if gpu is None or cpu is None:
        return "none"
    source, target = path_of(tx, gpu), path_of(tx, cpu)
    return pair_class(source, target, proofs.proof_of(tx, source, target))


_LAST_ENGINE: Final = (
    "SELECT json_extract(data, '$.engine') FROM events WHERE stream=? AND type='Started' ORDER BY version DESC LIMIT 1"
)


def goes_on(tx: Sees, state: RequestState, lane: Lane, engine: str) -> bool:
    """Whether an engine build on a lane may go on with units that the request has, as far as builds are concerned.

    It made them itself; or the other lane made them, and the rules of a takeover have been asked about that pair; or
    there is a proof of the two.
    """
    row = tx.execute(_LAST_ENGINE, (state.id,)).fetchone()
    if row is None or row[0] == engine:
        return True
    (made,) = row
    here, there = lane_row(tx, lane, state.model), lane_row(tx, "cpu" if lane == "gpu" else "gpu", state.model)
    if here is None or here.engine != engine:
        return False
    if there is not None and there.engine == made:
        return True
    target = path_of(tx, here)
    source = msgspec.structs.replace(target, engine=made)
    return proofs.proof_of(tx, source, target) in {"identical", "faithful"}


def set_resident(tx: Tx, lane: Lane, model: str, *, resident: bool) -> None:
    """Whether a model's worker is up or on its way."""
    tx.execute("UPDATE lanes SET resident=? WHERE lane=? AND model=?", (int(resident), lane, model))


def set_engine(tx: Tx, lane: Lane, model: str, engine: str) -> None:
    """What really computes a lane, as its runner found it when it had loaded."""
    tx.execute("UPDATE lanes SET engine=? WHERE lane=? AND model=? AND engine<>?", (engine, lane, model, engine))


def set_learned(tx: Tx, model: str, load_bytes: int) -> None:
    """What the model's process was seen to take on the device counts from here on."""
    tx.execute("UPDATE lanes SET load_bytes=?, need_basis='learned' WHERE lane='gpu' AND model=?", (load_bytes, model))
