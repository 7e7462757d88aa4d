"""One request's history as a file: written with all that is needed to check it, and checked when it is read.

1. Each event goes out exactly as it is stored, with its link of the chain and the link before it, so that every single
   one can be hashed again by whoever gets the file.
2. Prompt and output go with it unless they were erased, and with them the secret that their digests were made with.
3. A file is taken for true only when every link, every transition by the table and every digest fits. What no file can
   show is that its links stood in the journal it names: that is asked of that journal.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Final

import msgspec

from core import events as ev
from core.errors import IllegalEvent, Impossible
from core.events import Recorded
from core.machine import apply
from core.state import RequestState
from store import contents, keepsakes
from store.contents import Spec, StoredSampling
from store.journal import FIELDS, REQUEST_TYPES, Sees, chain, record_of

FORMAT: Final = "failsoft-export-2"
MOST_EVENTS: Final = 10_000
_NAMES: Final = tuple(FIELDS.split(", "))
LATEST_US: Final = 253_402_300_799_000_000
"""The end of the year 9999: no time of a state may lie beyond, since none could be written down."""
_SQL: Final = (
    f"SELECT {', '.join(f'e.{name}' for name in _NAMES)}, e.hash, coalesce(p.hash, '') FROM events e "  # noqa: S608
    "LEFT JOIN events p ON p.seq=e.seq-1 WHERE e.stream=? ORDER BY e.version"
)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Time = Annotated[int, msgspec.Meta(ge=0, le=LATEST_US)]


class StoredEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event as its row has it. `previous` is the link that `hash` was made over; empty for a journal's first."""

    seq: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    event_id: str
    stream: str
    version: Count
    type: str
    schema: Count
    at_us: Time
    actor: str
    attempt: Count | None
    lease_token: str | None
    device_epoch: Count | None
    cause_seq: Count | None
    data: str
    hash: str
    previous: str

    def fields(self) -> tuple[Any, ...]:
        """What its hash is over, in order."""
        return tuple(getattr(self, name) for name in _NAMES)


class StoredOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The units of one checkpoint, and the text that became visible with it."""

    epoch: Count
    first: Count
    tokens: tuple[int, ...]
    text: str


class Submitted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked. `secret` is base64."""

    secret: str
    body: dict[str, Any]
    tokens: tuple[int, ...]
    eos: tuple[int, ...]
    stops: tuple[str, ...]
    sampling: StoredSampling


class History(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    format: str
    id: str
    erased: bool
    events: Annotated[list[StoredEvent], msgspec.Meta(min_length=1, max_length=MOST_EVENTS)]
    submission: Submitted | None
    outputs: list[StoredOutput]


class Checked(msgspec.Struct, frozen=True):
    """A history that fits. `states[i]` is the request after event i + 1."""

    records: tuple[Recorded, ...]
    states: tuple[RequestState, ...]
    spec: Spec | None
    outputs: tuple[StoredOutput, ...]

    @property
    def state(self) -> RequestState:
        """The request as the file leaves it."""
        return self.states[-1]

    def text(self, epoch: int, upto: int | None = None) -> str:
        """The visible text of an output epoch, up to a number of characters."""
        parts = sorted((one.first, one.text) for one in self.outputs if one.epoch == epoch)
        whole = "".join(text for _first, text in parts)
        return whole if upto is None else whole[:upto]


def stored(look: Sees, request_id: str) -> list[StoredEvent]:
    """A request's events exactly as stored."""
    return [StoredEvent(*row) for row in look.execute(_SQL, (request_id,)).fetchall()]


def submitted(spec: Spec) -> Submitted:
    """A submission as the file has it."""
    secret = b64encode(spec.secret).decode()
    return Submitted(secret, spec.body, spec.tokens, spec.eos, spec.stops, spec.sampling)


def check(history: History) -> Checked:
    """The history, if all of it fits. Raises `Impossible` with the first thing that does not."""
    if history.format != FORMAT:
        raise _misfit(f"its format is {history.format[:40]!r}; this version reads {FORMAT}")
    _links(history)
    records, states = _fold(history)
    spec = _spec(history.submission)
    if states[-1].erased != history.erased:
        raise _misfit("it says otherwise than its events whether its content was erased")
    _digests(history, spec)
    return Checked(records, states, spec, tuple(history.outputs))


def _misfit(what: str) -> Impossible:
    return Impossible(f"this history cannot be taken for true: {what}", code="import_misfit")


def _links(history: History) -> None:
    for number, event in enumerate(history.events, 1):
        if event.stream != history.id or event.version != number:
            raise _misfit(f"event {number} is not version {number} of {history.id[:80]}")
        if chain(event.previous, event.fields()) != event.hash:
            raise _misfit(f"event {number} does not match its hash: it was changed")
    for before, after in pairwise(history.events):
        if after.seq <= before.seq:
            raise _misfit(f"event {after.version} has seq {after.seq}, which is not after {before.seq}")
        if after.seq == before.seq + 1 and after.previous != before.hash:
            raise _misfit(f"event {after.version} is not chained to the one before it")


def _fold(history: History) -> tuple[tuple[Recorded, ...], tuple[RequestState, ...]]:
    records: list[Recorded] = []
    states: list[RequestState] = []
    state: RequestState | None = None
    for event in history.events:
        try:
            record = record_of(event.fields())
            if type(record.event) not in REQUEST_TYPES:
                raise _misfit(f"event {event.version} is a {event.type[:40]}, which happens to no request")
            state = apply(state, record.event, stream=record.stream, at_us=record.at_us, attempt=record.attempt)
        except (IllegalEvent, ValueError, msgspec.MsgspecError) as error:
            raise _misfit(f"event {event.version} cannot follow there: {error}") from error
        if not _writable(state):
            raise _misfit(f"event {event.version} names a time that is none")
        records.append(record)
        states.append(state)
    return tuple(records), tuple(states)


def _writable(state: RequestState) -> bool:
    times = [getattr(state, name) for name in state.__struct_fields__ if name.endswith("_us")]
    return all(one is None or 0 <= one <= LATEST_US for one in times)


def _spec(given: Submitted | None) -> Spec | None:
    if given is None:
        return None
    try:
        secret = b64decode(given.secret, validate=True)
    except ValueError as error:
        raise _misfit("the secret of its digests is not base64") from error
    return Spec(secret, given.body, given.tokens, given.eos, given.stops, given.sampling)


def _digests(history: History, spec: Spec | None) -> None:
    kept = {("chunk", one.epoch, one.first): contents.chunk_body(one.tokens, one.text) for one in history.outputs}
    if history.erased:
        if spec is not None or kept:
            raise _misfit("its events say that its content was erased, and it has some")
        return
    if spec is not None:
        kept["spec", 0, 0] = contents.spec_body(spec)
    said = [(event.version, event.type, event.data) for event in history.events]
    found = keepsakes.misfit_of(history.id, said, kept)
    if found is not None:
        raise _misfit(found[1])
    recorded = sum(kind in {"Checkpointed", "Completed"} for _version, kind, _data in said)
    if len(history.outputs) != recorded or (spec is not None and not _has_prompt(said)):
        raise _misfit("it has content that no event of it names")


def _has_prompt(said: Sequence[tuple[int, str, str]]) -> bool:
    return any(kind == ev.Admitted.__name__ for _version, kind, _data in said)
