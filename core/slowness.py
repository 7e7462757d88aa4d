"""Is a lane slow: does it compute without an error, and far slower than it usually does?

1. The usual rate is that of one engine build, with the most threads it had. It counts once `ENOUGH` units were
   measured; it rises quickly and falls slowly, and nothing that was slow is part of it.
2. Less is expected where nobody is to blame: beyond `SHORT` tokens of context, and beyond those it was measured with,
   each token costs more, at worst in proportion; several requests at once share, at worst evenly. With fewer threads
   than it was measured with, nothing is expected at all. What is held to a grammar has a usual rate of its own: the
   grammar is asked about each unit, which may take longer than the unit itself.
3. A chunk is slow below `factor` of what is expected. Slow chunks in a row are a spell; one that is not ends it.
4. The lane is slow once a spell has `CHUNKS` chunks and `after_s` seconds of computing.
5. A canary that is answered rightly is slow when it takes longer than the recorded one by that factor, and by more
   than the machine's own unrest.

Not here: what follows (store/slowness.py, core/breaker.py, core/safepoint.py).
"""

from typing import Final

import msgspec

ENOUGH: Final = 64
SHORT: Final = 2048
CHUNKS: Final = 3
_UNREST_US: Final = 250_000
_UP: Final = 0.3
_DOWN: Final = 0.1


class Measured(msgspec.Struct, frozen=True):
    """Units of the answer that were computed in a row, and under which circumstances."""

    units: int
    took_s: float
    context: int
    """Tokens before them, about."""
    threads: int = 1
    at_once: int = 1
    """Requests that were computed at the same time, this one included; the most there were meanwhile."""
    held: bool = False
    """It was held to a grammar."""

    @property
    def tps(self) -> float:
        """Units a second."""
        return self.units / self.took_s if self.took_s > 0 else float("inf")


class Usual(msgspec.Struct, frozen=True, omit_defaults=True):
    """How fast a lane computes a model in good days, and what was measured for that."""

    engine: str
    tps: float
    units: int
    context: float
    threads: int = 1
    at_once: float = 1.0
    held: "Usual | None" = None
    """The same of what is held to a grammar."""

    def of(self, seen: Measured) -> "Usual | None":
        """What such a chunk is compared with."""
        return self.held if seen.held else self


class Spell(msgspec.Struct, frozen=True):
    """Slow chunks in a row."""

    chunks: int = 0
    units: int = 0
    took_s: float = 0.0
    spent_s: float = 0.0
    """Of the lane's time: what several requests computed at once counts once."""
    expected_tps: float = 0.0
    """Of the newest chunk."""

    @property
    def tps(self) -> float:
        """Units a second that one request got."""
        return self.units / self.took_s if self.took_s > 0 else float("inf")


def expected(usual: Usual | None, seen: Measured) -> float | None:
    """Units a second that such a chunk should come with at least; None: there is nothing to expect."""
    usual = None if usual is None else usual.of(seen)
    if usual is None or usual.units < ENOUGH or seen.threads < usual.threads:
        return None
    longer = max(seen.context, SHORT) / max(usual.context, SHORT)
    fuller = seen.at_once / usual.at_once
    return usual.tps / (max(1.0, longer) * max(1.0, fuller))


def after(spell: Spell, seen: Measured, usual: Usual | None, factor: float) -> Spell:
    """The spell after one more chunk; empty when that one was not slow."""
    usually = expected(usual, seen)
    if usually is None and seen.held:
        return spell  # its kind is not known yet, and says nothing of the others
    if usually is None or seen.tps >= factor * usually:
        return Spell()
    return Spell(
        spell.chunks + 1,
        spell.units + seen.units,
        spell.took_s + seen.took_s,
        spell.spent_s + seen.took_s / max(1, seen.at_once),
        usually,
    )


def slow(spell: Spell, after_s: float) -> bool:
    """Whether the lane is slow."""
    return spell.chunks >= CHUNKS and spell.spent_s >= after_s


def learn(before: Usual | None, engine: str, seen: Measured) -> Usual:
    """The usual rate after one more measurement, of which nothing was slow."""
    if before is not None and before.engine != engine:
        before = None
    if seen.held:
        known = before or Usual(engine, 0.0, 0, 0.0)
        alike = learn(known.held, engine, msgspec.structs.replace(seen, held=False))
        return msgspec.structs.replace(known, held=alike)
    if before is None or before.units == 0:
        held = None if before is None else before.held
        return Usual(engine, seen.tps, seen.units, float(seen.context), seen.threads, float(seen.at_once), held)
    if seen.threads < before.threads:
        return before
    weight = _UP if seen.tps >= before.tps or before.units < ENOUGH else _DOWN
    return Usual(
        engine,
        before.tps + weight * (seen.tps - before.tps),
        before.units + seen.units,
        before.context + weight * (seen.context - before.context),
        seen.threads,
        before.at_once + weight * (seen.at_once - before.at_once),
        before.held,
    )


def canary_slow(took_us: int, recorded_us: int, factor: float) -> bool:
    """Whether a canary took far longer than the recorded one did."""
    return factor > 0 and took_us * factor > recorded_us and took_us - recorded_us > _UNREST_US
