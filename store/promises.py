"""Ending a promise of bytes; apart from `reservations`, since projections do it for requests that leave the lane."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.journal import Tx


def give_back(tx: "Tx", holder: str) -> None:
    """End a holder's promise, if there is one.

    Until a later reading shows it, the device still seems to hold the bytes; so they are remembered for that long.
    """
    row = tx.execute("SELECT device, model, bytes FROM reservations WHERE holder=?", (holder,)).fetchone()
    if row is not None:
        tx.execute("INSERT INTO releases (device, model, bytes, at_us) VALUES (?,?,?,?)", (*row, tx.now_us))
        tx.execute("DELETE FROM reservations WHERE holder=?", (holder,))


def forget_releases(tx: "Tx", before_us: int) -> None:
    """Drop what readings have long caught up with."""
    tx.execute("DELETE FROM releases WHERE at_us<?", (before_us,))
