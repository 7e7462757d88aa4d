"""The shapes that readers see of the machine: lanes, devices, the host, runners and models, as plain JSON values.

By the rules of `web.views`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from core import ledger
from core.breaker import Breaker
from core.explain import reason
from core.ledger import DeviceFacts
from store.models.catalog import ModelEntry
from web.views import View, seconds_since, time_text


def lane_view(row: Mapping[str, Any], *, limit: int, now_us: int) -> View:
    """A lane for one model, from a row of `Reader.lanes`; `limit` is how many new requests may wait."""
    code = row["out_reason"]
    return {
        "lane": row["lane"],
        "model": row["model"],
        "serving": bool(row["serving"]),
        "out_reason": reason(code) if code else None,
        "reason_code": code,
        "device": row["device"],
        "engine": row["engine"],
        "contract": row["contract"],
        "context": row["context"],
        "resident": bool(row["resident"]),
        "running": row["running"],
        "waiting": row["waiting"],
        "limit": limit,
        "oldest_age_s": seconds_since(row["oldest_us"], now_us),
        "since": time_text(row["since_us"]),
    }


def device_label(row: Mapping[str, Any]) -> str:
    """A device's name, from which it is plain whether it is simulated."""
    name = str(row["name"])
    return f"{name} (simulated)" if row["simulated"] and "simulated" not in name.lower() else name


def is_upstream(device: str) -> bool:
    """Whether a device is a server of others, which has no memory that could be looked at."""
    return device.startswith("upstream:")


def ledger_view(facts: DeviceFacts | None) -> View:
    """What is promised of a device, by the arithmetic that admission decides with; bytes, unknown is null."""
    if facts is None:
        return {"promised": None, "headroom": None, "available": None, "foreign": None}
    return {
        "promised": [
            {"holder": one.name, "bytes": one.reserved, "returns_bytes": one.returns, "seen_bytes": one.ours}
            for one in facts.holders
        ],
        "headroom": facts.headroom,
        "available": ledger.available(facts),
        "foreign": ledger.foreign(facts),
    }


def device_view(row: Mapping[str, Any], *, now_us: int, facts: DeviceFacts | None = None) -> View:
    """A device with its latest reading, from a row of `Reader.devices`, and its ledger where `facts` are known."""
    simulated = bool(row["simulated"])
    code = row["reason"]
    return {
        "id": row["id"],
        "kind": "upstream" if is_upstream(row["id"]) else "gpu",
        "name": row["name"],
        "simulated": simulated,
        "label": device_label(row),
        "state": row["state"],
        "reason": reason(code) if code else None,
        "reason_code": code,
        "epoch": row["epoch"],
        "since": time_text(row["since_us"]),
        "breaker": breaker_view(row),
        "total_bytes": row["total_bytes"],
        "reading": row["reading"],
        "reading_at": None if row["read_us"] is None else time_text(row["read_us"]),
        "reading_age_s": seconds_since(row["read_us"], now_us),
    } | ledger_view(facts)


def breaker_of_row(row: Mapping[str, Any]) -> Breaker:
    """A device's breaker, from a row of `Reader.devices`."""
    return msgspec.json.decode(row["breaker_doc"], type=Breaker) if row["breaker_doc"] else Breaker()


def breaker_view(row: Mapping[str, Any]) -> View:
    """A device's breaker: `next_probe_at` is when it is tried again; null while it is not open, or held."""
    found = breaker_of_row(row)
    until_us, closed = found.until_us(), found.state == "closed"
    return {
        "state": found.state,
        "since": time_text(found.since_us) if found.since_us else None,
        "reason": None if closed else reason(found.reason),
        "reason_code": None if closed else found.reason,
        "rule": None if closed else found.rule,
        "held": found.held,
        "next_probe_at": None if until_us is None else time_text(until_us),
        "faults": len(found.faults_us),
        "trips": found.trips,
    }


def host_view(reading: tuple[int, Mapping[str, Any]] | None, *, now_us: int) -> View:
    """The host (RAM and cores) in the shape of a device; `reading` as `Reader.reading("host")` tells it."""
    at_us, document = reading or (None, None)
    return {
        "id": "host",
        "kind": "host",
        "name": "Host CPU and memory",
        "simulated": False,
        "label": "Host CPU and memory",
        "state": "ok",
        "reason": None,
        "reason_code": None,
        "epoch": 1,
        "since": None,
        "breaker": None,
        "total_bytes": document.get("total") if document else None,
        "reading": document,
        "reading_at": None if at_us is None else time_text(at_us),
        "reading_age_s": seconds_since(at_us, now_us),
    } | ledger_view(None)


def runner_view(row: Mapping[str, Any], *, now_us: int) -> View:
    """A runner process, from a row of `Reader.runners`."""
    held = row["requests"]
    return {
        "id": row["id"],
        "pid": row["pid"],
        "lane": row["lane"],
        "device": row["device"],
        "engine": row["engine"],
        "model": row["model"],
        "state": row["state"],
        "request_id": held[0] if held else None,
        "rss_bytes": row["rss_bytes"],
        "heartbeat_age_s": seconds_since(row["beat_us"], now_us),
        "load_progress": None,
        "started_at": time_text(row["started_us"]),
    }


def model_view(
    entry: ModelEntry,
    *,
    served: bool,
    lanes: Sequence[Mapping[str, Any]],
    runners: Sequence[Mapping[str, Any]],
    learned: Sequence[Mapping[str, Any]] = (),
) -> View:
    """A model of the catalog; `served` when the service was told to serve it. Rows as the `Reader` tells them."""
    resident = sorted({r["lane"] for r in runners if r["model"] == entry.id and r["state"] in {"idle", "busy"}})
    serving = sorted({row["lane"] for row in lanes if row["model"] == entry.id and row["serving"]})
    return {
        "id": entry.id,
        "name": entry.name,
        "workload": entry.workload,
        "engine": entry.engine,
        "contract": entry.contract,
        "quantization": entry.quantization or None,
        "parameters": entry.parameters or None,
        "context_length": entry.context_length or None,
        "footprint": _footprint(entry, lanes, learned),
        "readiness": "warm" if resident else "cold",
        "resident": resident,
        "served": served,
        "serving": serving,
        "problem": entry.problem or None,
    }


def _footprint(
    entry: ModelEntry, lanes: Sequence[Mapping[str, Any]], learned: Sequence[Mapping[str, Any]]
) -> View | None:
    """What it takes: its file, and on the device what the formula says beside what loads were seen to take."""
    lane = next((row for row in lanes if row["model"] == entry.id and row["lane"] == "gpu"), None)
    seen = [row for row in learned if row["model"] == entry.id and lane is not None and row["engine"] == lane["engine"]]
    if lane is None and not entry.prepared_bytes:
        return None
    last = max(seen, key=lambda row: row["updated_us"], default=None)
    basis = lane["need_basis"] if lane else "file"
    formula = lane["load_bytes"] if lane and basis == "formula" else None
    return {
        "file_bytes": entry.prepared_bytes or None,
        "basis": basis,
        "load_bytes": lane["load_bytes"] if lane else None,
        "token_bytes": lane["token_bytes"] if lane else None,
        "formula_bytes": last["formula_bytes"] if last else formula,
        "learned_bytes": last["learned_bytes"] if last else None,
        "last_seen_bytes": last["last_bytes"] if last else None,
        "loads_seen": last["loads"] if last else 0,
    }
