"""What an engine is, and what it may ask of the runner that hosts it.

1. An engine computes units (tokens) and knows nothing of the store, of lanes or of requests' states.
2. It works in *chunks*: a chunk is handed out whole, or, when a fault cuts it short, not at all.
3. Inside a chunk it only pulses. A pulse may raise: the engine lets that pass through.
4. Sampling is by position: the random state of unit i is a hash of (seed, i). Nothing random is carried over.
5. A resume replays the same shapes (prompt in its original batches, then one unit at a time), so that the
   continuation is bit-identical on the same build.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

import msgspec

EndReason = Literal["eos", "length"]


class Sampling(msgspec.Struct, frozen=True):
    """How the next token is drawn; `temperature` 0 means greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 40
    seed: int = 0


class GenerateWork(msgspec.Struct, frozen=True):
    """One request's work: exact token ids, never text, so that every path sees the same prompt."""

    prompt: tuple[int, ...]
    done: tuple[int, ...]
    """Units that are durable already; the engine goes on after them."""
    max_units: int
    """Total number of units wanted, those already done included."""
    eos: tuple[int, ...]
    """Ids that end the answer. They are not part of the units handed out."""
    sampling: Sampling


class Chunk(msgspec.Struct, frozen=True):
    """A run of units, complete; `end` says why nothing follows, or is None when more may come."""

    units: tuple[int, ...]
    end: EndReason | None = None


class LoadPlan(msgspec.Struct, frozen=True):
    """How a model is to be placed: context length in tokens, layers on the device, first thread count."""

    context: int
    gpu_layers: int = 0
    threads: int = 1


class Capabilities(msgspec.Struct, frozen=True):
    """What an engine can do, asked before work is given to it."""

    workloads: tuple[str, ...]
    resume: Literal["token", "text", "unit", "none"]
    snapshots: bool = False
    slots: int = 1
    cancel_in_prefill: bool = True


class Host(Protocol):
    """The runner, as an engine sees it."""

    def pulse(self, units: int) -> None:
        """Proof of life: `units` tokens (prompt or answer) were evaluated since the last pulse.

        Called after each prefill batch and each token. May raise to stop the work (cancel, lost lease, lost
        device).
        """

    def threads(self) -> int:
        """Asked before the prompt and at the start of each chunk; the grant holds until the next question."""

    def chunk_size(self, done: int) -> int:
        """Units wanted in the chunk that starts after `done` units."""


class Loaded(Protocol):
    """A model in memory, ready to work. One sequence at a time unless capabilities say more."""

    def begin(self, work: GenerateWork, host: Host) -> Iterator[Chunk]:
        """Chunks from `work.done` on; the last one has `end` set."""

    def close(self) -> None:
        """Give the memory back."""


class Engine(Protocol):
    """A way to compute."""

    name: str
    version: str
    capabilities: Capabilities

    def load(self, model: Path, plan: LoadPlan) -> Loaded:
        """Load a model file. Raises `core.errors.EngineFault` when it cannot."""
