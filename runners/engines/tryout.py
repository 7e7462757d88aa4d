"""What is found out about a server before it gets work.

1. It must be reached, serve the model it is to serve, and give a short answer that looks like one. A green health page
   proves none of that.
2. The declared way of going on must give, from the first half of an answer, the rest of it. Computing twice may flip a
   token on some servers, so a failed trial is repeated once.
3. It should count as many tokens in a prompt as its ids: another count means another template, or a BOS too many, and
   is told in the log.
"""

import logging
import os
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from core.errors import CannotContinue, EngineFault, Impossible
from runners.engines.answers import Answer
from runners.engines.asking import Ask, Continues, ask_for
from runners.engines.base import GenerateWork, Host, Ready, Said, Sampling, Sequence
from runners.engines.openaihttp import Address, address_of, get
from store.models.prompt_side import PromptSide
from store.models.template import Message
from store.settings import Upstream

log = logging.getLogger("failsoft.upstream")

_QUESTION: Final = "Count from one to twenty in words."
_RAW: Final = "Count from one to twenty in words. One, two, three,"
_CANARY_UNITS: Final = 8
_TRIAL_UNITS: Final = 16
_SHORTEST: Final = 4
_TRIES: Final = 2
_GET_S: Final = 5.0
_VERSIONS: Final = (("/version", "version"), ("/api/version", "version"), ("/props", "build_info"))
"""Where servers say which version they are."""


class Server(msgspec.Struct, frozen=True):
    """Where it is, what the model is called over there, and what it says of itself (empty: nothing)."""

    address: Address
    model: str
    version: str


class Tried(Protocol):
    """What is tried out."""

    server: Server
    upstream: Upstream
    side: PromptSide
    continues: Continues

    def begin(self, work: GenerateWork, host: Host) -> Sequence:
        """As `runners.engines.base.Loaded.begin`."""

    def answer(self, ask: Ask, alive: Callable[[], None]) -> Answer:
        """The answer to one question."""

    def leave(self, answer: Answer) -> None:
        """Done with it."""

    def explained(self, fault: EngineFault) -> EngineFault:
        """A fault with its cause, where that is known."""


def reach(upstream: Upstream, url: str) -> Server:
    """Find the server and its model. Raises `EngineFault` with the remedy."""
    address = address_of(url, _key(upstream))
    status, name, found = get(address, "/v1/models", _GET_S)
    if status in {401, 403}:
        raise EngineFault(f"The server {address} wants another key ({status}). Name its variable with key_env.")
    listed = _listed(found) if status == 200 else []
    if status != 200 and not (status in {404, 405, 501} and upstream.served_model):
        raise EngineFault(f"The server {address} does not list its models ({status}). Check that it is an OpenAI API.")
    if upstream.served_model and listed and upstream.served_model not in listed:
        known = ", ".join(listed[:20])
        raise EngineFault(f"The server {address} does not serve {upstream.served_model!r}; it serves: {known}.")
    if not upstream.served_model and not listed:
        raise EngineFault(f"The server {address} lists no model. Load one there, or name it with served_model.")
    return Server(address, upstream.served_model or listed[0], _version(address) or address.quoted(name))


def canary(tried: Tried, waiting: Callable[[], None]) -> str:
    """A short answer. Raises `EngineFault` when there is none, or when it does not look like one."""
    work = _work(tried.side, _CANARY_UNITS)
    ask = ask_for(work, tried.side, tried.server.model, tried.continues)
    counting = Ask(ask.path, {**ask.body, "stream_options": {"include_usage": True}}, ask.way)
    answer = tried.answer(counting, waiting)
    text = ""
    try:
        end = None
        while end is None:
            piece = answer.piece()
            text, end = text + piece.text, piece.end
        counted = answer.prompt_tokens()
    except EngineFault as fault:
        raise tried.explained(fault) from fault
    finally:
        tried.leave(answer)
    if not any(char.isalnum() for char in text) or (len(text) >= _CANARY_UNITS and len(set(text)) == 1):
        said = tried.server.address.quoted(text) or "nothing"
        raise EngineFault(
            f"The server {tried.server.address} answers, but not with words ({said}). See its log; start it anew."
        )
    if counted is not None and counted != len(work.prompt):
        log.warning(
            "upstream %s counts %d tokens in a prompt that has %d here: its chat template is another, or it puts a BOS "
            "in front of one; its answers are then not those of the other lane",
            tried.upstream.name,
            counted,
            len(work.prompt),
        )
    return text


