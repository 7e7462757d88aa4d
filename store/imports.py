"""Histories from elsewhere, kept as they came in a table of their own: to be read, and to be removed.

1. Nothing of them is ever a request here: no event, no projection and no content of this store comes of them.
2. The same file is the same import, however often it is sent. Its id is a digest of what it says.
3. They are checked on the way in (`store.transfer`), and again whenever they are opened.
"""

import hashlib
from typing import Final

import msgspec

from core.errors import Conflict, NotFound
from store.journal import Sees, Tx
from store.transfer import Checked, History, check

MOST: Final = 500
"""Imports that are kept at once."""


class Import(msgspec.Struct, frozen=True):
    """One of the list."""

    id: str
    request_id: str
    events: int
    imported_us: int


def id_of(document: bytes) -> str:
    """The id of an import, from its document."""
    return f"imp_{hashlib.sha256(document).hexdigest()[:32]}"


def put(tx: Tx, history: History) -> tuple[str, bool]:
    """Keep a checked history: its id, and whether it is new. Raises `Conflict` when there are too many."""
    document = msgspec.json.encode(history)
    id_ = id_of(document)
    if tx.execute("SELECT 1 FROM imports WHERE id=?", (id_,)).fetchone() is not None:
        return id_, False
    (count,) = tx.execute("SELECT count(*) FROM imports").fetchone()
    if count >= MOST:
        raise Conflict(f"there are {count} imported histories; remove one before another comes in")
    tx.execute(
        "INSERT INTO imports (id, request_id, events, imported_us, document) VALUES (?,?,?,?,?)",
        (id_, history.id, len(history.events), tx.now_us, document),
    )
    return id_, True


def remove(tx: Tx, id_: str) -> None:
    """Forget an import. Raises `NotFound`."""
    if tx.execute("DELETE FROM imports WHERE id=?", (id_,)).rowcount != 1:
        raise _unknown(id_)


def listed(look: Sees) -> list[Import]:
    """All imports, newest first."""
    rows = look.execute("SELECT id, request_id, events, imported_us FROM imports ORDER BY imported_us DESC, id", ())
    return [Import(*row) for row in rows.fetchall()]


def document_of(look: Sees, id_: str) -> bytes:
    """An import as it is kept. Raises `NotFound`."""
    row = look.execute("SELECT document FROM imports WHERE id=?", (id_,)).fetchone()
    if row is None:
        raise _unknown(id_)
    return bytes(row[0])


def opened(document: bytes) -> Checked:
    """A kept history, checked again. Raises `Impossible` when it does not fit any more."""
    return check(msgspec.json.decode(document, type=History))


def _unknown(id_: str) -> NotFound:
    return NotFound(f"there is no imported history {id_[:80]}; see GET /api/imports for those there are")
