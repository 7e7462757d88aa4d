"""One request's work: chunks from the engine become checkpoints, and the last one an end.

1. Nothing is shown before it is durable: units, the text that became visible, and the event are one transaction.
2. The next chunk is computed while the last one is being committed; at most one commit is under way.
3. What it held of the device is given back before its end is recorded: the record says that the bytes are free.
4. A full disk pauses the work, unshown, until there is space; it never fails it.
5. A stop string ends the answer at the unit that completes it; units after it do not exist.
6. Between two chunks the boundary asks its questions; nothing is computed then.
7. On the GPU lane an answer that looks like nonsense stops once, before that is shown, until a canary was answered.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from core import doubt
from core.errors import NoSpace
from core.events import Checkpointed, Completed, PrefixReady
from core.holdback import units_until_stop, visible
from core.policy import Policy
from core.slowness import Spell
from runners.boundary import Boundary
from runners.doubts import BESIDE, Doubts, InDoubt
from runners.engines.base import Chunk, Constraint, GenerateWork, Loaded, Ready, Said, Sampling, Snapshot
from runners.host import EngineHost
from store import claims, comeback, contents, slowness
from store.claims import Claim
from store.journal import Tx
from store.slowness import Outcome
from store.writer import Writer

T = TypeVar("T")

_SPACE_RETRY_S: Final = 0.25


class Work:
    """The work on one claim. `piece` gives the exact bytes of a unit."""

    def __init__(
        self,
        claim: Claim,
        *,
        writer: Writer,
        policy: Policy,
        piece: Callable[[int], bytes],
        pulse: Callable[[], None],
        ending: Callable[[], None],
        boundary: Boundary,
        snapshot: Snapshot | None = None,
        note: str = "",
        doubts: Doubts | None = None,
    ) -> None:
        self._doubts = doubts
        self._claim = claim
        self._writer = writer
        self._policy = policy
        self._lease_us = int(policy.lease_s * 1e6)
        self._piece = piece
        self._pulse = pulse
        self._ending = ending
        self._boundary = boundary
        self._snapshot = snapshot
        self._note = note
        """Why the work does not begin with a saved state although there is one; empty: there is nothing to say."""
        self._began = 0.0
        self._waited_s = 0.0
        """For threads, until the prefix was evaluated."""
        self._units = list(claim.done)
        self._pieces = [piece(token) for token in claim.done]
        self._shown = claim.state.visible_upto
        self._pending: tuple[Callable[[Tx], None], Future[None]] | None = None
        self._writing = "checkpoint"

    @property
    def units(self) -> int:
        """Units computed so far, durable or under way."""
        return len(self._units)

    @property
    def writing(self) -> str:
        """What the last write was, for the record of a late one."""
        return self._writing

    def run(self, loaded: Loaded, host: EngineHost) -> None:
        """Work until the end. Raises what the engine, the device, the boundary or the fence raise."""
        spec, state = self._claim.spec, self._claim.state
        sampling = spec.sampling
        work = GenerateWork(
            prompt=spec.tokens,
            done=self._claim.done,
            max_units=state.max_units,
            eos=spec.eos,
            sampling=Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed),
            snapshot=self._snapshot,
            constraint=constraint_in(spec.body),
            said=said_in(spec.body),
        )
        self._boundary.move_back = self._move_back
        self._boundary.move_off = self._move_off
        host.on_ready = lambda how: self._ready(how, host.waited_s)
        host.on_pulse = self._boundary.pulse
        host.on_stretch = self._boundary.stretch
        self._began = chunk_began = time.monotonic()
        waited_s = host.waited_s
        sequence = loaded.begin(work, host)
        try:
            for chunk in sequence:
                took_us = int((time.monotonic() - chunk_began) * 1e6)
                self._boundary.computed(
                    len(chunk.units),
                    done=len(self._units) + len(chunk.units),
                    began=max(self._began, chunk_began),
                    waited_s=host.waited_s - max(waited_s, self._waited_s),
                    threads=host.granted,
                )
                if self._take(chunk, took_us):
                    break
                self._boundary.ask(sequence, len(self._units))
                chunk_began, waited_s = time.monotonic(), host.waited_s
        finally:
            sequence.close()
        self.settle()

    def _move_back(self, takeover_s: float | None) -> bool:
        """To the GPU lane, from what is durable now; False when that does not hold any more where it is made."""
        self.settle()
        fence, policy = self._claim.fence, self._policy
        return patient(self._writer.submit(lambda tx: comeback.go_back(tx, fence, policy, takeover_s)), self._pulse)

    def _move_off(self, spell: Spell) -> Outcome:
        """Off a slow lane, from what is durable now, where that is better and allowed."""
        self.settle()
        fence, policy = self._claim.fence, self._policy
        return patient(self._writer.submit(lambda tx: slowness.leave(tx, fence, spell, policy)), self._pulse)

    def _ready(self, how: Ready, waited_s: float) -> None:
        """The prefix is evaluated; a takeover says which way it took and what that cost."""
        took = time.monotonic() - self._began
        self._began, self._waited_s = time.monotonic(), waited_s
        self._boundary.ready()
        self._boundary.pace.ready(how, took)
        if self._claim.state.attempt < 2:
            return
        note = how.note or self._note
        event = PrefixReady(how.way, how.restored, how.computed, int(took * 1e6), note)
        self._writer.submit(lambda tx: claims.note(tx, self._claim.fence, event))

    def settle(self) -> None:
        """Wait until what was handed to the writer is durable."""
        while self._pending is not None:
            unit, future = self._pending
            try:
                patient(future, self._pulse)
            except NoSpace:
                self._pulse()
                time.sleep(_SPACE_RETRY_S)
                self._pending = (unit, self._writer.submit(unit))
            else:
                self._pending = None

    def _take(self, chunk: Chunk, took_us: int) -> bool:
        """Record a chunk; True when the answer is whole."""
        first = len(self._units)
        self._units += chunk.units
        self._pieces += [self._piece(token) for token in chunk.units]
        stops = self._claim.spec.stops
        stop_at = units_until_stop(self._pieces, stops)
        if stop_at is not None:
            del self._units[stop_at:], self._pieces[stop_at:]
        ended = stop_at is not None or chunk.end is not None
        self._doubt(ended=ended)
        text = visible(b"".join(self._pieces), stops, final=ended).text
        body = contents.chunk_body(self._units[first:], text[self._shown :])
        self._shown = max(self._shown, len(text))
        self._write(first, body, took_us, reason=_reason(chunk, stopped=stop_at is not None) if ended else None)
        return ended

    def _doubt(self, *, ended: bool) -> None:
        if self._doubts is None:
            return
        sign = doubt.sign(self._units, self._pieces, ended=ended)
        if sign is not None and self._doubts.stops(self._claim.fence.request_id):
            raise InDoubt(sign)
        if not ended and self._doubts.makes_way():
            raise InDoubt(BESIDE)

    def _write(self, first: int, body: bytes, took_us: int, reason: str | None) -> None:
        fence, epoch = self._claim.fence, self._claim.state.output_epoch
        digest = contents.digest(self._claim.spec.secret, body)
        units, shown, lease_us = len(self._units), self._shown, self._lease_us
        self.settle()
        if reason is not None:
            self._ending()
        self._writing = "completion" if reason else "checkpoint"

        def unit(tx: Tx) -> None:
            if reason is None:
                event = Checkpointed(units, shown, digest, took_us)
                claims.checkpoint(tx, fence, event, epoch=epoch, first=first, body=body, lease_us=lease_us)
            else:
                end = Completed(units, shown, reason, digest, took_us)  # type: ignore[arg-type]
                claims.complete(tx, fence, end, epoch=epoch, first=first, body=body)

        self._pending = (unit, self._writer.submit(unit))


def constraint_in(body: dict[str, Any]) -> Constraint | None:
    """What the answer must match, by the submission."""
    grammar, schema = body.get("grammar"), body.get("json_schema")
    return None if grammar is None and schema is None else Constraint(grammar, schema)


def said_in(body: dict[str, Any]) -> Said:
    """The conversation in words, by the submission."""
    messages = body.get("messages") or ()
    return Said(tuple((turn["role"], turn["content"]) for turn in messages), body.get("prompt"))


def _reason(chunk: Chunk, *, stopped: bool) -> str:
    return "stop" if stopped or chunk.end == "eos" else "length"


def patient(future: "Future[T]", pulse: Callable[[], None]) -> T:
    """A commit's outcome, however long the disk takes; waiting is a sign of life too."""
    while True:
        try:
            return future.result(timeout=0.5)
        except TimeoutError:
            if future.done():
                raise
            pulse()