def continues_as_declared(tried: Tried, waiting: Callable[[], None]) -> Continues:
    """The declared way of going on if it works, else `none`, and why is in the log. Raises `EngineFault`."""
    if tried.continues == "none":
        return "none"
    why = ""
    for _ in range(_TRIES):
        why = _trial(tried, waiting)
        if not why:
            return tried.continues
    log.warning(
        "upstream %s does not go on with an answer by %s as declared: %s. It will only begin answers",
        tried.upstream.name,
        tried.continues,
        why,
    )
    return "none"


def _trial(tried: Tried, waiting: Callable[[], None]) -> str:
    """What was wrong; empty when nothing was."""
    work = _work(tried.side, _TRIAL_UNITS)
    whole = _units(tried, work, waiting)
    if len(whole) < _SHORTEST:
        return f"its answer has only {len(whole)} tokens, too few to be divided"
    done, why = _cut(tried, work, whole)
    if why:
        return why
    wanted, begun = (b"".join(map(tried.side.piece, units)) for units in (whole, done))
    rest = _units(tried, msgspec.structs.replace(work, done=done), waiting)
    got = begun + b"".join(map(tried.side.piece, rest))
    if got == wanted:
        return ""
    shown = [text.decode("utf-8", "replace") for text in (wanted, got)]
    return f"in one go it answers {shown[0]!r}, in two halves {shown[1]!r}"


def _cut(tried: Tried, work: GenerateWork, whole: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """The first half or so: as much as can be said in the declared way; and why not, where nothing can."""
    why = ""
    for size in sorted(range(1, len(whole)), key=lambda size: abs(size - len(whole) // 2)):
        part = msgspec.structs.replace(work, done=whole[:size])
        try:
            ask_for(part, tried.side, tried.server.model, tried.continues)
        except CannotContinue as error:
            why = why or str(error).rstrip(".")
        else:
            return part.done, ""
    return (), why


def _units(tried: Tried, work: GenerateWork, waiting: Callable[[], None]) -> tuple[int, ...]:
    sequence = tried.begin(work, _Waiting(waiting))
    try:
        return tuple(unit for chunk in sequence for unit in chunk.units)
    finally:
        sequence.close()


def _work(side: PromptSide, units: int) -> GenerateWork:
    try:
        prompt = side.chat_ids((Message("user", _QUESTION),))
        said = Said(messages=(("user", _QUESTION),))
    except Impossible:
        prompt, said = side.text_ids(_RAW), Said(prompt=_RAW)
    return GenerateWork(prompt=prompt, done=(), max_units=units, eos=side.eos, sampling=Sampling(), said=said)


def _key(upstream: Upstream) -> str:
    if not upstream.key_env:
        return ""
    key = os.environ.get(upstream.key_env, "")
    if not key:
        raise EngineFault(
            f"The variable {upstream.key_env}, which is to hold the key for the upstream {upstream.name}, is not set."
            " Set it for the service and start it again."
        )
    return key


def _listed(found: Any) -> list[str]:
    data = found.get("data") if isinstance(found, dict) else None
    names = [entry.get("id") for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    return [name for name in names if isinstance(name, str) and name]


def _version(address: Address) -> str:
    for path, key in _VERSIONS:
        try:
            status, _, found = get(address, path, _GET_S)
        except EngineFault:
            continue
        said = found.get(key) if status == 200 and isinstance(found, dict) else None
        if isinstance(said, str) and said:
            return address.quoted(said)[:64]
    return ""


class _Waiting:
    """A host for trials: it wants all in one chunk."""

    def __init__(self, waiting: Callable[[], None]) -> None:
        self._waiting = waiting

    def pulse(self, units: int) -> None:  # noqa: ARG002 -- the protocol tells the size of the step
        self._waiting()

    def threads(self) -> int:
        return 1

    def chunk_size(self, done: int) -> int:  # noqa: ARG002 -- always the same
        return _TRIAL_UNITS

    def stretch(self, done: int) -> int:
        return self.chunk_size(done)

    def ready(self, how: Ready) -> None:
        """Nobody asks how."""
