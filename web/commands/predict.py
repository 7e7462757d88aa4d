"""`failsoft models predict`: what a model file needs in memory, by context length, by formula.

Without `--era` the laws are those of the engine that would serve the file here, and it is asked as that engine's
runners ask it; with `--era` nothing is assumed.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from core.memory import CONTEXT_BYTES, WORKER_BYTES, Era, PredictRow, predict_table, shape_of
from core.telling import prediction_notes
from web.commands.failed import OK, USAGE, CommandFailed
from web.commands.options import Commands, command, with_json
from web.commands.terminal import document, size_text, table
from web.footprints import CONTEXTS, setting_of

if TYPE_CHECKING:
    from store.models.choice import Engine

ERAS = [era.value for era in Era]


def add(inner: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the command below `models`."""
    parser = command(inner, "predict", predict, "print what a model file needs in memory, by context length")
    parser.add_argument("file", type=Path, help="a GGUF file")
    parser.add_argument("--context", type=int, action="append", help="a context length; may be repeated")
    parser.add_argument("--gpu-layers", type=int, default=999, help="layers on the device (default: all)")
    parser.add_argument("--slots", type=int, default=1, help="requests at once (default 1)")
    parser.add_argument("--cache-k", default="f16", help="type of the cached keys (default f16)")
    parser.add_argument("--cache-v", default="f16", help="type of the cached values (default f16)")
    parser.add_argument("--simulated", action="store_true", help="on a simulated device, which has no driver's share")
    parser.add_argument("--flash-attention", action="store_true", help="with flash attention")
    parser.add_argument(
        "--engine", choices=("auto", "llamacpp", "ctransformers"), default="auto", help="what computes it"
    )
    parser.add_argument("--era", choices=ERAS, help="whose laws (default: those of the engine)")
    with_json(parser)


def predict(args: argparse.Namespace) -> int:
    """A row for each context; what has no rule is unknown, and so is its total."""
    from store.models.choice import why_not
    from store.models.gguf import read_header

    if not args.file.is_file():
        raise CommandFailed(USAGE, f"there is no file {args.file}")
    header = read_header(args.file)
    shape = shape_of(header.metadata, [(tensor.name, tensor.nbytes) for tensor in header.tensors])
    engine = _engine(args.engine, why_not(header)) if args.era is None else None
    setting = setting_of(
        engine,
        Era(args.era) if args.era else None,
        n_gpu_layers=args.gpu_layers,
        slots=args.slots,
        cache_k=args.cache_k,
        cache_v=args.cache_v,
        flash_attention=args.flash_attention,
        process_context=0 if args.simulated else None,
    )
    most = shape.context_train
    usual = [context for context in CONTEXTS if most is None or context <= most] or [most or CONTEXTS[0]]
    rows = predict_table(shape, setting, args.context or usual)
    alone = predict_table(
        shape, msgspec.structs.replace(setting, n_gpu_layers=0, process_context=0), args.context or usual
    )
    lane = [None if row.host_total is None else row.host_total + WORKER_BYTES for row in alone]
    if args.json:
        items = [_plain(row) | {"cpu_lane_bytes": held} for row, held in zip(rows, lane, strict=True)]
        document({"engine": engine, "era": setting.era.value, "context_length": most, "items": items, "next": None})
        return OK
    print(f"engine {engine or '-'}, by the laws of {setting.era.value}\n")
    table(
        ("context", "weights", "kv", "state", "compute", "pool", "driver", "device", "and host", "CPU lane"),
        [
            (
                f"{row.context:,}" + ("*" if most is not None and row.context > most else ""),
                *(_size(part) for part in (row.weights, row.kv, row.recurrent, row.compute, row.pool, row.driver)),
                _size(row.device_total),
                _size(row.host_total),
                _size(held),
            )
            for row, held in zip(rows, lane, strict=True)
        ],
    )
    print()
    for note in prediction_notes(CONTEXT_BYTES, WORKER_BYTES, simulated=args.simulated):
        print(note)
    if most is not None:
        beyond = "; a longer one (*) is not served" if any(row.context > most for row in rows) else ""
        print(f"The model was made for a context of {most:,}{beyond}")
    for name in sorted({name for row in rows for name in row.unknown}):
        print(f"unknown: {name}; there is no rule for it with this architecture and these settings")
    return OK


def _engine(asked: str, reasons: "Mapping[Engine, list[str]]") -> str | None:
    """The engine asked for, or the first that can serve the file here; None when none can."""
    if asked != "auto":
        return asked
    return next((name for name, found in reasons.items() if not found), None)


def _plain(row: PredictRow) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(row)
    del plain["footprint"]
    return plain


def _size(count: int | None) -> str:
    return "unknown" if count is None else size_text(count)
