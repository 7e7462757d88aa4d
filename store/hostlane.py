"""The memory of the CPU lane's workers, as the supervisor last saw it. Operational: lost without harm.

1. What a worker has mapped is available to the kernel and needed by us, so it counts as taken.
2. A model whose worker is not up yet, or has not taken all that it will, has the rest of its load still to take. One
   that could never fit is not started, so it takes nothing from the others.
"""

from typing import Final, Literal

import msgspec

from core.admission import HOST_MEMORY
from core.decision import HostFacts
from core.hostbudget import promisable
from core.policy import Policy
from store.journal import Sees, Tx

_KEY: Final = "cpu-memory"


class LaneMemory(msgspec.Struct, frozen=True):
    """Bytes."""

    by: Literal["cgroup", "watch"]
    """What holds the budget: the kernel, in a cgroup of the workers' own, or a limit on each and a watch on all."""
    why: str
    """Why it is this one."""
    budget: int
    """Most that the workers may hold before the lane takes nothing more."""
    limited_by: str
    """What makes the budget as small as it is."""
    held: dict[str, int] = {}
    """By model: resident bytes of its worker and of all that this has started."""
    mapped: int = 0
    """Of these, bytes of files."""
    taking: bool = True
    """False while the workers hold nearly all of the budget."""


def put(tx: Tx, memory: LaneMemory) -> None:
    """Keep what was seen last."""
    document = msgspec.json.encode(memory).decode()
    tx.execute(
        "INSERT INTO service (key, value) VALUES (?,?) ON CONFLICT (key) DO UPDATE SET value=excluded.value",
        (_KEY, document),
    )


def seen(tx: Sees) -> LaneMemory | None:
    """What was seen last; None before the first look."""
    row = tx.execute("SELECT value FROM service WHERE key=?", (_KEY,)).fetchone()
    return None if row is None else msgspec.json.decode(row[0], type=LaneMemory)


class LaneNow(msgspec.Struct, frozen=True):
    """The CPU lane for one model, as the record has it: what its worker needs, and whether it takes work."""

    model: str
    load_bytes: int
    serving: bool
    out_reason: str | None


def lanes(tx: Sees) -> list[LaneNow]:
    """The CPU lane of each model."""
    rows = tx.execute("SELECT model, load_bytes, serving, out_reason FROM lanes WHERE lane='cpu'", ()).fetchall()
    return [LaneNow(model, load, bool(serving), reason) for model, load, serving, reason in rows]


def loads(tx: Sees) -> dict[str, int]:
    """By model of the CPU lane: what its worker needs, of those that are up, on their way, or have work there."""
    rows = tx.execute(
        "SELECT model, load_bytes FROM lanes l WHERE lane='cpu' AND (resident=1 OR EXISTS "
        "(SELECT 1 FROM requests q WHERE q.lane='cpu' AND q.model=l.model AND q.state IN "
        "('checkpointed','rerouted-cpu')))",
        (),
    )
    return dict(rows.fetchall())


def facts(tx: Sees, policy: Policy, model: str, load: int, tokens_bytes: int) -> HostFacts | None:
    """The host's memory as a request for the CPU lane of a model sees it, or None before the first reading.

    `load`: what the model's worker needs in all; `tokens_bytes`: what the request takes beside it.
    """
    row = tx.execute("SELECT doc FROM readings WHERE device='host'", ()).fetchone()
    if row is None:
        return None
    reading = msgspec.json.decode(row[0])
    total = reading.get("total")
    memory = seen(tx)
    held = memory.held if memory is not None else {}
    most = memory.budget if memory is not None else promisable(policy)
    pending = _to_come(tx, held, most)
    pending.pop(model, None)
    return HostFacts(
        available=reading.get("available"),
        floor=int((total or 0) * policy.host_floor),
        need=tokens_bytes + max(0, load - held.get(model, 0)),
        total=total,
        mapped=memory.mapped if memory is not None else 0,
        pending=sum(pending.values()),
        budget=promisable(policy),
        held=sum(held.values()),
    )


def _to_come(tx: Sees, held: dict[str, int], most: int) -> dict[str, int]:
    """By model, what its worker has still to take; of what could never fit into `most` (0: no limit), nothing."""
    coming = {name: size for name, size in loads(tx).items() if not (0 < most < size)}
    return {name: max(0, size - held.get(name, 0)) for name, size in coming.items()}


def needed(tx: Sees, policy: Policy) -> int:
    """What is available by the kernel, and needed by the workers: what they have still to take, and have mapped."""
    memory = seen(tx)
    if memory is None:
        return sum(_to_come(tx, {}, promisable(policy)).values())
    return sum(_to_come(tx, memory.held, memory.budget).values()) + memory.mapped


def held_back(tx: Sees, model: str) -> bool:
    """Whether the CPU lane takes nothing up for a model, for want of memory."""
    row = tx.execute("SELECT out_reason FROM lanes WHERE lane='cpu' AND model=?", (model,)).fetchone()
    return row is not None and row[0] == HOST_MEMORY


PASSED: Final = frozenset({"over-budget", "oom-killed"})
"""Kinds that say that a worker had passed what it may hold."""
_BEFORE: Final = (
    "SELECT 1 FROM events f WHERE f.stream=? AND f.type='FaultSeen' AND json_extract(f.data, '$.kind') IN "
    "('over-budget','oom-killed') AND json_extract(f.data, '$.lane')='cpu' AND f.version > "
    "(SELECT coalesce(max(version), 0) FROM events c WHERE c.stream=f.stream AND c.type IN "
    "('Checkpointed','Resumed','Rerouted','Returned')) LIMIT 1"
)


def too_large(tx: Sees, kind: str, request_id: str) -> bool:
    """Whether a request's worker was ended for its memory before, without a checkpoint or a move since.

    The first time the worker may have been to blame, which had grown; the second time it is the request's size.
    """
    return kind in PASSED and tx.execute(_BEFORE, (request_id,)).fetchone() is not None
