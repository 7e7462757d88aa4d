"""One answer from a llama-server's slot: in which calls it is computed.

1. An answer begins in an empty slot, its prompt in the server's batches. Each later token is evaluated alone: the
   first of a call as a prompt of one, the others as they are drawn. Both are the same shape, and bit-identical.
2. A drawn chunk is one call, with the seed of its first unit. A greedy stretch is one call for all of its chunks.
3. Within a stretch the next call is under way before a chunk is handed out. Between stretches the slot is at rest.
4. A stream that hides a token is given up, and the chunk is asked for again in one piece, as are all that follow:
   text that hides one token hides more.
5. A constraint's state lives inside one call, so the whole answer is one chunk.
"""

import contextlib
from collections import deque
from collections.abc import Generator, Iterator

import msgspec

from core.errors import CannotContinue, EngineFault, Unworkable
from runners.engines.base import Chunk, EndReason, GenerateWork, Host, Ready
from runners.engines.jsonprefix import begins_json, is_json
from runners.engines.llamabody import answer_body, is_greedy
from runners.engines.llamacache import SlotCache
from runners.engines.llamahttp import Event, Progress, Question, Stream
from runners.engines.llamareading import ENDED_BY_MODEL, Reading, Unnamed, check_end
from runners.engines.llamaslots import Slot


class _Drawing(msgspec.Struct, frozen=True):
    n_decoded: int = 0


class _State(msgspec.Struct, frozen=True):
    id: int
    is_processing: bool = False
    n_prompt_tokens_processed: int = 0
    next_token: tuple[_Drawing, ...] = ()


