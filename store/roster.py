"""Who works here now: runner processes, as the supervisor keeps them. Operational: lost without harm."""

from collections.abc import Iterable

import msgspec

from core.words import Lane
from store.clock import boot_id
from store.journal import Sees, Tx


class Enlisted(msgspec.Struct, frozen=True):
    """A runner process; pid and start ticks together name it for good."""

    id: str
    lane: Lane
    model: str
    device: str
    engine: str
    pid: int
    ticks: int


class Sign(msgspec.Struct, frozen=True):
    """What a runner was seen to do and hold, `at_us` in wall-clock microseconds; memory in bytes, None: not told."""

    id: str
    state: str
    rss_bytes: int | None
    at_us: int


def enlist(tx: Tx, runner: Enlisted) -> None:
    """A process was started; it has no model yet."""
    tx.execute(
        "INSERT INTO runners (id, lane, model, device, engine, pid, ticks, boot_id, state, beat_us, started_us) "
        "VALUES (?,?,?,?,?,?,?,?,'starting',?,?)",
        (
            runner.id,
            runner.lane,
            runner.model,
            runner.device,
            runner.engine,
            runner.pid,
            runner.ticks,
            boot_id(),
            tx.now_us,
            tx.now_us,
        ),
    )


def ready(tx: Tx, runner: str) -> None:
    """It has its model, and waits for work."""
    tx.execute("UPDATE runners SET state='idle' WHERE id=?", (runner,))


def sign(tx: Tx, signs: Iterable[Sign]) -> None:
    """What was last seen of each."""
    for one in signs:
        tx.execute(
            "UPDATE runners SET state=?, rss_bytes=?, beat_us=? WHERE id=?",
            (one.state, one.rss_bytes, one.at_us, one.id),
        )


def has_model(tx: Sees, lane: Lane, model: str) -> bool:
    """Whether a runner of the lane has the model in memory."""
    sql = "SELECT 1 FROM runners WHERE lane=? AND model=? AND state IN ('idle','busy') LIMIT 1"
    return tx.execute(sql, (lane, model)).fetchone() is not None


def was_up(tx: Sees, runner: str) -> bool:
    """Whether it had its model, by the record."""
    sql = "SELECT 1 FROM events WHERE stream=? AND type='RunnerLoaded' LIMIT 1"
    return tx.execute(sql, (f"runner-{runner}",)).fetchone() is not None


def strike(tx: Tx, runner: str) -> None:
    """It is gone."""
    tx.execute("DELETE FROM runners WHERE id=?", (runner,))


def disband(tx: Tx) -> None:
    """Nobody works here any more."""
    tx.execute("DELETE FROM runners")


def of_this_boot(tx: Sees) -> list[tuple[str, int, int]]:
    """(id, pid, start ticks) of all that were started in this boot."""
    rows = tx.execute("SELECT id, pid, ticks FROM runners WHERE boot_id=?", (boot_id(),))
    return [(name, pid, ticks) for name, pid, ticks in rows]
