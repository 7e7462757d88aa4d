"""The embedded default engine: ctransformers 0.2.27, whose native part is llama.cpp of August 2023.

It decides in which shapes tokens are evaluated and how the next one is drawn. Nothing else may.

1. Shapes are fixed. A prompt is evaluated from its start in batches of `PROMPT_BATCH`, every token of the answer
   alone. Another batching flips tokens; the same one is bit-identical, whatever the number of threads.
2. A resume replays those shapes: the prompt in its batches, then the durable units one at a time.
3. The newest token is evaluated only when its successor is wanted: a chunk is handed out without waiting for
   that, the last token of an answer is never evaluated, and the result is the same either way.
4. The seed of unit i is `seed_at(request seed, i)`; the native sampler reseeds at every call.
5. Greedy is top_k = 1 at temperature 1: the native sampler divides by the temperature, and keeps the first of
   the largest logits. Temperature 0 itself would make infinities of them.
6. A sequence starts by emptying the list of evaluated tokens; position 0 then overwrites what was there before.
7. The native code checks no token id and no length against its buffers, so both are checked here, first.
8. Text never passes through: ids in, ids out.

It prints to stderr from C++ and may end the process: whoever hosts it must expect that.
"""

import math
import sys
from collections.abc import Generator
from importlib import metadata
from pathlib import Path
from typing import Any

from core.errors import EngineFault
from core.seeds import seed_at
from runners.engines.base import (
    Capabilities,
    Chunk,
    EndReason,
    GenerateWork,
    Host,
    Loaded,
    LoadPlan,
    Ready,
    Sampling,
    Sequence,
)
from runners.engines.checks import check_work

PROMPT_BATCH = 16
"""Tokens per prompt batch. 64 is 3 % faster on a CPU with four times as long between pulses; changing it
changes answers, so that records made before no longer resume identically."""

_GREEDY_BELOW = 1e-4
"""Temperatures under this are greedy: logits divided by less leave the range where a draw makes sense."""

_PACKAGE = "ctransformers"


class CTransformersEngine:
    """Runs prepared GGUF files on the CPU, or with `gpu_layers` on an NVIDIA device (needs the [cuda] extra)."""

    name = _PACKAGE
    capabilities = Capabilities(workloads=("generate",), resume="token")

    def __init__(self) -> None:
        try:
            installed = metadata.version(_PACKAGE)
        except metadata.PackageNotFoundError as missing:
            raise EngineFault(
                f"The engine {_PACKAGE} is not installed. Install it with: pip install ctransformers==0.2.27"
            ) from missing
        self._kernels = _cpu_kernels()
        self.version = f"{installed}+{self._kernels or 'own'}"

    def load(self, model: Path, plan: LoadPlan) -> Loaded:
        """Map the file into memory. What makes the native code die instead of fail is the process's business."""
        try:
            from ctransformers.llm import LLM, Config

            config = Config(
                context_length=plan.context,
                gpu_layers=plan.gpu_layers,
                threads=plan.threads,
                batch_size=PROMPT_BATCH,
                mmap=True,
            )
            lib = None if plan.gpu_layers > 0 else self._kernels
            native = LLM(str(model), model_type="llama", config=config, lib=lib)
        except (ImportError, OSError, RuntimeError, ValueError) as cause:
            remedy = (
                "Install ctransformers[cuda] and check the driver, or load it with 0 layers on the device."
                if plan.gpu_layers > 0 and isinstance(cause, (ImportError, OSError))
                else f"Check the file, and prepare it with: failsoft models prepare {model}"
            )
            raise EngineFault(f"The model {model} does not load ({str(cause).rstrip('.')}). {remedy}") from cause
        return _Loaded(native)


