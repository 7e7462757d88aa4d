"""Promised bytes, kept in the same transactions as the decisions that promise them.

1. `model:<id>` is the process of a resident model; a request's id is the bytes of its own tokens.
2. A request's promise ends with its state (`projections` sees to that); a process's ends when its bytes were seen to
   come back, or after a bounded wait that is recorded. Until then they stay promised as `leaving:<id>`, so that the
   same model may be promised anew beside its leaving process, and never in its place.
3. What a process is seen to hold is compared with its promise and those of its requests together.
"""

from typing import Any, Final

import msgspec

from core.decision import Need, Part
from core.ledger import DeviceFacts, Holder
from core.policy import Policy
from core.words import Lane
from store import hostlane
from store.journal import Sees, Tx

_parts: Final = msgspec.json.Decoder(tuple[Part, ...]).decode

_PUT: Final = (
    "INSERT INTO reservations (holder, device, model, kind, bytes, created_us) VALUES (?,?,?,?,?,?) "
    "ON CONFLICT (holder) DO UPDATE SET bytes=excluded.bytes, device=excluded.device"
)


def process_of(model: str) -> str:
    """The holder's name of a model's process."""
    return f"model:{model}"


def leaving_of(model: str) -> str:
    """The holder's name of a model's process that was told to make room."""
    return f"leaving:{model}"


def leave(tx: Tx, model: str) -> None:
    """The model's process is to go: its promise stays until its bytes are back, and serves nobody any more."""
    tx.execute(
        "UPDATE OR REPLACE reservations SET holder=?, kind='leaving' WHERE holder=?",
        (leaving_of(model), process_of(model)),
    )
    tx.execute("UPDATE lanes SET resident=0, gpu_layers=NULL WHERE lane='gpu' AND model=?", (model,))


def promise(tx: Tx, device: str, holder: str, model: str, size: int) -> None:
    """Promise bytes of a device; a holder has one promise, which this replaces."""
    kind = "process" if holder.startswith("model:") else "request"
    tx.execute(_PUT, (holder, device, model, kind, size, tx.now_us))


def promised(tx: Sees, holder: str) -> int | None:
    """Bytes promised to a holder, or None."""
    row = tx.execute("SELECT bytes FROM reservations WHERE holder=?", (holder,)).fetchone()
    return int(row[0]) if row else None


def raise_to(tx: Tx, holder: str, size: int) -> None:
    """A promise is at least so much from here on; nothing where there is none."""
    tx.execute("UPDATE reservations SET bytes=max(bytes, ?) WHERE holder=?", (size, holder))


def need_of(tx: Sees, lane: Lane, model: str) -> Need | None:
    """What a request of this model needs on its lane, or None where memory is not accounted."""
    row = tx.execute(
        "SELECT load_bytes, token_bytes, need_basis, parts FROM lanes WHERE lane=? AND model=?", (lane, model)
    ).fetchone()
    if row is None or (row[0] == 0 and row[1] == 0):
        return None
    load, token, basis, parts = row
    if lane == "gpu" and (held := promised(tx, process_of(model))) is not None:
        return Need(0, token, basis, held=held)
    return Need(load, token, basis, _parts(parts))


