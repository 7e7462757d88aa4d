"""What web process and runner write over a request's life, done by one process through the store's own units."""

import hashlib
from concurrent.futures import wait
from typing import Any, Final

from core import events as ev
from core.policy import Policy
from store import claims, contents, submit
from store.claims import Claim, Owner
from store.journal import Tx
from store.models.catalog import NULL_ENTRY
from store.writer import Writer
from web.admit import new_request_id

LEASE_US: Final = 15_000_000
OWNER: Final = Owner("bench", "gpu", "null", "sim-0", "null/1")
CHUNKS: Final = ((0, 2), (2, 6), (6, 14), (14, 16))
"""The chunk plan of a 16-unit answer."""
PROMPT: Final = "Tell me about a lighthouse, and who built it."
POLICY: Final = Policy(gpu_queue_limit=1_000_000)


def submission(**changes: Any) -> submit.Submission:
    """A submission as the web process makes it."""
    fields: dict[str, Any] = {
        "id": new_request_id(),
        "owner": "local",
        "workload": "generate",
        "model": "null",
        "engine": "null",
        "contract": NULL_ENTRY.contract,
        "body": {"model": "null", "prompt": PROMPT, "max_tokens": 16},
        "tokens": tuple(PROMPT.encode()),
        "eos": (256,),
        "stops": (),
        "sampling": contents.StoredSampling(0.0, 1.0, 40, 7),
        "max_units": 16,
        "failover": "auto",
        "priority": "interactive",
        "deadline_s": None,
        "secret": hashlib.sha256(b"bench").digest(),
        "body_digest": "digest",
    }
    return submit.Submission(**(fields | changes))


def body_of(first: int, upto: int) -> bytes:
    """The stored form of some units."""
    return contents.chunk_body(range(97 + first, 97 + upto), "".join(map(chr, range(97 + first, 97 + upto))))


def admit(tx: Tx) -> None:
    """One admission."""
    submit.submit(tx, submission(), POLICY)


def take(tx: Tx) -> Claim:
    """One claim."""
    claim = claims.claim(tx, OWNER, LEASE_US)
    assert claim is not None
    return claim


def progress(tx: Tx, claim: Claim, first: int, upto: int) -> None:
    """One checkpoint, or with the last units the end."""
    body, fence = body_of(first, upto), claim.fence
    digest = contents.digest(claim.spec.secret, body)
    if upto < 16:
        claims.checkpoint(
            tx, fence, ev.Checkpointed(upto, upto, digest), epoch=0, first=first, body=body, lease_us=LEASE_US
        )
    else:
        claims.complete(tx, fence, ev.Completed(upto, upto, "length", digest), epoch=0, first=first, body=body)


def alone(writer: Writer, count: int, side_by_side: int = 16) -> None:
    """`count` whole lives, some at a time: each step of all of them shares commits, as it does in the service."""
    for _ in range(count // side_by_side):
        wait([writer.submit(admit) for _ in range(side_by_side)])
        taken = [future.result() for future in [writer.submit(take) for _ in range(side_by_side)]]
        for first, upto in CHUNKS:
            units = [
                writer.submit(lambda tx, claim=claim, first=first, upto=upto: progress(tx, claim, first, upto))
                for claim in taken
            ]
            for future in units:
                future.result()