class _Loaded:
    """One native instance: one sequence at a time; the newest one wins."""

    kv_format = ""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._sequence = 0
        self._context: int = native.context_length
        self._vocabulary: int = native.vocab_size

    def begin(self, work: GenerateWork, host: Host) -> Sequence:
        """Check the work, then hand out its chunks; nothing is evaluated before the first one is asked for."""
        if self._native is None:
            raise EngineFault("The model was closed; load it again.")
        check_work(work, context=self._context, vocabulary=self._vocabulary)
        self._sequence += 1
        return self._chunks(work, host, self._sequence)

    def at_rest(self, sequence: Sequence) -> bool:  # noqa: ARG002 -- the same for all
        """It computes only while it is asked for a chunk."""
        return True

    def save(self, sequence: Sequence, into: Path) -> int:
        """Raises `EngineFault`: the package offers no way to take its state out."""
        raise EngineFault(f"The engine {_PACKAGE} cannot save the state of {sequence!r} to {into}.")

    def check(self) -> None:
        """It lives as long as its process."""

    def close(self) -> None:
        """Free the native memory now. Sequences that are still open fail when they are asked for more."""
        self._sequence += 1
        self._native = None

    def _chunks(self, work: GenerateWork, host: Host, sequence: int) -> Generator[Chunk, None, None]:
        done = len(work.done)
        if done == work.max_units:
            yield Chunk((), "length")
            return
        self._own(sequence)
        pending = self._replay(work, host)
        evaluated = len(work.prompt) + max(0, done - 1)
        host.ready(Ready("recomputed" if done else "computed", 0, evaluated))
        end: EndReason | None = None
        while end is None:
            self._own(sequence)
            threads = host.threads()
            wanted = min(max(host.chunk_size(done), 1), work.max_units - done)
            units: list[int] = []
            while len(units) < wanted:
                if pending is not None:
                    self._eval((pending,), threads)
                    host.pulse(1)
                token = self._draw(work.sampling, done + len(units))
                if token in work.eos:
                    end = "eos"
                    break
                units.append(token)
                pending = token
            done += len(units)
            if end is None and done == work.max_units:
                end = "length"
            yield Chunk(tuple(units), end)

    def _replay(self, work: GenerateWork, host: Host) -> int | None:
        """Evaluate what is known already; the newest unit is left to whoever draws its successor."""
        threads = host.threads()
        # Given one token there is nothing to keep, so this empties the list of evaluated tokens.
        self._native.prepare_inputs_for_generation([0], reset=True)
        for start in range(0, len(work.prompt), PROMPT_BATCH):
            batch = work.prompt[start : start + PROMPT_BATCH]
            self._eval(batch, threads)
            host.pulse(len(batch))
        for unit in work.done[:-1]:
            self._eval((unit,), threads)
            host.pulse(1)
        return work.done[-1] if work.done else None

    def _eval(self, tokens: tuple[int, ...], threads: int) -> None:
        try:
            self._native.eval(tokens, batch_size=PROMPT_BATCH, threads=max(threads, 1))
        except RuntimeError as cause:
            raise EngineFault(f"The engine could not evaluate {len(tokens)} token(s): {cause}") from cause

    def _draw(self, sampling: Sampling, position: int) -> int:
        greedy = sampling.temperature < _GREEDY_BELOW
        top_k = 1 if greedy else sampling.top_k
        token: int = self._native.sample(
            top_k=top_k if top_k > 0 else self._vocabulary,
            top_p=1.0 if greedy else sampling.top_p,
            temperature=1.0 if greedy else sampling.temperature,
            repetition_penalty=1.0,
            last_n_tokens=1,  # unused at a penalty of 1; 0 would copy the whole context at every call
            seed=seed_at(sampling.seed, position),
        )
        # A device that computes garbage makes NaN of every logit, and the sampler then draws some token all the same.
        if not 0 <= token < self._vocabulary or not math.isfinite(self._native.logits[token]):
            raise EngineFault(f"The engine computed no usable logits for unit {position}.")
        return token

    def _own(self, sequence: int) -> None:
        if sequence != self._sequence:
            raise EngineFault("This sequence was overtaken by a newer one, or its model was closed.")


def _cpu_kernels() -> str | None:
    """Which of the package's builds fits this CPU; None leaves the choice to the package.

    The package finds out by starting another process, which takes a second of every recovery, and it takes its
    avx2 build without asking for the fma and f16c instructions in it. A build of its own is left to it.
    """
    installed = metadata.distribution(_PACKAGE).locate_file("ctransformers/lib/local")
    facts = Path("/proc/cpuinfo")
    if sys.platform != "linux" or Path(str(installed)).is_dir() or not facts.is_file():
        return None
    flags = next((line for line in facts.read_text().splitlines() if line.startswith("flags")), "").split()
    if not flags:
        return None
    if {"avx2", "fma", "f16c"} <= set(flags):
        return "avx2"
    return "avx" if {"avx", "f16c"} <= set(flags) else "basic"
