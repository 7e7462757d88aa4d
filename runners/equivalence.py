"""`failsoft models equivalence`: how alike do two paths answer? Measures it, records it, and says what it permits.

    python -m runners.equivalence SOURCE TARGET …

1. Contracts that differ end it: no measurement could make these paths alike.
2. The paths are loaded one after the other, each in a process of its own (`runners.prober`): memory is needed for one
   at a time, and native code that dies is an error with a name.
3. The store is opened before anything is measured, so that nobody waits for a proof that cannot be kept. It may be that
   of a running service, whose threads come out of the same book.
4. Too little compared is told and not kept: it would take away, or give, what nothing was learned about.
5. Standard output is one JSON document, `{"error": …}` included; standard error tells how far it is.
"""

import argparse
import os
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from core import equivalence as eq
from core.contract import PathFacts, pair_class
from core.errors import EngineFault, FailsoftError, Impossible, Malformed, ModelFileError, ServiceError
from core.words import PairClass
from runners.measuring import measured
from runners.pathspec import PathSpec, parse
from runners.prober import Job, Measured
from runners.process import die_with_parent
from store import proofs
from store.database import Paths, default_root, migrate
from store.journal import Tx
from store.models.catalog import Catalog, ModelEntry, load_prompt_side
from store.models.gguf import read_header
from store.models.prepare import prepare
from store.models.probes import PROBES, asked
from store.models.suitability import require_suitable
from store.models.weights import weights_digest
from store.settings import Settings, in_force, load
from store.writer import Writer

RECORDED, NOT_WELL, USAGE, REFUSED, REJECTED = range(5)
"""Exit codes, in the meanings that `failsoft --help` tells."""
TOKENS: Final = 48
MOST_TOKENS: Final = 512
"""Usual and longest answer to a probe prompt."""


class Side(msgspec.Struct, frozen=True):
    """A path, the model it computes, and the file it loads."""

    spec: PathSpec
    entry: ModelEntry
    file: str

    @property
    def parts(self) -> eq.ContractParts:
        """What its contract digests."""
        one = self.entry
        return eq.ContractParts(one.tokenizer_digest, one.weights_digest, one.template_digest, one.quantization)

    @property
    def engine(self) -> str:
        """The engine that computes it."""
        return self.spec.engine or self.entry.engine

    def facts(self, build: str) -> PathFacts:
        """As deciders see it."""
        return PathFacts(build, self.entry.contract, self.spec.kind, self.spec.slots)

    def told(self, build: str) -> dict[str, Any]:
        """As people see it."""
        spec = self.spec
        return {"path": spec.text, "model": spec.model, "engine": build, "kind": spec.kind, "slots": spec.slots}


def side_of(catalog: Catalog, spec: PathSpec) -> Side:
    """Find the model, and a file that this engine loads. Raises `Impossible` or `ModelFileError` with the remedy."""
    entry = catalog.get(spec.model)
    if entry.problem:
        raise ModelFileError(f"model {entry.id} cannot be used: {entry.problem}")
    engine = spec.engine or entry.engine
    if spec.server and spec.upstream is None:
        # The server has its own; this one tells whether it is the same model, where it is still there.
        return Side(spec, entry, entry.source)
    if spec.upstream is not None or engine in {entry.engine, "null"}:
        return Side(spec, entry, entry.prepared)
    for other in catalog.entries():
        if (other.contract, other.engine, other.problem) == (entry.contract, engine, ""):
            return Side(spec, entry, other.prepared)
    return Side(spec, entry, str(_file(entry, engine, catalog.directory / entry.id)))


def _file(entry: ModelEntry, engine: str, home: Path) -> Path:
    """What an engine loads that the model was not entered for: its source, or a copy of that made now."""
    source = Path(entry.source)
    remedy = f"Enter the model for {engine} under another id (failsoft models prepare), and name that id as the path"
    if not entry.source or not source.is_file():
        raise Impossible(f"the file that model {entry.id} was made of is not there any more. {remedy}")
    header = read_header(source)
    if weights_digest(header) != entry.weights_digest:
        raise Impossible(f"{source} holds other weights now than those model {entry.id} was made of. {remedy}")
    if engine == "llamacpp":
        return source
    require_suitable(header)
    return prepare(source, home)


