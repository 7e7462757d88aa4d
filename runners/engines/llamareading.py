"""Tokens out of a streamed answer, one after the other, and no token that was not seen.

1. A token whose text ends inside a character is computed but not named in a stream; the counts tell. Nothing is
   guessed then: `Unnamed` says that the answer must be asked for in one piece.
2. What ends an answer is never handed out: neither an id the work calls an end, nor one the model has for it, which
   the server names last and then stops. A token without text may be such an end, so what follows it is looked at first.
3. Each evaluated token is pulsed for once: the prompt's as the server tells of them, an answer's with its successor.
"""

from collections.abc import Callable
from typing import Final

from core.errors import EngineFault
from runners.engines.base import EndReason
from runners.engines.llamahttp import Event, Progress, Stream

ENDED_BY_MODEL: Final = "eos"
ENDED_BY_COUNT: Final = "limit"


class Unnamed(Exception):
    """The server drew tokens that it does not name. `units` are those before, since the last whole take."""

    def __init__(self, units: list[int]) -> None:
        super().__init__("tokens were drawn and not named")
        self.units = units


class Reading:
    """A streamed answer while it is read."""

    def __init__(
        self,
        stream: Stream,
        *,
        wanted: int,
        slot: int,
        ends: tuple[int, ...],
        progress: Callable[[Progress], None],
        pulse: Callable[[int], None],
    ) -> None:
        self._stream = stream
        self._wanted = wanted
        self._slot = slot
        self._ends = ends
        self._progress = progress
        self._pulse = pulse
        self._told = False
        """The server told of the prompt's progress, so its tokens are pulsed for."""
        self._named = 0
        self._seen = 0
        self._looked_ahead: Event | None = None
        self._late = False
        """The last token was an end of the model's own, and had text all the same."""
        self.text = ""

    def take(self, count: int) -> tuple[list[int], EndReason | None]:
        """The next `count` tokens, or fewer and why. Raises `Unnamed`, `EngineFault`, and what a pulse raises."""
        units: list[int] = []
        try:
            while len(units) < count:
                token = self._token()
                if token is None:
                    return self._without_end(units), "eos"
                units.append(token)
        except Unnamed as gap:
            gap.units = units
            raise
        if self._named == self._wanted:
            # The server counts an end of its own among the tokens, the last one allowed included.
            last = self._event()
            self.close()
            check_end(last, slot=self._slot, named=self._named, wanted=self._wanted)
            if last.stop_type == ENDED_BY_MODEL:
                return units[:-1], "eos"
        return units, None

    def close(self) -> None:
        """Read no more; what is not computed yet will not be."""
        self._stream.close()

    def _without_end(self, units: list[int]) -> list[int]:
        if not self._late:
            return units
        if not units:
            raise EngineFault("The server shows its ends as text. Start it without --special.")
        return units[:-1]

    def _token(self) -> int | None:
        """The next token, or None at the end of the answer."""
        while True:
            event = self._event()
            if event.stop:
                check_end(event, slot=self._slot, named=self._named, wanted=self._wanted)
                if event.stop_type != ENDED_BY_MODEL:
                    raise EngineFault(f"The server stopped after {self._named} of {self._wanted} tokens.")
                self._late = True
                return None
            if event.prompt_progress is not None:
                self._told = True
                self._progress(event.prompt_progress)
                continue
            token = self._named_in(event)
            if token in self._ends:
                self.close()
                return None
            if not event.content:
                self._looked_ahead = after = self._event()
                if after.stop and after.stop_type == ENDED_BY_MODEL:
                    check_end(after, slot=self._slot, named=self._named, wanted=self._wanted)
                    return None
            return token

    def _named_in(self, event: Event) -> int:
        drawn = event.tokens_predicted - self._seen
        evaluated = drawn - (1 if self._seen == 0 and self._told else 0)
        self._seen = event.tokens_predicted
        if evaluated > 0:
            self._pulse(evaluated)
        if drawn != 1 or len(event.tokens) != 1:
            raise Unnamed([])
        self._named += 1
        self.text += event.content
        return event.tokens[0]

    def _event(self) -> Event:
        if self._looked_ahead is not None:
            event, self._looked_ahead = self._looked_ahead, None
            return event
        try:
            return next(self._stream)
        except StopIteration:
            raise EngineFault("The server's answer ended without saying so.") from None


def check_end(event: Event, *, slot: int, named: int, wanted: int) -> None:
    """Refuse an end that is not what was asked for. Raises `EngineFault`, or `Unnamed` when tokens are missing."""
    if event.id_slot not in {-1, slot}:
        raise EngineFault(f"The server used slot {event.id_slot} and was asked for slot {slot}.")
    # At the last place of its context it calls a whole answer truncated, too.
    if event.truncated and named < wanted:
        raise EngineFault("The server has no room for the answer. Give it the planned context.")
    if event.stop_type not in {ENDED_BY_MODEL, ENDED_BY_COUNT}:
        raise EngineFault(f"The server stopped for a reason that was not given to it: {event.stop_type[:40]!r}.")
    if event.tokens_predicted > named:
        raise Unnamed([])
    if event.tokens_predicted < named or event.tokens_predicted > wanted:
        raise EngineFault(f"The server counts {event.tokens_predicted} tokens where {named} of {wanted} were named.")