def device_facts(tx: Sees, device: str, policy: Policy, *, without: str | None = None) -> DeviceFacts | None:
    """The device as deciders see it now; `without` leaves one holder's promise out. None for an unknown device."""
    row = tx.execute(
        "SELECT d.state, d.total_bytes, r.at_us, r.doc FROM devices d "
        "LEFT JOIN readings r ON r.device=d.id WHERE d.id=?",
        (device,),
    ).fetchone()
    if row is None:
        return None
    state, total, at_us, document = row
    reading: dict[str, Any] = msgspec.json.decode(document) if document else {}
    total = reading.get("total") or total
    shared = bool(reading.get("unified"))
    return DeviceFacts(
        id=device,
        state="lost" if state != "ok" else _state(reading),
        total=total,
        driver_reserved=reading.get("reserved") or 0,
        used=reading.get("used"),
        headroom=max(policy.headroom_bytes, int((total or 0) * policy.host_floor)) if shared else policy.headroom_bytes,
        holders=_holders(tx, device, reading, without, at_us or 0),
        cap=policy.device_cap_bytes or None,
        age_s=None if at_us is None else max(0, tx.now_us - at_us) / 1e6,
        max_age_s=policy.reading_max_age_s,
        margin=min(policy.unseen_margin_bytes, (total or 0) // 8),
        blind_takes_work=policy.blind_takes_work,
        elsewhere=hostlane.needed(tx, policy) if shared else 0,
    )


def shared_with_host(tx: Sees, device: str) -> bool:
    """Whether a device was seen to have no memory of its own, but the host's."""
    sql = "SELECT json_extract(doc, '$.unified') FROM readings WHERE device=?"
    row = tx.execute(sql, (device,)).fetchone()
    return bool(row and row[0])


def _state(reading: dict[str, Any]) -> Any:
    state = reading.get("state", "unknown")
    return state if state in {"ok", "blind", "lost"} else "unknown"


def _holders(tx: Sees, device: str, reading: dict[str, Any], without: str | None, read_us: int) -> tuple[Holder, ...]:
    """One holder per model: its process and its requests, and what its processes were seen to hold together."""
    by_model: dict[str, tuple[int, int]] = {}
    for holder, model, kind, size in tx.execute(
        "SELECT holder, model, kind, bytes FROM reservations WHERE device=?", (device,)
    ):
        if holder == without:
            continue
        reserved, returns = by_model.get(model, (0, 0))
        by_model[model] = (reserved + size, returns + (0 if kind == "process" else size))
    seen = _seen(tx, device, reading)
    released = dict(
        tx.execute(
            "SELECT model, sum(bytes) FROM releases WHERE device=? AND at_us>=? GROUP BY model", (device, read_us)
        ).fetchall()
    )
    taken = {} if by_model.keys() <= seen.keys() else _taken(tx, device, read_us)
    names = sorted(by_model.keys() | seen.keys() | released.keys())
    return tuple(
        Holder(name, *by_model.get(name, (0, 0)), seen.get(name), released.get(name, 0), taken.get(name, 0))
        for name in names
    )


_TAKEN: Final = (
    "SELECT v.model, sum(v.bytes) FROM reservations v WHERE v.device=? AND CASE v.kind WHEN 'request' THEN EXISTS "
    "(SELECT 1 FROM requests q WHERE q.id=v.holder AND q.running=1 AND "
    "(SELECT max(s.at_us) FROM events s WHERE s.stream=q.id AND s.type='Started')<?) "
    "ELSE EXISTS (SELECT 1 FROM runners n JOIN events e ON e.stream='runner-'||n.id AND e.type='RunnerLoaded' "
    "WHERE n.model=v.model AND n.device=v.device AND e.at_us BETWEEN v.created_us AND ?) END GROUP BY v.model"
)


def _taken(tx: Sees, device: str, read_us: int) -> dict[str, int]:
    """Promised bytes by model that our runners had taken before then, where the driver does not tell."""
    return dict(tx.execute(_TAKEN, (device, read_us, read_us)).fetchall())


def _seen(tx: Sees, device: str, reading: dict[str, Any]) -> dict[str, int]:
    """Bytes by model, from the driver's list of processes and our runners' pids."""
    processes = {int(pid): size for pid, size in (reading.get("processes") or {}).items() if size is not None}
    found: dict[str, int] = {}
    for model, pid in tx.execute("SELECT model, pid FROM runners WHERE device=?", (device,)):
        if pid in processes:
            found[model] = found.get(model, 0) + processes[pid]
    return found


def spilling(tx: Sees, device: str) -> bool:
    """Whether memory pressure sends new work to the CPU lane."""
    row = tx.execute("SELECT spilling FROM devices WHERE id=?", (device,)).fetchone()
    return bool(row and row[0])


_FIRST_COME: Final = (
    "SELECT q.model, sum(q.prompt + q.most) FROM (SELECT model, json_extract(doc, '$.prompt_tokens') AS prompt, "
    "json_extract(doc, '$.max_units') AS most, json_extract(doc, '$.waits_for') AS rule FROM requests "
    "WHERE lane='gpu' AND running=0 AND cancel_asked=0 AND state IN ('admitted','checkpointed') AND id<>? "
    "AND NOT EXISTS (SELECT 1 FROM reservations v WHERE v.holder=requests.id)) q "
    "JOIN lanes l ON l.lane='gpu' AND l.model=q.model AND l.device=? "
    "WHERE q.rule IN ('fits-soon','fits-after-eviction') GROUP BY q.model"
)


def awaited(tx: Sees, device: str, request_id: str) -> int:
    """Bytes that requests accepted earlier wait for without a promise; nobody new is to pass them over."""
    total = 0
    for model, tokens in tx.execute(_FIRST_COME, (request_id, device)).fetchall():
        need = need_of(tx, "gpu", model)
        total += need.bytes_for(tokens) if need is not None else 0
    return total


def evictable(tx: Sees, device: str, model: str) -> int:
    """Bytes that idle models other than this one could give back; those that are pinned could not."""
    row = tx.execute(
        "SELECT coalesce(sum(bytes), 0) FROM reservations r "
        "WHERE device=? AND kind='process' AND model<>? AND NOT EXISTS "
        "(SELECT 1 FROM lanes l WHERE l.lane='gpu' AND l.model=r.model AND l.pinned=1) AND NOT EXISTS "
        "(SELECT 1 FROM requests q WHERE q.lane='gpu' AND q.model=r.model AND "
        "q.state IN ('admitted','running-gpu','checkpointed','rerouted-cpu'))",
        (device, model),
    ).fetchone()
    return int(row[0])
