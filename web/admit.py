"""From the body of a call to a submission: read, checked, tokenised; nothing is stored yet.

1. Unknown fields are refused: a misspelt limit must not be ignored. So is every value out of its range.
2. What is well formed and cannot be served here is refused as impossible, with what can be.
3. Nothing that was asked for is ignored silently: what does not exist yet is refused by name.
4. The digest that an idempotency key is compared by is made of what the client sent, before a seed is drawn for it.
"""

import base64
import hashlib
import re
import secrets
import time
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from core import webhooks
from core.errors import FailsoftError, Impossible, Malformed
from core.words import Failover, Priority
from store.contents import StoredSampling
from store.models.catalog import Catalog, ModelEntry, load_prompt_side
from store.models.null_model import is_null
from store.models.template import Message
from store.settings import Settings
from store.submit import Submission

T = TypeVar("T")

WORKLOADS: Final = ("generate", "transcribe", "embed")
SERVED: Final = ("generate",)
MAX_STOPS: Final = 8
MAX_STOP_CHARACTERS: Final = 1000
MAX_METADATA_BYTES: Final = 16_384
MAX_GRAMMAR_CHARACTERS: Final = 65_536
MAX_KEY_CHARACTERS: Final = 255
_QUICK_CHARACTERS: Final = 4096
_INT32: Final = 2**31 - 1
_YEAR_S: Final = 366 * 86_400
Deadline = Annotated[float, msgspec.Meta(gt=0, le=_YEAR_S)]
"""Seconds from now."""
_PLACE: Final = re.compile(r"at `\$\.?([^`]*)`|field `([^`]*)`")
_CROCKFORD: Final = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ")
"""Crockford's digits for those of RFC 4648."""


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom to tell about the end, and about moves between lanes."""

    url: str


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A submission as clients write it. `prompt` is raw text, instead of `messages`."""

    model: str
    workload: Literal["generate"] = "generate"
    messages: list[Turn] | None = None
    prompt: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=_INT32)] = 256
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0, le=_INT32)] = 40
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    failover: Failover = "auto"
    allow_fallback_model: bool = False
    allow_shrink: bool = True
    deadline_s: Deadline | None = None
    priority: Priority = "interactive"
    webhook: Webhook | None = None
    metadata: dict[str, str] = {}
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None


def new_request_id() -> str:
    """`req_` and 26 characters that sort by time: milliseconds, then 80 random bits, in Crockford's base 32."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    # 130 bits are 26 digits of five; shifted to the front of 160, which is what base32 needs to come out even.
    return "req_" + base64.b32encode((number << 30).to_bytes(20, "big")).translate(_CROCKFORD)[:26].decode()


def read_json(raw: bytes) -> Any:
    """The value a body holds. Raises `Malformed`."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the body is not JSON that can be read: {error}", code="not_json") from error


def convert(value: Any, type_: type[T]) -> T:
    """A body as the type it must have. Raises `Malformed` with the place."""
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        raise Malformed(str(error), param=place[1] or place[2] if place else None) from error


def read_key(header: str | None) -> str | None:
    """An Idempotency-Key, quoted or bare. Raises `Malformed`."""
    if header is None:
        return None
    key = header.strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise Malformed(f"an Idempotency-Key has 1 to {MAX_KEY_CHARACTERS} characters", param="Idempotency-Key")
    return key


