"""Are the contents what the record says? Every prompt and every output, by the digests in its events.

Erased requests are left out: their secret is gone, so that nothing can be told of them any more.
"""

import hmac
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final, Literal

import msgspec

from core.state import RequestState
from store import contents

_TYPES: Final = frozenset({"Admitted", "Checkpointed", "Completed", "Resumed"})
_SQL: Final = (
    "SELECT stream, seq, type, data FROM events WHERE type='Admitted' OR type='Checkpointed' OR type='Completed' "
    "OR type='Resumed' ORDER BY stream, version"
)
_KEPT: Final = "SELECT kind, epoch, n, CAST(body AS BLOB) FROM contents WHERE request_id=?"
_Kept = dict[tuple[str, int, int], bytes]


class _Said(msgspec.Struct, frozen=True):
    """What the four types say that matters here; everything else in them is passed over."""

    units: int = 0
    digest: str = ""
    spec_digest: str = ""
    origin: Literal["checkpoint", "start", ""] = ""


_read: Final = msgspec.json.Decoder(_Said).decode


def misfit(driver: sqlite3.Connection, states: Mapping[str, RequestState]) -> tuple[int, str] | None:
    """The first request whose contents do not fit its events: the seq of the event, and what is wrong; else None.

    Call it in the transaction that has found the events themselves to be whole.
    """
    for stream, rows in groupby(driver.execute(_SQL), key=lambda row: str(row[0])):
        if stream not in states or states[stream].erased:
            continue
        kept: _Kept = {(kind, epoch, n): body for kind, epoch, n, body in driver.execute(_KEPT, (stream,))}
        found = _of_one(stream, ((seq, type_, _read(data)) for _, seq, type_, data in rows), kept)
        if found is not None:
            return found
    return None


def misfit_of(stream: str, said: Iterable[tuple[int, str, str]], kept: _Kept) -> tuple[int, str] | None:
    """The same of one history that came by itself: its events as (seq, type, data), and its contents."""
    return _of_one(stream, ((seq, type_, _read(data)) for seq, type_, data in said if type_ in _TYPES), kept)


def _of_one(stream: str, said: Iterator[tuple[int, str, _Said]], kept: _Kept) -> tuple[int, str] | None:
    secret, epoch, first = b"", 0, 0
    for seq, type_, facts in said:
        if type_ == "Resumed":
            if facts.origin == "start":
                epoch, first = epoch + 1, 0
            continue
        prompt = type_ == "Admitted"
        what = "prompt" if prompt else f"output from token {first} on"
        body = kept.get(("spec", 0, 0) if prompt else ("chunk", epoch, first))
        if body is None:
            return seq, f"the {what} of {stream} is missing in the contents"
        try:
            if prompt:
                secret = contents.read_spec(body).secret
            fits = hmac.compare_digest(contents.digest(secret, body), facts.spec_digest if prompt else facts.digest)
        except msgspec.MsgspecError:
            fits = False
        if not fits:
            return seq, f"the {what} of {stream} is not what event {seq} recorded: it was changed"
        first = facts.units
    return None