class Measurement:
    """Both paths, one after the other."""

    def __init__(self, paths: Paths, settings: Settings, prompts: int, tokens: int) -> None:
        self._paths = paths
        self._settings = settings
        self._prompts = prompts
        self._tokens = tokens

    def run(self, source: Side, target: Side) -> tuple[Measured, Measured, list[eq.Compared]]:
        """Free answers of both, and both along the source's answers."""
        first = self._measure("source", source, None)
        second = self._measure("target", target, first.answers)
        names = [prompt.name for prompt in asked(source.entry, self._prompts)]
        both = zip(names, first.answers, second.answers, first.places, second.places, strict=True)
        probes = [eq.Probe(name, eq.Answer(a), eq.Answer(b), c, d) for name, a, b, c, d in both]
        return first, second, [eq.compare(probe) for probe in probes]

    def _measure(self, role: str, side: Side, texts: tuple[tuple[int, ...], ...] | None) -> Measured:
        prompts = asked(side.entry, self._prompts)
        name = side.spec.text
        self._note(f"{role} {name}: loading")
        steps = 2 * len(prompts)

        def tell(done: int) -> None:
            if done * 4 // steps > (done - 1) * 4 // steps:
                self._note(f"{role} {name}: {done * 100 // steps} %")

        return measured(self._job(side, texts), name, tell)

    def _job(self, side: Side, texts: tuple[tuple[int, ...], ...] | None) -> Job:
        spec, entry, settings = side.spec, side.entry, self._settings
        plan = {
            "context": min(settings.context, entry.context_length),
            "gpu_layers": spec.layers,
            "slots": spec.slots,
            "cells": settings.pool_tokens if spec.slots > 1 else 0,
            "contract": entry.contract,
            "server": spec.server or (settings.llama_server if side.engine == "llamacpp" else ""),
        }
        return Job(
            engine=side.engine,
            upstream=spec.upstream,
            entry=entry,
            file=side.file,
            plan=plan,
            prompts=asked(entry, self._prompts),
            eos=load_prompt_side(entry).eos,
            units=self._tokens,
            texts=texts,
            chunk_cap=settings.policy.chunk_cap,
            cores=str(self._paths.run / "cores"),
            reserve=settings.policy.reserve_cores,
            result="",
            stranger=spec.server not in {"", settings.llama_server},
        )

    @staticmethod
    def _note(text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def keep(
    writer: Writer, source: PathFacts, target: PathFacts, verdict: eq.Verdict, compared: Sequence[eq.Compared]
) -> tuple[PairClass, PairClass]:
    """Record it, if it proves anything; the classes in force before and now."""
    event = eq.proved(source, target, verdict, compared)

    def unit(tx: Tx) -> tuple[PairClass, PairClass]:
        before = pair_class(source, target, proofs.proof_of(tx, source, target))
        if not verdict.proves:
            return before, before
        proofs.keep(tx, source, target, event, actor="equivalence")
        return before, pair_class(source, target, event.pair)

    return writer.run(unit)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="failsoft models equivalence")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--model")
    parser.add_argument("--data", type=Path, default=default_root())
    parser.add_argument("--config", type=Path)
    parser.add_argument("--prompts", type=int, default=len(PROBES))
    parser.add_argument("--tokens", type=int, default=TOKENS)
    return parser


def run(args: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """The exit code and the document."""
    if not 1 <= args.prompts <= len(PROBES) or not 1 <= args.tokens <= MOST_TOKENS:
        raise Malformed(f"there are 1 to {len(PROBES)} prompts (--prompts) and 1 to {MOST_TOKENS} tokens (--tokens)")
    paths = Paths(args.data.expanduser().absolute())
    settings = _settings(paths, args.config)
    catalog = Catalog(paths.models)
    known = [entry.id for entry in catalog.entries()]
    source, target = (
        side_of(catalog, parse(text, model=args.model, known=known, upstreams=settings.upstreams))
        for text in (args.source, args.target)
    )
    differ = eq.parts_that_differ(source.parts, target.parts)
    if differ or source.entry.contract != target.entry.contract:
        why = (
            f"{args.source} and {args.target} are not the same model: they differ in {', '.join(differ) or 'contract'}"
        )
        detail = f"{why}. Their class is none, and nothing was computed. Name two paths that compute one model"
        return REJECTED, {"error": {"detail": detail, "code": "contract", "pair": "none", "differ": differ}}
    if not paths.make().database.is_file():
        migrate(paths)
    writer = Writer(paths)
    try:
        measurement = Measurement(paths, settings, args.prompts, args.tokens)
        first, second, compared = measurement.run(source, target)
        here, there = source.facts(first.build), target.facts(second.build)
        verdict = eq.judge(here, there, eq.totals(compared))
        before, now = keep(writer, here, there, verdict, compared)
    finally:
        writer.close()
    sides = {"source": source.told(first.build), "target": target.told(second.build)}
    outcome = {"before": before, "now": now, "recorded": verdict.proves, "change": eq.change(before, now)}
    document = sides | {"contract": here.contract} | _figures(verdict, compared) | outcome
    return (RECORDED if verdict.proves else NOT_WELL), document | {"failover": eq.permits(now)}


def _figures(verdict: eq.Verdict, compared: Sequence[eq.Compared]) -> dict[str, Any]:
    found = eq.totals(compared)
    prompts = [
        {
            "name": one.name,
            "first_difference": one.first_difference,
            "tokens": one.tokens,
            "agreed": one.agreed,
            "divergence": one.divergence / one.measured if one.measured else None,
        }
        for one in compared
    ]
    sums = msgspec.structs.asdict(found) | {"agreement": found.agreement}
    return {"prompts": prompts, "totals": sums, "pair": verdict.pair, "reasons": verdict.reasons}


def _settings(paths: Paths, config: Path | None) -> Settings:
    """Of the file that was named, or of the service that runs or ran here, or none."""
    if config is None and (paths.run / "settings.json").is_file():
        return in_force(paths)
    return load(config, os.environ)


def main(argv: Sequence[str] | None = None) -> int:
    """One document on standard output, whatever happens."""
    if argv is None:
        die_with_parent(os.getppid())  # a measurement that nobody waits for any more is not recorded
    try:
        code, document = run(_parser().parse_args(argv))
    except FailsoftError as error:
        code, document = _code(error), {"error": {"detail": error.detail, "code": error.code}}
    except (sqlite3.Error, SQLAlchemyError) as error:
        detail = (
            f"the store cannot be opened: {getattr(error, 'orig', None) or error}. Look at it with: failsoft verify"
        )
        code, document = NOT_WELL, {"error": {"detail": detail, "code": "store"}}
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    return code


def _code(error: FailsoftError) -> int:
    if isinstance(error, EngineFault | ModelFileError):
        return NOT_WELL
    if isinstance(error, ServiceError):
        return REFUSED
    return USAGE if isinstance(error, Malformed) else REJECTED


if __name__ == "__main__":
    sys.exit(main())