def read_body(value: Any) -> Body:
    """A submission, checked. Raises `Malformed`, or `Impossible` for what does not exist here."""
    if not isinstance(value, dict):
        raise Malformed("the body must be a JSON object")
    workload = value.get("workload", "generate")
    if workload in WORKLOADS and workload not in SERVED:
        raise Impossible(
            f"workload {workload} is not served here yet; served are: {', '.join(SERVED)}",
            code="workload_not_served",
            param="workload",
        )
    body = convert(value, Body)
    if (body.messages is None) == (body.prompt is None):
        raise Malformed("send either `messages` or `prompt`, one of them", param="messages")
    if body.messages == [] or not (body.messages or body.prompt):
        raise Malformed("the prompt is empty", param="prompt" if body.messages is None else "messages")
    for stop in _stops(body):
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise Malformed(f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters", param="stop")
    if len(_stops(body)) > MAX_STOPS:
        raise Malformed(f"at most {MAX_STOPS} stop strings are taken", param="stop")
    if len(msgspec.json.encode(body.metadata)) > MAX_METADATA_BYTES:
        raise Malformed(f"metadata may have {MAX_METADATA_BYTES} bytes as JSON", param="metadata")
    _check_constraint(body)
    return body


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its members and the blanks between them."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def is_quick(body: Body) -> bool:
    """Whether tokenising takes microseconds. The built-in model's tokens are bytes; others may have to read a file."""
    text = body.prompt or "".join(turn.content for turn in body.messages or ())
    return is_null(body.model) and len(text) <= _QUICK_CHARACTERS


def submission(
    catalog: Catalog, settings: Settings, body: Body, *, owner: str, digest: str, key: str | None
) -> Submission:
    """Tokenise, and draw what was left open. Blocks; call it off the event loop unless it `is_quick`.

    Raises `Impossible` for a model that is unknown, not served, or cannot take this conversation, and for a webhook
    that may not be called; `Malformed` for text that is none, `ModelFileError` when the model's files have a problem.
    """
    _require_webhook(settings, body)
    seed = secrets.randbelow(2**31) if body.seed is None else body.seed
    sub = _submission(catalog, settings, msgspec.structs.replace(body, seed=seed), owner=owner, digest=digest, key=key)
    smaller = settings.fallback.get(body.model) if body.allow_fallback_model else None
    if smaller is None:
        return sub
    other = msgspec.structs.replace(body, model=smaller, seed=seed)
    try:
        instead = _submission(catalog, settings, other, owner=owner, digest=digest, key=key)
    except FailsoftError:
        return sub  # what was asked for can still be served, or says itself why not
    return msgspec.structs.replace(sub, fallback=msgspec.structs.replace(instead, id=sub.id, body=sub.body))


def _submission(
    catalog: Catalog, settings: Settings, body: Body, *, owner: str, digest: str, key: str | None
) -> Submission:
    entry = catalog.get(body.model)
    _require_served(entry, settings)
    _require_constraints(entry, settings, body)
    side = load_prompt_side(entry)
    if body.messages is not None:
        tokens = side.chat_ids([Message(turn.role, turn.content) for turn in body.messages])
    else:
        assert body.prompt is not None
        tokens = side.text_ids(body.prompt)
    if not tokens:
        raise Malformed("the prompt is empty", param="prompt")
    assert body.seed is not None
    return Submission(
        id=new_request_id(),
        owner=owner,
        workload=body.workload,
        model=entry.id,
        engine=entry.engine,
        contract=entry.contract,
        body=msgspec.to_builtins(body),
        tokens=tokens,
        eos=side.eos,
        stops=tuple(_stops(body)),
        sampling=StoredSampling(body.temperature, body.top_p, body.top_k, body.seed),
        max_units=body.max_tokens,
        failover=body.failover,
        priority=body.priority,
        deadline_s=body.deadline_s,
        secret=secrets.token_bytes(32),
        body_digest=digest,
        allow_shrink=body.allow_shrink,
        idempotency_key=key,
        webhook=body.webhook.url if body.webhook else None,
    )


def _require_served(entry: ModelEntry, settings: Settings) -> None:
    if entry.id not in settings.models:
        served = ", ".join(settings.models)
        raise Impossible(
            f"model {entry.id} is known but not served now; served are: {served}. Add it to `models` in failsoft.toml",
            code="model_not_served",
            param="model",
        )
    if entry.workload not in SERVED:
        raise Impossible(f"model {entry.id} does {entry.workload}, which is not served yet", param="model")
    if entry.problem:
        raise Impossible(f"model {entry.id} cannot be used: {entry.problem}", code="model_broken", param="model")


def _require_webhook(settings: Settings, body: Body) -> None:
    """Refuse what could never be told. What a name leads to is looked at when something is sent."""
    if body.webhook is None:
        return
    param = "webhook.url"
    try:
        target = webhooks.read_url(body.webhook.url)
    except ValueError as error:
        raise Impossible(f"this webhook URL cannot be called: {error}", code="webhook_url", param=param) from error
    refused = webhooks.refusal(target.host, webhooks.allowed(settings.webhook_hosts))
    if refused is not None:
        raise Impossible(f"webhooks go to public addresses only: {refused}", code="webhook_target", param=param)


def _constraint(body: Body) -> str | None:
    """The field that says what an answer must match, if one does."""
    if body.grammar is not None:
        return "grammar"
    return "json_schema" if body.json_schema is not None else None


def _check_constraint(body: Body) -> None:
    if body.grammar is not None and not body.grammar.strip():
        raise Malformed("the grammar is empty; leave `grammar` out for a free answer", param="grammar")
    if body.grammar is not None and body.json_schema is not None:
        raise Malformed("send either `grammar` or `json_schema`, one of them", param="grammar")
    if len(body.grammar or "") > MAX_GRAMMAR_CHARACTERS or (
        body.json_schema is not None and len(msgspec.json.encode(body.json_schema)) > MAX_GRAMMAR_CHARACTERS
    ):
        raise Malformed(f"a grammar or schema may have {MAX_GRAMMAR_CHARACTERS} characters", param=_constraint(body))


def _require_constraints(entry: ModelEntry, settings: Settings, body: Body) -> None:
    """Every lane of the model must be able to hold the answer to it, or a takeover would break it."""
    param = _constraint(body)
    if param is None:
        return
    theirs = next((up.name for up in settings.upstreams if up.model == entry.id), None)
    if entry.engine != "llamacpp" or theirs is not None:
        why = f"upstream {theirs} computes a lane of it" if theirs else f"it runs on the engine {entry.engine}"
        raise Impossible(
            f"model {entry.id} cannot be held to a grammar: {why}. Serve it with the llama.cpp engine on both lanes "
            f"(failsoft models prepare FILE --engine llamacpp), or leave `{param}` out",
            code="constraint_not_served",
            param=param,
        )


def _stops(body: Body) -> list[str]:
    return [body.stop] if isinstance(body.stop, str) else (body.stop or [])
