"""A server that speaks the OpenAI API, as an engine: vLLM, Ollama, LocalAI, llama-server, or a command that starts one.

1. It is healthy when it answers a question, not when it says so: a load ends with a short answer that must be one.
2. The way it is declared to go on with an answer is tried out at each load. One that fails the trial can only begin
   answers; what was begun elsewhere is then `CannotContinue`, and another engine takes it up.
3. Units are ids of the catalog's model that spell the server's text exactly; the server's own count of tokens may
   differ. The answer ends where either count reaches its limit.
4. Waiting is bounded and full of signs of life. Leaving closes the connection, which stops the server.
5. One seed serves the whole call: that of the first unit of it.
"""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Literal

from core.errors import EngineFault
from runners.engines.answers import Answer
from runners.engines.asking import Ask, Continues, ask_for
from runners.engines.base import (
    Capabilities,
    Chunk,
    EndReason,
    GenerateWork,
    Host,
    Loaded,
    LoadPlan,
    Ready,
    Sequence,
)
from runners.engines.checks import check_work
from runners.engines.openaihttp import Stream
from runners.engines.spelling import Speller
from runners.engines.tryout import Server, canary, continues_as_declared, reach
from runners.managed import Managed
from store.models.prompt_side import PromptSide
from store.settings import Upstream

MOST_SLOTS = 64
"""The server has a queue of its own; how many are asked at once is the lane's setting."""
_END_S = 1.0
"""How long a command's end may take to be seen, once its connections are."""


class UpstreamEngine:
    """One server. `version` and `capabilities` are those that were declared until it is loaded, then those found."""

    name = "upstream"

    def __init__(self, upstream: Upstream, side: PromptSide, *, waiting: Callable[[], None] | None = None) -> None:
        """`waiting` is called at least twice a second while the server is started and tried out."""
        self.version = "1"
        self.capabilities = _capabilities(upstream.continues)
        self.device = f"upstream:{upstream.name}"
        self._upstream = upstream
        self._side = side
        self._waiting = waiting or _nothing

    def load(self, model: Path, plan: LoadPlan) -> Loaded:
        """Start the command or find the server, and try it out. `model` is what `${MODEL}` stands for."""
        upstream = self._upstream
        if bool(upstream.url) == bool(upstream.cmd):
            raise EngineFault(f"The upstream {upstream.name} needs a url, or else a cmd that starts it; give one.")
        managed = None
        if upstream.cmd:
            values = {"MODEL": str(model)}
            managed = Managed.start(upstream.cmd, start_s=upstream.start_s, values=values, waiting=self._waiting)
        loaded = None
        try:
            server = reach(upstream, managed.url if managed is not None else upstream.url)
            loaded = _Loaded(server, upstream, self._side, plan.context, managed)
            loaded.canary = canary(loaded, self._waiting)
            loaded.continues = continues_as_declared(loaded, self._waiting)
        except BaseException:
            if loaded is not None:
                loaded.close()
            elif managed is not None:
                managed.close()
            raise
        self.version = server.version or self.version
        self.capabilities = _capabilities(loaded.continues)
        return loaded


class _Loaded:
    """A server that has been tried out."""

    kv_format = ""

    def __init__(
        self, server: Server, upstream: Upstream, side: PromptSide, context: int, managed: Managed | None
    ) -> None:
        self.server = server
        self.upstream = upstream
        self.side = side
        self.context = context
        self.continues: Continues = upstream.continues
        self.canary = ""
        """What it answered when it was tried out."""
        self._managed = managed
        self._open: set[Answer] = set()

    def begin(self, work: GenerateWork, host: Host) -> Sequence:
        """Check the work; nothing is sent before the first chunk is asked for. Raises `CannotContinue` too."""
        self.check()
        _check(work, self.context)
        ask = ask_for(work, self.side, self.server.model, self.continues)
        return self._chunks(work, host, ask)

    def at_rest(self, sequence: Sequence) -> bool:  # noqa: ARG002 -- the same for all
        """Between chunks nobody of ours computes; what the server does ahead is its own."""
        return True

    def save(self, sequence: Sequence, into: Path) -> int:
        """Raises `EngineFault`: there is no way to take a server's state out."""
        raise EngineFault(f"The upstream {self.upstream.name} cannot save the state of {sequence!r} to {into}.")

    def check(self) -> None:
        """Raise `EngineFault` when the command that serves has ended."""
        if self._managed is not None and (how := self._managed.ended()) is not None:
            raise EngineFault(f"The command {self._managed.name} of the upstream {self.upstream.name} {how}.")

    def close(self) -> None:
        """Leave all answers, and end the command. Twice does nothing."""
        for answer in tuple(self._open):
            answer.close()
        if self._managed is not None:
            self._managed.close()

    def answer(self, ask: Ask, alive: Callable[[], None]) -> Answer:
        """Ask the server; whoever does leaves the answer with `leave`."""
        limits = self.upstream
        stream = Stream(self.server.address, ask.path, ask.body, limits.first_byte_s)
        answer = Answer(stream, first_s=limits.first_byte_s, silence_s=limits.silence_s, alive=alive)
        self._open.add(answer)
        return answer

    def leave(self, answer: Answer) -> None:
        """Close its connection."""
        self._open.discard(answer)
        answer.close()

    def explained(self, fault: EngineFault) -> EngineFault:
        """The fault, with the end of the command as its cause where it has ended."""
        how = self._managed.ended(_END_S) if self._managed is not None else None
        if how is None:
            return fault
        return EngineFault(f"The command of the upstream {self.upstream.name} {how}. {fault}")

    def _chunks(self, work: GenerateWork, host: Host, ask: Ask) -> Generator[Chunk, None, None]:
        if len(work.done) == work.max_units:
            yield Chunk((), "length")
            return
        host.threads()
        answer = self.answer(ask, lambda: host.pulse(0))
        try:
            yield from self._units(work, host, ask, answer)
        except EngineFault as fault:
            raise self.explained(fault) from fault
        finally:
            self.leave(answer)

    def _units(self, work: GenerateWork, host: Host, ask: Ask, answer: Answer) -> Generator[Chunk, None, None]:
        done = len(work.done)
        speller = Speller(self.side)
        ready: list[int] = []
        end: EndReason | None = None
        first = True
        while True:
            host.threads()
            wanted = min(max(host.chunk_size(done), 1), work.max_units - done)
            while len(ready) < wanted and end is None:
                piece = answer.piece()
                if first:
                    first = False
                    evaluated = len(work.prompt) + done
                    host.pulse(evaluated)
                    host.ready(Ready(ask.way, 0, evaluated))
                end = piece.end
                units = speller.take(piece.text)
                units += speller.rest(cut=end == "length") if end is not None else ()
                ready += units
                host.pulse(len(units))
            units, ready = tuple(ready[:wanted]), ready[wanted:]
            done += len(units)
            if done == work.max_units:
                yield Chunk(units, "length")
                return
            if end is not None and not ready:
                yield Chunk(units, end)
                return
            yield Chunk(units)


def _check(work: GenerateWork, context: int) -> None:
    check_work(work, context=context)


def _capabilities(continues: Continues) -> Capabilities:
    resume: Literal["token", "text", "none"] = "text"
    if continues in {"tokens", "none"}:
        resume = "token" if continues == "tokens" else "none"
    return Capabilities(workloads=("generate",), resume=resume, slots=MOST_SLOTS)


def _nothing() -> None:
    """Nobody wants to be asked while waiting."""
