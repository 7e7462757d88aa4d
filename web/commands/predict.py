"""`failsoft models predict`: what a model file needs in memory, by context length, by formula."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from core.memory import Era, PredictRow, Setting, predict_table, shape_of
from web.commands.failed import OK, USAGE, CommandFailed
from web.commands.options import Commands, command, with_json
from web.commands.terminal import document, size_text, table

CONTEXTS = (2_048, 4_096, 8_192, 16_384, 32_768)
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
    parser.add_argument("--flash-attention", action="store_true", help="with flash attention")
    parser.add_argument("--era", choices=ERAS, default=Era.LLAMACPP_2025.value, help="whose laws (default %(default)s)")
    with_json(parser)


def predict(args: argparse.Namespace) -> int:
    """A row for each context; what has no rule is unknown, and so is its total."""
    from store.models.gguf import read_header

    if not args.file.is_file():
        raise CommandFailed(USAGE, f"there is no file {args.file}")
    header = read_header(args.file)
    shape = shape_of(header.metadata, [(tensor.name, tensor.nbytes) for tensor in header.tensors])
    setting = Setting(
        context=CONTEXTS[0],
        era=Era(args.era),
        n_gpu_layers=args.gpu_layers,
        slots=args.slots,
        cache_k=args.cache_k,
        cache_v=args.cache_v,
        flash_attention=args.flash_attention,
    )
    rows = predict_table(shape, setting, args.context or CONTEXTS)
    if args.json:
        document({"items": [_plain(row) for row in rows], "next": None})
        return OK
    table(
        ("context", "weights", "kv", "state", "compute", "pool", "driver", "device", "host"),
        [
            (
                f"{row.context:,}",
                *(_size(part) for part in (row.weights, row.kv, row.recurrent, row.compute, row.pool, row.driver)),
                _size(row.device_total),
                _size(row.host_total),
            )
            for row in rows
        ],
    )
    for name in sorted({name for row in rows for name in row.unknown}):
        print(f"unknown: {name}; there is no rule for it with this architecture and these settings")
    return OK


def _plain(row: PredictRow) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(row)
    del plain["footprint"]
    return plain


def _size(count: int | None) -> str:
    return "unknown" if count is None else size_text(count)
