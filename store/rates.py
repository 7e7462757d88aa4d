"""How fast a lane was seen to compute a model: tokens a second, prompts and answers apart."""

from typing import Final

import msgspec

from core.slowness import Measured, Usual, learn
from core.snapshots import blended
from core.words import Lane
from store.journal import Sees, Tx

_decode: Final = msgspec.json.Decoder(Usual).decode


class Rates(msgspec.Struct, frozen=True):
    """Tokens a second; None: not seen yet."""

    prefill: float | None = None
    decode: float | None = None


def rates_of(tx: Sees, lane: Lane, model: str) -> Rates:
    """What is known of a lane and a model."""
    row = tx.execute("SELECT prefill_tps, decode_tps FROM rates WHERE lane=? AND model=?", (lane, model)).fetchone()
    return Rates(*row) if row else Rates()


def usual_of(tx: Sees, lane: Lane, model: str) -> Usual | None:
    """How fast the lane computes the model in good days; of which engine build, it says itself."""
    row = tx.execute("SELECT usual FROM rates WHERE lane=? AND model=?", (lane, model)).fetchone()
    return _decode(row[0]) if row and row[0] else None


def see(tx: Tx, lane: Lane, model: str, seen: Rates, *, engine: str = "", measured: Measured | None = None) -> None:
    """One more observation; what was not observed stays as it was. `measured` is what `engine` computed undisturbed."""
    before = rates_of(tx, lane, model)
    prefill = before.prefill if seen.prefill is None else blended(before.prefill, seen.prefill)
    decode = before.decode if seen.decode is None else blended(before.decode, seen.decode)
    usual = usual_of(tx, lane, model)
    if measured is not None:
        usual = learn(usual, engine, measured)
    tx.execute(
        "INSERT OR REPLACE INTO rates (lane, model, prefill_tps, decode_tps, updated_us, usual) VALUES (?,?,?,?,?,?)",
        (lane, model, prefill, decode, tx.now_us, msgspec.json.encode(usual).decode() if usual else None),
    )
