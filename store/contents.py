"""What people wrote and what was answered: beside the journal, erasable, under keyed digests.

1. Events hold `digest(secret, body)`; the secret is a random value per request, kept here. After erasure it is gone, so
   a digest cannot be used to guess a short text, and the hash chain still verifies.
2. One `spec` row per request; one `chunk` row per checkpoint, keyed by output epoch and first unit; where somebody
   wants to be told of its events, one `webhook` row with the URL.
"""

import hmac
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from store.journal import Tx


class StoredSampling(msgspec.Struct, frozen=True):
    """How tokens are drawn, as submitted."""

    temperature: float
    top_p: float
    top_k: int
    seed: int


class Spec(msgspec.Struct, frozen=True):
    """A submission as every path needs it: the exact token ids, never re-made."""

    secret: bytes
    body: dict[str, Any]
    """The submission as it came, defaults filled in."""
    tokens: tuple[int, ...]
    eos: tuple[int, ...]
    stops: tuple[str, ...]
    sampling: StoredSampling


class StoredChunk(msgspec.Struct, frozen=True, array_like=True):
    """Units of one checkpoint, and the text that became visible with it."""

    tokens: tuple[int, ...]
    text: str


_encode: Final = msgspec.msgpack.Encoder().encode
_spec: Final = msgspec.msgpack.Decoder(Spec).decode
_chunk: Final = msgspec.msgpack.Decoder(StoredChunk).decode

CHUNKS_SQL: Final = "SELECT n, body FROM contents WHERE request_id=? AND kind='chunk' AND epoch=? ORDER BY n"
SPEC_SQL: Final = "SELECT body FROM contents WHERE request_id=? AND kind='spec' AND epoch=0 AND n=0"
WEBHOOK_SQL: Final = "SELECT body FROM contents WHERE request_id=? AND kind='webhook' AND epoch=0 AND n=0"
_INSERT: Final = "INSERT INTO contents (request_id, kind, epoch, n, body) VALUES (?,?,?,?,?)"


def digest(secret: bytes, body: bytes) -> str:
    """HMAC-SHA-256 in hex."""
    return hmac.digest(secret, body, "sha256").hex()


def spec_body(spec: Spec) -> bytes:
    """The stored form of a submission, over which its digest is made."""
    return _encode(spec)


def put_spec(tx: "Tx", request_id: str, body: bytes) -> None:
    """Keep a submission."""
    tx.execute(_INSERT, (request_id, "spec", 0, 0, body))


def put_webhook(tx: "Tx", request_id: str, url: str) -> None:
    """Keep the URL that is told of a request's events."""
    tx.execute(_INSERT, (request_id, "webhook", 0, 0, url.encode()))


def webhook_of(tx: "Tx", request_id: str) -> str | None:
    """The URL that is told of a request's events; None where nobody is, or it was erased."""
    row = tx.execute(WEBHOOK_SQL, (request_id,)).fetchone()
    return bytes(row[0]).decode() if row else None


def put_chunk(tx: "Tx", request_id: str, epoch: int, first: int, body: bytes) -> None:
    """Keep the units that start after `first` units."""
    tx.execute(_INSERT, (request_id, "chunk", epoch, first, body))


def chunk_body(tokens: Sequence[int], text: str) -> bytes:
    """The stored form of a checkpoint's units."""
    return _encode(StoredChunk(tuple(tokens), text))


def read_spec(body: bytes) -> Spec:
    """A submission from its stored form."""
    return _spec(body)


def read_chunk(body: bytes) -> StoredChunk:
    """A checkpoint's units from their stored form."""
    return _chunk(body)


def spec_of(tx: "Tx", request_id: str) -> Spec | None:
    """A request's submission, or None when it was erased."""
    row = tx.execute(SPEC_SQL, (request_id,)).fetchone()
    return _spec(row[0]) if row else None


def output_of(tx: "Tx", request_id: str, epoch: int) -> list[StoredChunk]:
    """All durable chunks of an output epoch, in order."""
    return [_chunk(body) for _n, body in tx.execute(CHUNKS_SQL, (request_id, epoch))]


def tokens_in(chunks: Iterable[StoredChunk]) -> tuple[int, ...]:
    """The units of several chunks in a row."""
    return tuple(token for chunk in chunks for token in chunk.tokens)


def erase(tx: "Tx", request_id: str) -> None:
    """Remove everything people could read, and the secret with it."""
    tx.execute("DELETE FROM contents WHERE request_id=?", (request_id,))
    tx.execute("DELETE FROM idempotency WHERE request_id=?", (request_id,))
    tx.execute("DELETE FROM snapshots WHERE request_id=?", (request_id,))
    tx.execute("DELETE FROM outbox WHERE request_id=?", (request_id,))
