"""What was measured of two paths: kept in the journal, asked for by the safe-point decision.

A proof holds for one contract and two paths, in either direction: the stream's name digests the three. Paths of one
name differ by nothing but their slots, so a proof of these holds for just as many.
"""

import hashlib

from core import events as ev
from core.contract import PathFacts
from core.events import Recorded
from core.words import PairClass
from store.journal import FIELDS, Sees, Tx, record_of


def stream_of(source: PathFacts, target: PathFacts) -> str:
    """The stream of this pair's proofs, the same in both directions."""
    names = [source.contract, *sorted((source.name, target.name))]
    if source.name == target.name:
        names += sorted((str(source.slots), str(target.slots)))
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    return f"contract-{digest[:16]}"


def proof_of(tx: Sees, source: PathFacts, target: PathFacts) -> PairClass | None:
    """The class that the last proof found, or None without one."""
    row = tx.execute(
        "SELECT schema, data FROM events WHERE stream=? AND type='EquivalenceProved' ORDER BY version DESC LIMIT 1",
        (stream_of(source, target),),
    ).fetchone()
    if row is None:
        return None
    event = ev.decode("EquivalenceProved", row[0], row[1])
    assert isinstance(event, ev.EquivalenceProved)
    return event.pair


def proofs_of(tx: Sees, contract: str, limit: int) -> list[Recorded]:
    """The last proofs of any two paths with this contract, newest first."""
    sql = (
        f"SELECT {FIELDS} FROM events WHERE type='EquivalenceProved' AND "  # noqa: S608 -- constants
        "json_extract(data, '$.contract')=? ORDER BY seq DESC LIMIT ?"
    )
    return [record_of(row) for row in tx.execute(sql, (contract, limit)).fetchall()]


def keep(tx: Tx, source: PathFacts, target: PathFacts, event: ev.EquivalenceProved, *, actor: str) -> None:
    """Record a proof; it counts from the next decision on."""
    tx.append(stream_of(source, target), event, actor=actor)