class SlotSequence:
    """`runners.engines.base.Sequence` over one slot."""

    def __init__(self, slot: Slot, work: GenerateWork, host: Host) -> None:
        self._slot = slot
        self._work = work
        self._host = host
        self._greedy = is_greedy(work.sampling)
        self._cache = SlotCache(slot, host.pulse)
        self._units = list(work.done)
        self._is_ready = False
        self._sizes: deque[int] = deque()
        """Of the chunks to come in this stretch."""
        self._asked: tuple[int, int] | None = None
        self._reading: Reading | None = None
        self._in_one_piece = False
        self._pulsed = 0
        self._open = True
        self.at_rest = False
        """Between two stretches: nothing is computed, and the slot holds what `SlotCache.held` says."""
        self._chunks = self._run()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        self.at_rest = False
        chunk = next(self._chunks)
        self.at_rest = self._open and self._reading is None
        return chunk

    def close(self) -> None:
        """Stop computing, and let go of the slot."""
        self._chunks.close()
        self._let_go()

    def check_rest(self) -> None:
        """Raises `EngineFault` when the slot's state cannot be saved now."""
        if not self.at_rest:
            raise EngineFault("A state is saved between two stretches of an answer, not before, within or after them.")

    def saved_as(self, name: str) -> int:
        """Have the server write the slot's state; answers the tokens in it. Raises `EngineFault`."""
        held = self._slot.save(name)
        if held != self._cache.held:
            raise EngineFault(f"The server saved {held} tokens where {self._cache.held} were evaluated.")
        return held

    # ---- the answer ---------------------------------------------------------------------------------------

    def _run(self) -> Generator[Chunk, None, None]:
        work, host = self._work, self._host
        try:
            if len(work.done) == work.max_units:
                self._let_go()
                yield Chunk((), "length")
                return
            if work.constraint is not None and work.done:
                raise CannotContinue("An answer that is held to a grammar cannot be gone on with; it must begin anew.")
            self._slot.clean()
            host.threads()
            if work.done:
                self._ready(self._cache.resume(work))
            end: EndReason | None = None
            while end is None:
                host.threads()
                units, end = self._chunk(self._next_size())
                self._units += units
                self._cache.held = self._evaluated(self._units)
                if end is None and len(self._units) == work.max_units:
                    end = "length"
                if end is not None:
                    self._let_go()
                yield Chunk(tuple(units), end)
        finally:
            self._let_go()

    def _evaluated(self, units: list[int]) -> int:
        """Tokens in the slot after the call that drew the last of `units`."""
        return len(self._work.prompt) + len(units) - 1 if units else 0

    def _ready(self, how: Ready | None = None) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._host.ready(how or Ready("computed", 0, len(self._work.prompt)))

    def _let_go(self) -> None:
        self._stop_reading()
        if self._open:
            self._open = False
            self._slot.release()

    def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()

    # ---- stretches and chunks -----------------------------------------------------------------------------

    def _next_size(self) -> int:
        if not self._sizes:
            self._sizes.extend(self._stretch())
        return self._sizes.popleft()

    def _stretch(self) -> list[int]:
        """Sizes of the chunks that are computed in one go."""
        done, limit = len(self._units), self._work.max_units
        if self._work.constraint is not None:
            return [limit - done]
        first = self._size_after(done)
        reach = min(max(self._host.stretch(done), first), limit - done)
        sizes = [first]
        while (total := sum(sizes)) < reach and total + (size := self._size_after(done + total)) <= reach:
            sizes.append(size)
        return sizes

    def _size_after(self, done: int) -> int:
        """Asked once for each place, though one may be looked at twice."""
        if self._asked is None or self._asked[0] != done:
            self._asked = (done, self._host.chunk_size(done))
        return min(max(self._asked[1], 1), self._work.max_units - done)

    def _chunk(self, wanted: int) -> tuple[list[int], EndReason | None]:
        before: list[int] = []
        if not self._in_one_piece:
            try:
                return self._streamed(wanted)
            except Unnamed as gap:
                self._stop_reading()
                self._in_one_piece = True
                # What one call has drawn cannot be gone on with in another, unless nothing is drawn.
                before = gap.units if self._greedy and self._work.constraint is None else []
        units, end = self._whole(self._units + before, wanted - len(before))
        return before + units, end

    # ---- calls --------------------------------------------------------------------------------------------

    def _streamed(self, wanted: int) -> tuple[list[int], EndReason | None]:
        if self._reading is None:
            self._reading = self._read(self._units, wanted + (sum(self._sizes) if self._greedy else 0))
        reading = self._reading
        units, end = reading.take(wanted)
        self._ready()
        self._check_text(reading.text, whole=end is not None)
        if end is not None:
            return units, end
        if not self._sizes:
            self._reading = None
        elif not self._greedy:
            known = self._units + units
            self._cache.held = self._evaluated(known)
            self._reading = self._read(known, self._sizes[0])
        return units, end

    def _read(self, units: list[int], count: int) -> Reading:
        self._cache.calling()
        return Reading(
            Stream(self._slot.at, self._body(units, count, streamed=True)),
            wanted=count,
            slot=self._slot.number,
            ends=self._work.eos,
            progress=self._progress,
            pulse=self._host.pulse,
        )

    def _progress(self, progress: Progress) -> None:
        if self._cache.progressed(progress):
            self._ready()

    def _whole(self, units: list[int], count: int) -> tuple[list[int], EndReason | None]:
        # With no unit known the last batch would have another shape than it had, so the slot begins anew.
        self._cache.held = self._evaluated(units)
        self._pulsed = 0
        body = self._body(units, count, streamed=False)
        event = Question(self._slot.at, "POST", "/completion", body, kind=Event).answer(self._look)
        if event.timings is None:
            raise EngineFault("The server does not say what it evaluated. Use a newer llama-server.")
        self._cache.expect(event.timings.cache_n)
        try:
            check_end(event, slot=self._slot.number, named=len(event.tokens), wanted=count)
        except Unnamed:
            raise EngineFault("The server drew tokens that it does not name. Use a newer llama-server.") from None
        evaluated = event.timings.prompt_n + len(event.tokens) - 1
        if evaluated > self._pulsed:
            self._host.pulse(evaluated - self._pulsed)
        self._ready()
        drawn = list(event.tokens)
        ended = event.stop_type == ENDED_BY_MODEL
        if ended:
            drawn.pop()
        cut = next((index for index, token in enumerate(drawn) if token in self._work.eos), len(drawn))
        if cut < len(drawn):
            ended = True
        elif not ended and len(drawn) < count:
            raise EngineFault(f"The server stopped after {len(drawn)} of {count} tokens.")
        self._check_text(event.content, whole=ended)
        return drawn[:cut], "eos" if ended else None

    def _look(self) -> None:
        """How far a call is that is answered in one piece."""
        states: tuple[_State, ...] = ()
        # A server may keep this to itself; the call's own answer tells what is wrong, if anything is.
        with contextlib.suppress(EngineFault):
            states = self._slot.at.ask("GET", "/slots", kind=tuple[_State, ...])
        for state in states:
            if state.id == self._slot.number and state.is_processing:
                drawn = state.next_token[0].n_decoded if state.next_token else 0
                evaluated = state.n_prompt_tokens_processed + max(0, drawn - 1)
                if evaluated > self._pulsed:
                    more, self._pulsed = evaluated - self._pulsed, evaluated
                    self._host.pulse(more)

    def _body(self, units: list[int], count: int, *, streamed: bool) -> bytes:
        slot, held = self._slot.number, self._cache.held
        return answer_body(self._work, units, count, slot=slot, cached=held, streamed=streamed)

    def _check_text(self, text: str, *, whole: bool) -> None:
        """A server drops a schema it cannot make a grammar of, and says so in its log only."""
        constraint = self._work.constraint
        if constraint is None or constraint.json_schema is None:
            return
        if not (is_json(text) if whole else begins_json(text)):
            words = "The server did not hold the answer to the JSON schema; it may not know all that is in it."
            raise Unworkable(words)
