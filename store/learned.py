"""Learned footprints in the store: one row for each engine build, model and settings; and what loads leave behind."""

from core import events as ev
from core.learned import LEAK_LOADS, Learned, leaking, observe
from store.journal import Sees, Tx

_BASELINES = (
    "SELECT json_extract(data, '$.before') FROM events WHERE type='RunnerLoaded' AND "
    "json_extract(data, '$.device')=? AND json_extract(data, '$.model')=? ORDER BY seq DESC LIMIT ?"
)


def learned(tx: Sees, engine: str, model: str, settings: str) -> Learned | None:
    """What was seen so far, or None."""
    row = tx.execute(
        "SELECT formula_bytes, learned_bytes, last_bytes, loads FROM learned WHERE engine=? AND model=? AND settings=?",
        (engine, model, settings),
    ).fetchone()
    return Learned(*row) if row else None


def learn(tx: Tx, *, runner: str, engine: str, model: str, settings: str, formula: int, seen: int) -> Learned:
    """Take in what a load was seen to take. Says so in the journal when the value that counts changes."""
    before = learned(tx, engine, model, settings)
    after = observe(before, formula, seen)
    tx.execute(
        "INSERT INTO learned (engine, model, settings, formula_bytes, learned_bytes, last_bytes, loads, updated_us) "
        "VALUES (?,?,?,?,?,?,?,?) ON CONFLICT (engine, model, settings) DO UPDATE SET "
        "formula_bytes=excluded.formula_bytes, "
        "learned_bytes=excluded.learned_bytes, last_bytes=excluded.last_bytes, loads=excluded.loads, "
        "updated_us=excluded.updated_us",
        (engine, model, settings, after.formula, after.value, after.last, after.loads, tx.now_us),
    )
    if before is None or before.value != after.value:
        event = ev.FootprintLearned(model, after.formula, after.last, after.value)
        tx.append(f"runner-{runner}", event, actor=runner)
    return after


def record_load(tx: Tx, *, runner: str, model: str, device: str, took_us: int, held: int, before: int | None) -> None:
    """Record a load, and say so when each of the last ones found more of the device taken than the one before it."""
    tx.append(f"runner-{runner}", ev.RunnerLoaded(took_us, held, model, device, before), actor=runner)
    if before is None:
        return
    found = [row[0] for row in tx.execute(_BASELINES, (device, model, LEAK_LOADS)).fetchall()]
    baselines = [size for size in reversed(found) if size is not None]
    if leaking(baselines):
        tx.append(f"device-{device}", ev.LeakSuspected(model, tuple(baselines)), actor=runner)
