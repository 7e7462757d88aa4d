"""One path, in a process of its own: what it answers, and what it would say next along a given text.

    python -m runners.prober PARENT-PID < job.json

1. A job comes in on standard input, the result goes into the file that the job names. Standard output carries nothing
   but counts of what is done, for whoever waits; native code may print there what it likes.
2. As many prompts at once as the path has slots: requests that share a batch are what a path with slots is.
3. Threads come out of the same book as those of a service on the same data directory, chunk by chunk.
4. Native code may end this process. So it is one that nobody else lives in.
"""

import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec

from core.chunks import chunk_size
from core.equivalence import END, Place
from core.errors import EngineFault
from runners.corebook import CoreBook
from runners.engines.base import Engine, GenerateWork, Loaded, LoadPlan, Ready, Said, Sampling
from runners.engines.registry import engine_named
from runners.process import die_with_parent, usable_cores
from runners.tells import NativeTells, OneToken, ServerTells, Tells, told_place
from store.models.catalog import ModelEntry, load_prompt_side
from store.models.probes import AskedPrompt
from store.settings import Upstream

_WAIT_S: Final = 0.002
FAULT: Final = 3
"""Exit code after an `EngineFault`; its text is the last line on standard error."""


class Job(msgspec.Struct, frozen=True):
    """What is to be measured of which path."""

    engine: str
    upstream: Upstream | None
    """The server of others that computes, instead of an engine."""
    entry: ModelEntry
    file: str
    plan: dict[str, Any]
    """Arguments of `LoadPlan`, its threads left out."""
    prompts: tuple[AskedPrompt, ...]
    eos: tuple[int, ...]
    units: int
    """Longest answer."""
    texts: tuple[tuple[int, ...], ...] | None
    """For each prompt what to go along; None: along the path's own answers."""
    chunk_cap: int
    cores: str
    """The core ledger's file."""
    reserve: int
    """Cores that stay free."""
    result: str
    stranger: bool = False
    """It is asked of a server that no lane here computes by; what that server calls itself is its build."""


class Measured(msgspec.Struct, frozen=True):
    """What came out."""

    build: str
    """Engine name and version, as lanes carry it."""
    answers: tuple[tuple[int, ...], ...]
    places: tuple[tuple[Place | None, ...], ...]


class SteadyHost:
    """A host that never stops the work, and gives the threads that the service's book grants."""

    def __init__(self, book: CoreBook, cap: int, fixed: int | None) -> None:
        self._book = book
        self._cap = cap
        self._fixed = fixed
        self._lock = threading.Lock()

    def pulse(self, units: int) -> None:
        """Nobody listens."""

    def threads(self) -> int:
        """Waits until there are some."""
        while True:
            with self._lock:
                granted = self._book.grant()
            if granted:
                return min(granted, self._fixed or granted)
            time.sleep(_WAIT_S)

    def chunk_size(self, done: int) -> int:
        """The plan that requests have."""
        return chunk_size(done, self._cap)

    def stretch(self, done: int) -> int:
        """One chunk."""
        return self.chunk_size(done)

    def ready(self, how: Ready) -> None:
        """Nobody asked."""


