"""A store with many whole lives in it, made fast: the same facts, folds and links as one by one, inserted in bulk."""

import sqlite3
import time
from collections.abc import Iterator
from typing import Any, Final

from bench.acts import CHUNKS, OWNER, PROMPT, body_of, submission
from core import admission
from core import events as ev
from core.decision import AdmissionFacts, LaneFacts
from core.machine import apply
from core.state import RequestState
from store import contents
from store.database import Paths, checkpoint, write_engine
from store.gate import Gate
from store.journal import FIELDS, chain
from store.projections import columns
from store.writer import new_id
from web.admit import new_request_id

PER_LIFE: Final = 2 + len(CHUNKS)
_A_BATCH: Final = 2000
_MARKS: Final = ",".join("?" * 14)
_EVENT: Final = f"INSERT INTO events ({FIELDS}, hash) VALUES ({_MARKS})"
_CONTENT: Final = "INSERT INTO contents (request_id, kind, epoch, n, body) VALUES (?,?,?,?,?)"
_REQUEST: Final = (
    "INSERT INTO requests (state, lane, running, cancel_asked, version, turn_us, not_before_us, deadline_us, "
    "updated_us, doc, id, owner, workload, model, created_us) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)


def spec_of_all() -> bytes:
    """The submission that all lives share."""
    sub = submission()
    return contents.spec_body(contents.Spec(sub.secret, sub.body, sub.tokens, sub.eos, sub.stops, sub.sampling))


def facts(prompt_tokens: int, spec: bytes) -> list[ev.Event]:
    """The events of one whole life."""
    lane = LaneFacts(True, True, None, 3, 64, 4096)
    decision = admission.decide(AdmissionFacts(prompt_tokens, 16, "auto", False, lane, lane))
    contract, secret = submission().contract, submission().secret
    digests = [contents.digest(secret, body_of(first, upto)) for first, upto in CHUNKS]
    begin = ev.Admitted(
        *("local", "generate", "null", "null", "null", contract, prompt_tokens, 16, 16, "auto", "interactive", None),
        spec_digest=contents.digest(secret, spec),
        decision=decision,
    )
    started = ev.Started("gpu", OWNER.runner, OWNER.device, OWNER.engine, 0)
    steps = [ev.Checkpointed(upto, upto, digest, 1500) for (_, upto), digest in zip(CHUNKS, digests, strict=True)]
    return [begin, started, *steps[:-1], ev.Completed(16, 16, "length", digests[-1], 900)]


def _life(events: list[tuple[ev.Event, str]], stream: str, seq: int, link: str) -> tuple[list[Any], RequestState, str]:
    rows, state = [], None
    token = new_id()
    for version, (event, data) in enumerate(events, 1):
        at_us = time.time_ns() // 1000
        attempt = 1 if version > 1 else None
        state = apply(state, event, stream=stream, at_us=at_us, attempt=attempt)
        fence = (1, token, 1) if version > 1 else (None, None, None)
        actor = "web" if version == 1 else OWNER.runner
        type_ = type(event).__name__
        fields = (seq + version, new_id(), stream, version, type_, 1, at_us, actor, *fence, None, data)
        link = chain(link, fields)
        rows.append((*fields, link))
    assert state is not None
    return rows, state, link


def _contents(stream: str, spec: bytes) -> Iterator[tuple[Any, ...]]:
    yield (stream, "spec", 0, 0, spec)
    for first, upto in CHUNKS:
        yield (stream, "chunk", 0, first, body_of(first, upto))


def fill(paths: Paths, events: int) -> None:
    """Add whole lives until the journal has grown by `events`."""
    spec = spec_of_all()
    texts = [(event, ev.encode(event)) for event in facts(len(PROMPT), spec)]
    gate, engine = Gate(paths.gate), write_engine(paths)
    driver = engine.raw_connection().driver_connection
    assert isinstance(driver, sqlite3.Connection)
    left = events // PER_LIFE
    while left > 0:
        with gate.hold():
            driver.execute("BEGIN IMMEDIATE")
            seq, link = driver.execute("SELECT seq, hash FROM head WHERE id=1").fetchone()
            for _ in range(min(left, _A_BATCH)):
                stream = new_request_id()
                rows, state, link = _life(texts, stream, seq, link)
                seq += len(rows)
                driver.executemany(_EVENT, rows)
                driver.executemany(_CONTENT, _contents(stream, spec))
                row = (*columns(state), state.id, state.owner, state.workload, state.model, state.created_us)
                driver.execute(_REQUEST, row)
            driver.execute("UPDATE head SET seq=?, hash=? WHERE id=1", (seq, link))
            driver.execute("COMMIT")
        left -= _A_BATCH
        checkpoint(gate, engine)
    engine.dispose()
    gate.close()
