"""What another policy would have decided about what is in the record: `POST /api/what-if`."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from litestar import Response, post
from litestar.di import NamedDependency

from core.decision import AdmissionFacts, Decision
from core.errors import Malformed
from core.explain import rule_words
from core.policy import Policy
from core.whatif import NOTE, Asked, Changed, OtherPolicy, Tally, count
from store import audit
from store.settings import size
from store.transfer import LATEST_US
from web import admit
from web.api.answers import Call, answer, read_raw
from web.services import Services
from web.views import View, time_text

PAGE: Final = 1000
MOST: Final = 200_000
"""Decisions looked at by one call; beyond it the answer says that there were more."""
_KINDS: Final = ("Admitted", "Refused", "Rerouted", "Replanned")
_SPANS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZES: Final = ("headroom_bytes", "device_cap_bytes", "unseen_margin_bytes")
_NAMES: Final = OtherPolicy.__struct_fields__


class WhatIf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values to try, and of which time: RFC 3339, or a time before now such as `7d`, `12h`, `30m`, `90s`."""

    policy: dict[str, Any]
    since: str | None = None
    until: str | None = None


class _Part(msgspec.Struct):
    """What is read of an event."""

    decision: Decision | None = None
    from_lane: str | None = None


_decode: Final = msgspec.json.Decoder(_Part).decode


def other_policy(given: Mapping[str, Any]) -> OtherPolicy:
    """The values to try; sizes may be written as `2GiB`. Raises `Malformed` with what can be tried."""
    for name in given:
        if name in _NAMES:
            continue
        why = "is not a policy"
        if name in {"pressure_high", "pressure_low", "calm_for_s"}:
            why = "works over time, which one recorded decision does not know; try ignore_pressure"
        elif name in Policy.__struct_fields__:
            why = "does not bear on what admission decides"
        raise Malformed(f"{name} {why}. What can be tried: {', '.join(_NAMES)}", param=f"policy.{name}")
    read = dict(given)
    for name in _SIZES:
        if isinstance(read.get(name), str):
            read[name] = size(read[name])
    return admit.convert(read, OtherPolicy)


def moment(text: str | None, now_us: int, name: str) -> int | None:
    """Microseconds since 1970 of a time or of a span before now. Raises `Malformed`."""
    if text is None:
        return None
    span = re.fullmatch(r"([0-9]{1,7})([smhd])", text.strip())
    if span is not None:
        return max(0, now_us - int(span[1]) * _SPANS[span[2]] * 1_000_000)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Malformed(
            f"`{name}` is a time such as 2026-01-31T12:00:00Z, or a span before now such as 7d, 12h, 30m", param=name
        ) from None
    us = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)
    return min(max(0, us), LATEST_US)


def _asked(rows: Sequence[Any]) -> list[Asked]:
    """The admission decisions of event rows. A move at admission repeats the decision of its `Admitted`."""
    found = []
    for _seq, stream, version, kind, at_us, data in rows:
        part = _decode(data)
        repeated = kind == "Rerouted" and part.from_lane is None
        if part.decision is not None and isinstance(part.decision.facts, AdmissionFacts) and not repeated:
            found.append(Asked(stream, version, at_us, part.decision))
    return found


def _changed_view(one: Changed) -> View:
    return {
        "request_id": one.request_id,
        "version": one.version,
        "at": time_text(one.at_us),
        "recorded": {"action": one.action, "rule": one.rule, "because": rule_words(one.rule)},
        "other": {"action": one.other_action, "rule": one.other_rule, "because": rule_words(one.other_rule)},
        "over_bytes": one.over,
    }


async def tally_of(
    services: Services, other: OtherPolicy, since_us: int, until_us: int, most: int = MOST
) -> tuple[Tally, bool]:
    """All decisions of a time asked again, and whether there were more than `most`, after which it stops."""
    tally = Tally()
    first, last = await services.reader.see(lambda look: audit.span(look, since_us, until_us))
    for kind in _KINDS:
        after = first - 1
        while rows := await services.reader.decisions(kind, after, last, since_us, until_us, PAGE):
            after = rows[-1][0]
            await asyncio.to_thread(lambda page: count(tally, _asked(page), other), rows)
            if tally.decisions >= most:
                return tally, True
    return tally, False


@post("/api/what-if", status_code=200)
async def what_if(request: Call, services: NamedDependency[Services]) -> Response[bytes]:
    """Every recorded admission decision of a time, asked again under another policy, one by one."""
    raw = await read_raw(request, services.settings.policy.max_body_bytes)
    body = admit.convert(admit.read_json(raw), WhatIf)
    now_us = services.now_us()
    since_us = moment(body.since, now_us, "since") or 0
    until_us = moment(body.until, now_us, "until") or now_us
    if since_us > until_us:
        raise Malformed("`since` lies after `until`", param="since")
    other = other_policy(body.policy)
    tally, more = await tally_of(services, other, since_us, until_us)
    return answer(
        {
            "policy": msgspec.to_builtins(other),
            "since": time_text(since_us),
            "until": time_text(until_us),
            "note": NOTE,
            "more": more,
        }
        | {name: getattr(tally, name) for name in Tally.__struct_fields__ if name != "examples"}
        | {"examples": [_changed_view(one) for one in tally.examples]}
    )


HANDLERS: Final = [what_if]
