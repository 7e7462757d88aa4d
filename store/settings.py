"""What an operator sets: `failsoft.toml`, overridden by `FAILSOFT_…` variables, overridden by the command line.

No file is needed for a first run. The supervisor writes what is in force to `run/settings.json`, and its children read
that, so that all processes of one service agree.
"""

import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from core import webhooks
from core.errors import Malformed
from core.policy import Policy
from core.words import Lane
from store.database import Paths

_UNITS: Final = {
    "": 1,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}


_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_LEAST_POOL: Final = 256
"""Tokens: a smaller cache would hold no request worth sharing it."""
_LEAST_BUDGET: Final = 200 << 20
"""Bytes that a worker without much of a model takes, and room to work."""
_LONGEST: Final = 1e9
"""No time or factor is larger: counted in microseconds it fits the record, and JSON knows no infinity."""


class Upstream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server that speaks the OpenAI API and computes one of the two lanes for one model."""

    name: str
    """Shown as the device `upstream:<name>`; small letters, digits and dashes."""
    model: str
    """The model of the catalog that it serves: prompts are made, and answers are counted, by that model's tokens."""
    url: str = ""
    """Where it listens, such as `http://127.0.0.1:8000`."""
    cmd: str = ""
    """Or the command that starts it, with `${PORT}` where it is to listen."""
    lane: Lane = "gpu"
    """The lane it computes; the other one stays here."""
    served_model: str = ""
    """The model's name over there; empty: the first one that it lists."""
    continues: Literal["tokens", "completion", "message", "none"] = "none"
    """How it goes on with a partial answer: `tokens` takes token ids, `completion` takes raw text, `message` goes on
    with a last message of the assistant; `none` cannot. It is tried out at each start."""
    key_env: str = ""
    """Name of the environment variable that holds its API key."""
    first_byte_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """How long it may take until the first part of an answer."""
    silence_s: Annotated[float, msgspec.Meta(gt=0)] = 15.0
    """How long it may be silent within an answer."""
    start_s: Annotated[float, msgspec.Meta(gt=0)] = 120.0
    """How long a command may take until it answers."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything `failsoft.toml` may say. Sizes may be written as `1GiB`; they are kept in bytes."""

    host: str = "127.0.0.1"
    """Address to listen on. Only loopback addresses are served without keys."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8765
    """Port to listen on; 0 takes a free one."""
    models: tuple[str, ...] = ("smollm2-135m",)
    """Models to serve, by their ids in the catalog (`failsoft models list`)."""
    context: Annotated[int, msgspec.Meta(ge=256)] = 4096
    """Context length of the lanes in tokens, prompt and answer together; a model's own limit still holds."""
    cpu_context: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The same for the CPU lane, where it is to be shorter; 0: as long as the others."""
    cpu_readiness: Literal["warm", "mmap", "cold"] = "warm"
    """What is ready of a model's CPU lane while nobody needs it: its worker (`warm`), its file in the page cache
    (`mmap`), or nothing (`cold`)."""
    simulate_gpu: int | None = None
    """Size in bytes of a simulated accelerator, labelled so everywhere; absent: none."""
    gpu: str = "auto"
    """The card of the GPU lane: `auto`, `none`, or a UUID or its beginning. A simulated accelerator goes before."""
    null_load_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 << 20
    """What the built-in `null` model pretends to take on a device, and of the host for its CPU lane."""
    null_token_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """What each token of a request to the `null` model pretends to take on a device."""
    pinned: tuple[str, ...] = ()
    """Models that are never unloaded to make room for others."""
    gpu_slots: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Requests that the GPU lane works on at once, where the engine can. With more than one, answers may differ in
    their wording from what one at a time would give; what was shown is never changed."""
    cpu_slots: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """The same for the CPU lane."""
    pool_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens that all requests of a lane share one cache of, with more than one slot; 0: a whole context for each."""
    llama_server: str = ""
    """How the llama.cpp engine gets its server: empty for the one in the `xllamacpp` package, the URL of one that
    runs already, or a command line such as `llama-server -m ${MODEL} --port ${PORT}`."""
    upstreams: tuple[Upstream, ...] = ()
    """Servers that compute a lane, in tables `[[upstreams]]`."""
    webhook_hosts: tuple[str, ...] = ()
    """Names and networks that webhooks may reach although they are not of the public internet."""
    unified_memory: dict[str, bool] = {}
    """By UUID of a device or its beginning: whether it computes in the host's memory, where recognising it fails."""
    fallback: dict[str, str] = {}
    """By model: the smaller one that serves instead where a request allows that and no lane can take the one it asked
    for."""
    policy: Policy = Policy()
    """Limits and thresholds, in a table `[policy]`."""

    def context_on(self, lane: Lane) -> int:
        """Context length of a lane in tokens; a model's own limit still holds."""
        return min(self.context, self.cpu_context or self.context) if lane == "cpu" else self.context