class Measuring:
    """A loaded path, and the questions to it."""

    def __init__(self, job: Job, engine: Engine, loaded: Loaded, host: SteadyHost) -> None:
        self._job = job
        self._engine = engine
        self._loaded = loaded
        # The protocol has neither distributions nor a server's name for itself: those are looked for behind it.
        self._inside: Any = loaded
        self._host = host
        self._at_once = int(job.plan.get("slots", 1))
        self._done = 0
        self._lock = threading.Lock()

    def run(self) -> Measured:
        """First all answers, then along the text, prompt by prompt."""
        count = len(self._job.prompts)
        answers = self._each(self._answer, range(count))
        texts = self._job.texts if self._job.texts is not None else answers
        tellers: queue.SimpleQueue[Tells | None] = queue.SimpleQueue()
        for slot in range(self._at_once):
            tellers.put(self._teller(slot))

        def along(index: int) -> tuple[Place | None, ...]:
            teller = tellers.get()
            try:
                return tuple(self._along(teller, self._job.prompts[index], texts[index]))
            finally:
                tellers.put(teller)

        # A path that cannot go on from a given text has nothing to compare there.
        places = self._each(along, range(count)) if self._engine.capabilities.resume != "none" else ((),) * count
        return Measured(f"{self._engine.name}/{self._version()}", answers, places)

    def _version(self) -> str:
        """As lanes carry it."""
        if self._job.upstream is not None:
            return self._job.upstream.name
        return str(self._inside._server.build if self._job.stranger else self._engine.version)  # noqa: SLF001 -- as above

    def _each(self, one: Callable[[int], tuple[Any, ...]], items: range) -> tuple[tuple[Any, ...], ...]:
        def counted(index: int) -> tuple[Any, ...]:
            found = one(index)
            with self._lock:
                self._done += 1
                sys.stdout.write(f"{self._done}\n")
                sys.stdout.flush()
            return found

        with ThreadPoolExecutor(self._at_once) as pool:
            return tuple(pool.map(counted, items))

    def _answer(self, index: int) -> tuple[int, ...]:
        asked = self._job.prompts[index]
        work = GenerateWork(asked.ids, (), self._job.units, self._job.eos, Sampling(), said=_said(asked))
        sequence = self._loaded.begin(work, self._host)
        units: list[int] = []
        try:
            for chunk in sequence:
                units += chunk.units
                if chunk.end == "eos":
                    units.append(END)
        finally:
            sequence.close()
        return tuple(units)

    def _teller(self, slot: int) -> Tells | None:
        if isinstance(self._loaded, Tells):
            return self._loaded
        if self._engine.name == "ctransformers":
            return NativeTells(self._loaded, self._host)
        if self._engine.name == "llamacpp":
            return ServerTells(self._inside._server.at, slot)  # noqa: SLF001 -- as above
        return None

    def _along(self, teller: Tells | None, asked: AskedPrompt, text: tuple[int, ...]) -> list[Place | None]:
        eos = self._job.eos
        units = tuple(unit for unit in text if unit != END)
        if teller is not None:
            return [told_place(teller, asked.ids, units[:at], eos) for at in range(len(text))]
        one = OneToken(self._loaded, self._host)
        return [one.place(asked.ids, units[:at], eos, _said(asked)) for at in range(len(text))]


def _said(asked: AskedPrompt) -> Said:
    return Said(asked.messages, asked.prompt)


def _engine(job: Job) -> Engine:
    engine: Engine
    if job.upstream is None:
        engine = engine_named(job.engine)
    else:
        from runners.engines.upstream import UpstreamEngine

        engine = UpstreamEngine(job.upstream, load_prompt_side(job.entry))
    most, wanted = engine.capabilities.slots, int(job.plan.get("slots", 1))
    if most < wanted:
        raise EngineFault(f"The engine {engine.name} works on {most} at once, not {wanted}. Give it fewer slots.")
    return engine


def main() -> int:
    """The child."""
    die_with_parent(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    book = CoreBook(Path(job.cores), total=usable_cores(), reserve=job.reserve)
    try:
        engine = _engine(job)
        while not (threads := book.grant()):
            time.sleep(_WAIT_S)
        plan = msgspec.structs.replace(msgspec.convert(job.plan, LoadPlan), threads=threads)
        loaded = engine.load(Path(job.file), plan)
        host = SteadyHost(book, job.chunk_cap, threads if engine.capabilities.fixed_threads else None)
        measured = Measuring(job, engine, loaded, host).run()
        loaded.close()
    except EngineFault as fault:
        sys.stderr.write(f"{fault}\n")
        return FAULT
    Path(job.result).write_bytes(msgspec.json.encode(measured))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Native threads have nothing left to do and could only hang.
    os._exit(code)
