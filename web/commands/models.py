"""`failsoft models`: which models there are here, make a file ready, and say what is wrong with one."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from web.commands import equivalence, predict
from web.commands.failed import OK, UNWELL, USAGE, CommandFailed
from web.commands.options import Commands, command, with_json, with_store
from web.commands.terminal import document, facts, note, size_text, table

if TYPE_CHECKING:
    from store.models.catalog import Catalog, ModelEntry
    from store.models.gguf import GGUF


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the command and what it consists of."""
    group = commands.add_parser("models", help="list, prepare and inspect models", description="Models.")
    inner = group.add_subparsers(metavar="WHAT", required=True)
    with_store(command(inner, "list", list_all, "list the models of a data directory"))
    parser = command(inner, "prepare", prepare, "make a model file ready to be served; it is tried in a process apart")
    parser.add_argument("file", type=Path, nargs="?", help="a GGUF file (default: the packaged small model)")
    parser.add_argument("--id", help="the id under which it is served (needed with a file)")
    parser.add_argument(
        "--engine",
        choices=("auto", "llamacpp", "ctransformers"),
        default="auto",
        help="what computes it (default auto: as before, else llama.cpp where it is installed and can)",
    )
    with_store(parser)
    parser = command(inner, "inspect", inspect, "say what a model file is, and whether it can be served here")
    parser.add_argument("file", type=Path, help="a GGUF file")
    with_json(parser)
    predict.add(inner)
    equivalence.add(inner)


def _catalog(args: argparse.Namespace, *, make: bool) -> "Catalog":
    from store.database import Paths, default_root
    from store.models.catalog import Catalog

    paths = Paths((args.data or default_root()).expanduser().absolute())
    return Catalog(paths.make().models if make else paths.models)


def list_all(args: argparse.Namespace) -> int:
    """The catalog, models with a problem included."""
    entries = _catalog(args, make=False).entries()
    if args.json:
        document({"items": [msgspec.to_builtins(entry) for entry in entries], "next": None})
        return OK
    table(
        ("id", "engine", "architecture", "weights", "parameters", "context", "size", "ready"),
        [
            (
                entry.id,
                entry.engine,
                entry.architecture or "-",
                entry.quantization or "-",
                f"{entry.parameters / 1e6:.0f} M" if entry.parameters else "-",
                str(entry.context_length or "-"),
                size_text(entry.prepared_bytes) if entry.prepared_bytes else "-",
                entry.problem or "yes",
            )
            for entry in entries
        ],
    )
    return OK


def prepare(args: argparse.Namespace) -> int:
    """Enter a model file, or the packaged one; the same file again changes nothing."""
    if args.file is not None and args.id is None:
        raise CommandFailed(USAGE, "give the model an id: failsoft models prepare FILE --id ID")
    if args.file is None and args.id is not None:
        raise CommandFailed(USAGE, "the packaged model has its own id; name a file to go with --id")
    if args.file is not None:
        _require_file(args.file)
    catalog = _catalog(args, make=True)
    note(f"Preparing {args.file or 'the packaged small model'}; this takes some seconds.")
    if args.file is None:
        entry = catalog.add_default(engine=args.engine)
    else:
        entry = catalog.add(args.file, args.id, engine=args.engine)
    if args.json:
        document(msgspec.to_builtins(entry))
    else:
        _told(entry)
    return UNWELL if entry.problem else OK


def _told(entry: "ModelEntry") -> None:
    facts(
        [
            ("model", entry.id),
            ("name", entry.name),
            ("engine", entry.engine),
            ("loaded from", f"{entry.prepared} ({size_text(entry.prepared_bytes)})"),
            ("contract", entry.contract),
            ("serve it", f"failsoft serve --model {entry.id}"),
        ]
    )


def inspect(args: argparse.Namespace) -> int:
    """Exit code 1 when it cannot be served, with every reason."""
    from store.models.choice import told, why_not
    from store.models.gguf import read_header

    _require_file(args.file)
    header = read_header(args.file)
    reasons = why_not(header)
    engine = next((name for name, found in reasons.items() if not found), None)
    summary = _summary(header)
    if args.json:
        problems = [] if engine else [f"{name}: {reason}" for name, found in reasons.items() for reason in found]
        able = [name for name, found in reasons.items() if not found]
        found_out = {"suitable": bool(able), "engine": engine, "engines": able, "problems": problems}
        document(summary | found_out | {"why_not": reasons})
        return OK if engine else UNWELL
    told_of = summary | {"file_bytes": f"{summary['file_bytes']:,} ({size_text(summary['file_bytes'])})"}
    facts([(name.replace("_", " "), _shown(value)) for name, value in told_of.items()])
    if engine is not None:
        able, others = [name for name, found in reasons.items() if not found], told(reasons)
        by = (
            able[0]
            if len(able) == 1
            else f"{', '.join(able[:-1])} and {able[-1]}; {able[0]} is taken unless --engine names another"
        )
        print(f"\nIt can be served here by {by}." + (f" But not by all: {others}" if others else ""))
        return OK
    print("\nIt cannot be served here:")
    for name, found in reasons.items():
        for problem in found:
            print(f"- {name}: {problem}")
    print("Choose another file of the model, with the architecture and the weights that the reasons name.")
    return UNWELL


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _summary(header: "GGUF") -> dict[str, Any]:
    architecture = header.metadata.get("general.architecture")
    kinds = {tensor.type.name: 0 for tensor in header.tensors}
    for tensor in header.tensors:
        kinds[tensor.type.name] += 1
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return {
        "file": str(header.path),
        "file_bytes": header.file_size,
        "gguf_version": header.version,
        "architecture": _text(architecture),
        "name": _text(header.metadata.get("general.name")),
        "parameters": sum(tensor.elements for tensor in header.tensors),
        "tensors": ", ".join(f"{count} {name}" for name, count in sorted(kinds.items())),
        "context_length": header.metadata.get(f"{architecture}.context_length"),
        "vocabulary": len(tokens) if isinstance(tokens, tuple) else None,
        "tokenizer": _text(header.metadata.get("tokenizer.ggml.model")),
        "pre_tokenizer": _text(header.metadata.get("tokenizer.ggml.pre")),
        "chat_template": "tokenizer.chat_template" in header.metadata,
    }


def _text(value: object) -> str | None:
    """A strange file's text, fit for JSON; None when it is none."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(value, str) else None


def _require_file(file: Path) -> None:
    if not file.is_file():
        raise CommandFailed(USAGE, f"there is no file {file}")
