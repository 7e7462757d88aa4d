"""What an operator sets: `failsoft.toml`, overridden by `FAILSOFT_…` variables, overridden by the command line.

No file is needed for a first run. The supervisor writes what is in force to `run/settings.json`, and its children read
that, so that all processes of one service agree.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from core.errors import Malformed
from core.policy import Policy
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


_LONGEST: Final = 1e9
"""No time or factor is larger: counted in microseconds it fits the record, and JSON knows no infinity."""


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
    simulate_gpu: int | None = None
    """Size in bytes of a simulated accelerator, labelled so everywhere; absent: none."""
    null_load_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 << 20
    """What the built-in `null` model pretends to take on a device."""
    null_token_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """What each token of a request to the `null` model pretends to take on a device."""
    pinned: tuple[str, ...] = ()
    """Models that are never unloaded to make room for others."""
    unified_memory: dict[str, bool] = {}
    """By UUID of a device or its beginning: whether it computes in the host's memory, where recognising it fails."""
    policy: Policy = Policy()
    """Limits and thresholds, in a table `[policy]`."""


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
    for name in ("host", "port", "context", "simulate_gpu"):
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
    for name, value in msgspec.structs.asdict(settings.policy).items():
        _bound(f"{file or 'settings'}: policy.{name}", value)
    return settings


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
