"""How fast a lane was seen to compute a model: tokens a second, prompts and answers apart."""

import msgspec

from core.snapshots import blended
from core.words import Lane
from store.journal import Sees, Tx


class Rates(msgspec.Struct, frozen=True):
    """Tokens a second; None: not seen yet."""

    prefill: float | None = None
    decode: float | None = None


def rates_of(tx: Sees, lane: Lane, model: str) -> Rates:
    """What is known of a lane and a model."""
    row = tx.execute("SELECT prefill_tps, decode_tps FROM rates WHERE lane=? AND model=?", (lane, model)).fetchone()
    return Rates(*row) if row else Rates()


def see(tx: Tx, lane: Lane, model: str, seen: Rates) -> None:
    """One more observation; what was not observed stays as it was."""
    before = rates_of(tx, lane, model)
    prefill = before.prefill if seen.prefill is None else blended(before.prefill, seen.prefill)
    decode = before.decode if seen.decode is None else blended(before.decode, seen.decode)
    tx.execute(
        "INSERT OR REPLACE INTO rates (lane, model, prefill_tps, decode_tps, updated_us) VALUES (?,?,?,?,?)",
        (lane, model, prefill, decode, tx.now_us),
    )
