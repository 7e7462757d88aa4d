"""Paths by name, as they are written on a command line.

    ENGINE                    an engine in this program, computing the model asked about: `llamacpp`, `ctransformers`
    ENGINE=URL                the same engine's server, which runs already
    MODEL                     a model of the catalog, with the engine it is entered for
    upstream:NAME             a server that the settings name, computing the model they name
    ENGINE:KEY=VALUE,…        any of the first two or the third with options; `server=` comes last, it takes the rest

Keys: `slots` (requests at once), `layers` (on an accelerator), `device` (that accelerator's id, as `failsoft doctor`
shows it; without it everything is computed on the host), `server` (a URL).
"""

import re
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from core.contract import HOST
from core.errors import Malformed
from runners.engines.registry import ENGINE_NAMES
from store.models.catalog import DEFAULT_ID
from store.models.null_model import NULL_ID
from store.settings import Upstream

UPSTREAM: Final = "upstream"
_NULL_ENGINE: Final = "null"
_SERVED: Final = frozenset({"llamacpp"})
"""Engines that can be a server."""
_URL: Final = re.compile(r"https?://[^\s/]+.*")
_MOST_SLOTS: Final = 64
_MOST_LAYERS: Final = 9_999


class PathSpec(msgspec.Struct, frozen=True):
    """One path, not yet loaded."""

    text: str
    """As it was written."""
    model: str
    """Id in the catalog."""
    engine: str = ""
    """Empty: the engine that the catalog names for the model."""
    slots: int = 1
    layers: int = 0
    device: str = ""
    server: str = ""
    upstream: Upstream | None = None

    @property
    def kind(self) -> str:
        """Where it computes, as `core.contract.PathFacts.kind` has it."""
        if self.upstream is not None:
            return f"{UPSTREAM}:{self.upstream.name}"
        return self.device or HOST


def parse(text: str, *, model: str | None, known: Collection[str], upstreams: Sequence[Upstream]) -> PathSpec:
    """Read a path. `model` is the model asked about, `known` are the catalog's ids. Raises `Malformed`."""
    head, colon, options = text.partition(":")
    if head == UPSTREAM and colon:
        return _upstream(text, options, model, upstreams)
    head, equals, url = text.partition("=") if _is_server(text) else (head, "", "")
    spec = _of(text, head, model, known)
    found = dict(_options(text, options)) if colon and not equals else {}
    if equals:
        found["server"] = url
    if found.get("server") and spec.engine not in _SERVED:
        raise Malformed(f"{text!r}: {head} has no server of its own; engines that have one: {', '.join(_SERVED)}")
    return msgspec.structs.replace(
        spec,
        slots=_count(text, "slots", found.get("slots", "1"), 1, _MOST_SLOTS),
        layers=_count(text, "layers", found.get("layers", "0"), 0, _MOST_LAYERS),
        device=found.get("device", ""),
        server=_url(text, found["server"]) if "server" in found else "",
    )


def _is_server(text: str) -> bool:
    head, equals, _ = text.partition("=")
    return bool(equals) and ":" not in head


def _of(text: str, head: str, model: str | None, known: Collection[str]) -> PathSpec:
    if head in ENGINE_NAMES:
        return PathSpec(text, model or (NULL_ID if head == _NULL_ENGINE else DEFAULT_ID), head)
    if head in known:
        return PathSpec(text, head)
    engines, models = ", ".join(ENGINE_NAMES), ", ".join(sorted(known))
    raise Malformed(
        f"{head[:80]!r} names no path; write an engine ({engines}), a model ({models}), ENGINE=URL or upstream:NAME"
    )


def _options(text: str, options: str) -> list[tuple[str, str]]:
    found = []
    while options:
        key, equals, rest = options.partition("=")
        if not equals or key not in {"slots", "layers", "device", "server"}:
            raise Malformed(f"{text!r}: {key[:80]!r} is no option; write slots=N, layers=N, device=KIND or server=URL")
        value, _, options = (rest, "", "") if key == "server" else rest.partition(",")
        found.append((key, value))
    return found


def _count(text: str, key: str, value: str, least: int, most: int) -> int:
    if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
        raise Malformed(f"{text!r}: {key}={value[:20]} is out of range; give a whole number from {least} to {most}")
    return int(value)


def _url(text: str, value: str) -> str:
    if not _URL.fullmatch(value):
        raise Malformed(f"{text!r}: {value[:80]!r} is no address; write one such as http://127.0.0.1:8080")
    return value.rstrip("/")


def _upstream(text: str, name: str, model: str | None, upstreams: Sequence[Upstream]) -> PathSpec:
    for upstream in upstreams:
        if upstream.name == name and model in {None, upstream.model}:
            return PathSpec(text, upstream.model, UPSTREAM, server=upstream.url or upstream.cmd, upstream=upstream)
    names = ", ".join(f"{one.name} (for {one.model})" for one in upstreams) or "none"
    raise Malformed(
        f"the settings name no upstream {name[:80]!r}{f' for {model}' if model else ''}; they name: {names}. Add it to "
        "failsoft.toml in [[upstreams]], and give that file with --config"
    )