def size(text: str) -> int:
    """Bytes of `1GiB`, `512 MiB`, `1000000`. Raises `Malformed`."""
    match = re.fullmatch(r"\s*([0-9]+)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise Malformed(f"{text!r} is not a size; write bytes, or a whole number with KiB, MiB or GiB, such as 1GiB")
    return int(match[1]) * _UNITS[match[2].upper()]


def load(file: Path | None, environment: Mapping[str, str], **overrides: Any) -> Settings:
    """The settings in force. `overrides` that are None do not count.

    Raises `Malformed` with the place and the remedy.
    """
    raw: dict[str, Any] = {}
    if file is not None:
        try:
            raw = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise Malformed(f"cannot read {file}: {error.strerror}; name another with --config") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Malformed(f"{file} is not TOML: {error}") from error
    for name in ("host", "port", "context", "simulate_gpu", "gpu"):
        if value := environment.get(f"FAILSOFT_{name.upper()}"):
            raw[name] = value
    if models := environment.get("FAILSOFT_MODELS"):
        raw["models"] = [name for part in models.split(",") if (name := part.strip())]
    raw |= {name: value for name, value in overrides.items() if value is not None}
    if isinstance(raw.get("simulate_gpu"), str):
        raw["simulate_gpu"] = size(raw["simulate_gpu"])
    try:
        settings = msgspec.convert(raw, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise Malformed(f"{file or 'settings'}: {error}; failsoft.example.toml lists every key") from error
    _card(f"{file or 'settings'}: gpu", settings.gpu)
    _check(str(file or "settings"), settings)
    return settings


def _card(name: str, value: str) -> None:
    if value not in {"auto", "none"} and not re.fullmatch(r"(GPU|MIG)-[0-9a-zA-Z/-]+", value):
        raise Malformed(
            f"{name} is {value!r}; write auto, none, the UUID of a card or of a MIG slice, or the beginning of a "
            "card's, such as GPU-af7b61d8 (nvidia-smi -L lists them)"
        )


def _hosts(name: str, entries: tuple[str, ...]) -> None:
    try:
        webhooks.allowed(entries)
    except ValueError as error:
        raise Malformed(f"{name}: {error}") from error


def _check(place: str, settings: Settings) -> None:
    """What the types cannot say."""
    _hosts(f"{place}: webhook_hosts", settings.webhook_hosts)
    if 0 < settings.pool_tokens < _LEAST_POOL:
        raise Malformed(f"{place}: pool_tokens is {settings.pool_tokens}; write 0, or {_LEAST_POOL} or more")
    if 0 < settings.policy.cpu_budget_bytes < _LEAST_BUDGET:
        raise Malformed(
            f"{place}: policy.cpu_budget_bytes is {settings.policy.cpu_budget_bytes}; a worker alone needs "
            f"{_LEAST_BUDGET}: write 0, or that or more"
        )
    if 0 < settings.cpu_context < _LEAST_POOL:
        raise Malformed(f"{place}: cpu_context is {settings.cpu_context}; write 0, or {_LEAST_POOL} or more")
    for model, smaller in settings.fallback.items():
        if smaller not in settings.models or model not in settings.models or model == smaller:
            raise Malformed(f"{place}: fallback: {model!r} = {smaller!r} must be two of the `models` to serve")
    _check_upstreams(place, settings)
    for name, value in msgspec.structs.asdict(settings.policy).items():
        _bound(f"{place}: policy.{name}", value)


def _check_upstreams(place: str, settings: Settings) -> None:
    """What can be wrong with the servers of others is told before anything starts."""
    seen: set[str] = set()
    for upstream in settings.upstreams:
        where = f"{place}: upstreams: {upstream.name[:60]!r}"
        if not _NAME.fullmatch(upstream.name):
            raise Malformed(f"{where} is no name; use small letters, digits and dashes, 40 at most")
        if upstream.model not in settings.models:
            raise Malformed(f"{where} is for the model {upstream.model!r}, which is not among the `models` to serve")
        if bool(upstream.url) == bool(upstream.cmd):
            raise Malformed(f"{where} needs a `url`, or else a `cmd` that starts it: one of the two")
        for mark in (f"name {upstream.name}", f"{upstream.lane} lane of {upstream.model}"):
            if mark in seen:
                raise Malformed(f"{where}: the {mark} is taken by another upstream already")
            seen.add(mark)
        _check_reach(where, upstream)


def _check_reach(where: str, upstream: Upstream) -> None:
    if upstream.cmd:
        try:
            words = shlex.split(upstream.cmd)
        except ValueError as error:
            raise Malformed(f"{where}: `cmd` cannot be read as a command line ({error})") from error
        if not words or not any("${PORT}" in word for word in words):
            raise Malformed(f"{where}: `cmd` must say ${{PORT}} where the server is to listen")
        return
    try:
        parts = urlsplit(upstream.url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    # The address itself is not repeated: it may hold a password.
    if not usable:
        raise Malformed(f"{where}: `url` is not the address of a server, such as http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise Malformed(f"{where}: `url` holds a user or a password; name the variable that holds the key in `key_env`")


def _bound(name: str, value: object) -> None:
    if isinstance(value, float) and value > _LONGEST:
        raise Malformed(f"{name} may be at most {_LONGEST:.0f}, not {value}")


def in_force(paths: Paths) -> Settings:
    """What the running service's supervisor wrote down."""
    return msgspec.json.decode((paths.run / "settings.json").read_bytes(), type=Settings)


def write_in_force(paths: Paths, settings: Settings) -> None:
    """Write down what is in force, for the children."""
    file = paths.run / "settings.json"
    draft = file.with_suffix(".new")
    draft.write_bytes(msgspec.json.encode(settings))
    draft.replace(file)
