"""What an engine is, and what it may ask of the runner that hosts it.

1. An engine computes units (tokens) and knows nothing of the store, of lanes or of requests' states.
2. It works in *chunks*: a chunk is handed out whole, or, when a fault cuts it short, not at all.
3. Inside a chunk it only pulses. A pulse may raise: the engine lets that pass through.
4. Sampling is by position: the random state of unit i is a hash of (seed, i). Nothing random is carried over.
   An engine that takes one seed for a whole call draws a chunk with the seed of the chunk's first unit.
5. A resume replays the same shapes (prompt in its original batches, then one unit at a time), so that the
   continuation is bit-identical on the same build; or it begins with a snapshot, and replays only what came after it.
6. A snapshot is taken between chunks. What it must hold is told by whoever kept it, and checked when it is used.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

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
    snapshot: "Snapshot | None" = None
    """Begin with this saved state instead of computing what it holds. Its file was verified already."""
    constraint: "Constraint | None" = None
    """What every answer must match. The work is then one chunk: the state of a grammar is carried nowhere."""
    said: "Said | None" = None
    """The conversation in words, for an engine that takes no token ids."""


class Snapshot(msgspec.Struct, frozen=True):
    """A saved state of the attention cache: a file, and what it holds."""

    path: Path
    tokens: int
    """Tokens evaluated in it: the prompt, and the first units of the answer."""


class Constraint(msgspec.Struct, frozen=True):
    """Exactly one of the two."""

    grammar: str | None = None
    """In llama.cpp's GBNF."""
    json_schema: dict[str, Any] | None = None


class Said(msgspec.Struct, frozen=True):
    """What the prompt's tokens were made of."""

    messages: tuple[tuple[str, str], ...] = ()
    """(role, content) in order; empty for raw text."""
    prompt: str | None = None
    """Raw text, instead of messages."""


Way = Literal["computed", "snapshot", "recomputed", "text"]
"""How a sequence got ready: from the prompt alone; from a snapshot; prompt and units anew; by sending text on."""


class Ready(msgspec.Struct, frozen=True):
    """The prefix is evaluated; the next thing is a new unit."""

    way: Way
    restored: int
    """Tokens that came out of a snapshot."""
    computed: int
    """Tokens that were evaluated."""
    note: str = ""
    """Why a snapshot that was offered was not used; empty when there is nothing to say."""


class Chunk(msgspec.Struct, frozen=True):
    """A run of units, complete; `end` says why nothing follows, or is None when more may come."""

    units: tuple[int, ...]
    end: EndReason | None = None


class LoadPlan(msgspec.Struct, frozen=True):
    """How a model is to be placed: context length in tokens, layers on the device, first thread count."""

    context: int
    gpu_layers: int = 0
    threads: int = 1
    """For the whole life of the model, where the engine cannot change them."""
    slots: int = 1
    """Sequences at once."""
    cells: int = 0
    """Tokens that all sequences together may hold; 0: each may hold a whole context."""
    snapshots: Path | None = None
    """Where snapshots are saved to and read from; None: none are wanted."""
    contract: str = ""
    """Of the model; part of what a snapshot agrees to."""
    server: str = ""
    """How the engine's server is reached, where it has one: empty (inside this process), a URL, or a command line
    with `${PORT}` and `${MODEL}` in it."""


class Capabilities(msgspec.Struct, frozen=True):
    """What an engine can do, asked before work is given to it."""

    workloads: tuple[str, ...]
    resume: Literal["token", "text", "unit", "none"]
    slots: int = 1
    """Most sequences at once that this engine can take; `LoadPlan.slots` may ask for fewer."""
    fixed_threads: bool = False
    """It keeps the threads it was loaded with."""


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

    def stretch(self, done: int) -> int:
        """Units after `done` that may be computed in one go, at least a chunk.

        Nothing will be asked of the engine between their chunks: no snapshot, no making room. They are handed out in
        chunks all the same.
        """

    def ready(self, how: Ready) -> None:
        """Called once, when the prefix is evaluated and before the first new unit is computed."""


class Sequence(Protocol):
    """The chunks of one piece of work, in order. Whoever takes them closes it, at the end or before."""

    def __iter__(self) -> Iterator[Chunk]:
        """Itself."""

    def __next__(self) -> Chunk:
        """The next chunk; the last one has `end` set."""

    def close(self) -> None:
        """Stop computing, and let go of the slot. Closing twice does nothing."""


class Loaded(Protocol):
    """A model in memory, ready to work. As many sequences at once as were planned."""

    kv_format: str
    """What a snapshot must agree to for this engine to take it; empty: it has none."""

    def begin(self, work: GenerateWork, host: Host) -> Sequence:
        """Chunks from `work.done` on. Raises `core.errors.EngineFault` for work that cannot be."""

    def at_rest(self, sequence: Sequence) -> bool:
        """Whether nothing is computed for it now: not so between two chunks of one stretch."""

    def save(self, sequence: Sequence, into: Path) -> int:
        """Save the sequence's state at rest, between two chunks, and answer the tokens it holds.

        The file is complete, not yet flushed to the disk. Raises `EngineFault` when it could not be saved; the
        sequence goes on in any case.
        """

    def check(self) -> None:
        """Asked while nothing is computed. Raises `EngineFault` when it cannot work any more."""

    def close(self) -> None:
        """Give the memory back."""


class Engine(Protocol):
    """A way to compute."""

    name: str
    version: str
    capabilities: Capabilities

    def load(self, model: Path, plan: LoadPlan) -> Loaded:
        """Load a model file. Raises `core.errors.EngineFault` when it cannot."""
