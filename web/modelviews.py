"""One model as readers see it: its file, what it needs by context length, its lanes, and how alike they are proved.

1. The footprints are formula (`core.memory`); what loads were seen to take stands beside them, never mixed with them.
2. The host's column is the CPU lane's: nothing of the model on a device. Unknown is null, never zero.
   `cpu_lane_bytes` is that with the worker's programs: what a decision about the CPU lane counts.
3. A simulated device has no driver that takes a share for each process, so nothing is counted for one.
4. A pair is what `core.contract` says of the two lanes there are now; the proofs are those recorded for this contract.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from core.contract import HOST, PathFacts, pair_class
from core.equivalence import permits
from core.errors import ModelFileError
from core.events import Recorded
from core.explain import PAIRS
from core.memory import WORKER_BYTES, PredictRow, predict_table
from store.journal import Sees
from store.laneviews import LaneRow, lane_row, path_of
from store.models.catalog import ModelEntry
from store.proofs import proof_of, proofs_of
from web.footprints import CONTEXTS, engines_of_file, setting_of, shape_of_file
from web.views import View, event_view

_MOST_PROOFS: Final = 20
_PARTS: Final = ("weights", "kv", "recurrent", "compute", "pool", "driver")


def footprints(entry: ModelEntry, lanes: Sequence[Mapping[str, Any]], devices: Sequence[Mapping[str, Any]]) -> View:
    """Rows by context length, or why there are none; rows of the reader. Blocks: it reads the file's header.

    On the device of the model's GPU lane, or else on the one there is here; without any, as on a card.
    """
    simulated = _simulated(entry.id, lanes, devices)
    told = {"simulated": simulated, "worker_bytes": WORKER_BYTES}
    if not entry.prepared:
        return told | {"rows": [], "unknown": "it has no file: it is built in and takes what the settings say"}
    try:
        shape = shape_of_file(Path(entry.prepared))
    except (ModelFileError, OSError) as error:
        return told | {"rows": [], "unknown": f"its file cannot be read: {error}"}
    longest = entry.context_length or CONTEXTS[-1]
    served = {row["context"] for row in lanes if row["model"] == entry.id}
    contexts = sorted(
        {one for one in CONTEXTS if one <= longest} | served | ({longest} if longest < 1 << 18 else set())
    )
    engine = entry.engine if entry.engine in {"llamacpp", "ctransformers"} else None
    driver = 0 if simulated else None
    device = predict_table(shape, setting_of(engine, n_gpu_layers=999, process_context=driver), contexts)
    host = predict_table(shape, setting_of(engine, n_gpu_layers=0, process_context=0), contexts)
    rows = [_row(on, off, served) for on, off in zip(device, host, strict=True)]
    return told | {"rows": rows, "unknown": None}


def engines(entry: ModelEntry) -> list[str]:
    """The engines that can serve the model's file here; empty where it has none that can be read. Blocks."""
    file = entry.source or entry.prepared
    try:
        return list(engines_of_file(Path(file))) if file else []
    except (ModelFileError, OSError):
        return []


def _simulated(model: str, lanes: Sequence[Mapping[str, Any]], devices: Sequence[Mapping[str, Any]]) -> bool:
    own = {row["device"] for row in lanes if row["model"] == model and row["lane"] == "gpu"}
    kinds = {row["id"]: bool(row["simulated"]) for row in devices if not row["id"].startswith("upstream:")}
    asked = [kinds[one] for one in own if one in kinds] or list(kinds.values())
    return bool(asked) and all(asked)


def _row(device: PredictRow, host: PredictRow, served: set[int]) -> View:
    return {
        "context": device.context,
        "served": device.context in served,
        **{name: getattr(device, name) for name in _PARTS},
        "device_bytes": device.device_total,
        "host_bytes": host.host_total,
        "cpu_lane_bytes": None if host.host_total is None else host.host_total + WORKER_BYTES,
        "unknown": sorted({*device.unknown, *host.unknown}),
    }


def pair_view(look: Sees, entry: ModelEntry) -> View:
    """How alike the model's lanes are proved to answer, and every proof there is for its contract."""
    gpu, cpu = lane_row(look, "gpu", entry.id), lane_row(look, "cpu", entry.id)
    proofs = [_proof(record) for record in proofs_of(look, entry.contract, _MOST_PROOFS)]
    if gpu is None or cpu is None:
        return {"class": None, "proofs": proofs}
    return _pair(look, entry, gpu, cpu) | {"proofs": proofs}


def _pair(look: Sees, entry: ModelEntry, gpu: LaneRow, cpu: LaneRow) -> View:
    source, target = path_of(look, gpu), path_of(look, cpu)
    proof = proof_of(look, source, target)
    found = pair_class(source, target, proof)
    ends = f"{_spelt(entry.engine, source)} {_spelt(entry.engine, target)}"
    return {
        "class": found,
        "means": PAIRS[found],
        "permits": permits(found),
        "proof": proof,
        "source": source.name,
        "target": target.name,
        "prove": f"failsoft models equivalence {ends} --model {entry.id}",
    }


def _spelt(engine: str, path: PathFacts) -> str:
    """A path as the command line takes it."""
    if path.kind.startswith("upstream:"):
        return path.kind
    options = [] if path.kind == HOST else ["layers=99", f"device={path.kind}"]
    options += [f"slots={path.slots}"] if path.slots > 1 else []
    return f"{engine}:{','.join(options)}" if options else engine


def _proof(record: Recorded) -> View:
    view = event_view(record)
    return {"seq": view["seq"], "at": view["at"], "because": view["because"], **view["data"]}
