"""What is out, since when, why, and what answers instead: the banner before everything else.

1. A device that is not `ok` is an outage, so is one whose breaker is not closed, and so is a lane that does not serve.
2. A lane that is out because its device is, is told once, by the device.
3. A machine that never had an accelerator is not degraded by that; it is what it is.
4. Active requests that were moved by a fault keep the banner up until they have ended.
5. Of what answers instead its limits are told, and when a new request would begin there, with what that rests on.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from core.breaker import Breaker
from core.eta import Eta
from core.events import Recorded
from core.explain import explain, reason
from core.state import RequestState
from store.reads import Reader
from web.dashboard.timeline import place_href
from web.dashboard.wording import Moment, coming, degraded_sentence, lane_name, moment, spread
from web.machineviews import breaker_of_row

_CALM: Final = frozenset({"no-device", "no-gpu"})
_NOT_FAULTS: Final = _CALM | {"gpu-queue-full", "too-long-for-gpu"}


class Outage(msgspec.Struct, frozen=True):
    """One thing that is out. `href` leads to the event, if there is one; `probe` is when its device is tried again."""

    what: str
    sentence: str
    since: Moment
    instead: "tuple[Instead, ...]"
    href: str
    label: str
    probe: Moment | None = None
    then: str = ""
    """What brings it back, where no time can be told."""


class Instead(msgspec.Struct, frozen=True):
    """A lane that answers meanwhile: its limits, when a new request would begin there, and what that rests on."""

    name: str
    limits: str = ""
    begins: str = ""
    basis: str = ""


class Banner(msgspec.Struct, frozen=True):
    """What is out, and how many active requests are served less well for it. `spoken` is the one line read aloud."""

    outages: tuple[Outage, ...]
    degraded: int
    spoken: str


class Lanes(msgspec.Struct, frozen=True):
    """Lane rows of the reader, how many new requests may wait in each, and when one would begin."""

    rows: Sequence[Mapping[str, Any]]
    limits: Mapping[str, int]
    begins: Mapping[tuple[str, str], Eta]
    fallback: Mapping[str, str] = {}

    def instead(self, models: Sequence[str]) -> tuple[Instead, ...]:
        """What of them serves these models, and what serves the smaller ones that may answer for them."""
        smaller = {self.fallback[one] for one in models if one in self.fallback}.difference(models)
        serving = [row for row in self.rows if row["serving"]]
        own = [self._one(row) for row in serving if row["model"] in models]
        return (*own, *(self._allowed(row) for row in serving if row["model"] in smaller))

    def _allowed(self, row: Mapping[str, Any]) -> Instead:
        found = self._one(row)
        return msgspec.structs.replace(found, name=f"{found.name}, where the request allows it")

    def _one(self, row: Mapping[str, Any]) -> Instead:
        at_once = "one at a time" if row["slots"] == 1 else f"{row['slots']} at once"
        limit = self.limits[row["lane"]]
        limits = f"{row['context']:,} tokens each, {at_once}, {row['waiting']} of {limit} places taken"
        begins = self.begins.get((row["lane"], row["model"]))
        name = f"{lane_name(row['lane'])} lane · {row['model']}"
        if begins is None or begins.start_low_s is None:
            why = "" if begins is None else f", since {begins.basis.removeprefix('unknown: ')}"
            return Instead(name, limits, f"unknown{why}")
        return Instead(name, limits, spread(begins.start_low_s, begins.start_high_s), f"Resting on: {begins.basis}.")


async def banner(
    reader: Reader,
    devices: Sequence[Mapping[str, Any]],
    lanes: Lanes,
    requests: Sequence[RequestState],
    now_us: int,
) -> Banner | None:
    """The banner, or None when all is in. `devices` are rows of the reader."""
    out = {row["id"]: row for row in devices if row["state"] != "ok" or breaker_of_row(row).state != "closed"}
    outages = [await _device_out(reader, row, lanes, now_us) for row in out.values()]
    for row in lanes.rows:
        if not row["serving"] and row["device"] not in out and row["out_reason"] not in _CALM:
            record = await _last(reader, f"lane-{row['lane']}", "LaneOut")
            outages.append(_lane_out(row, record, lanes, now_us))
    never_had = {row["model"] for row in lanes.rows if row["out_reason"] in _CALM}
    moved_now = [one for one in requests if _moved_by_fault(one, never_had)]
    if not outages and moved_now:
        outages.append(_still_moved(moved_now[-1], now_us))
    if not outages:
        return None
    spoken = " ".join(dict.fromkeys(f"{one.what}: {one.sentence}" for one in outages))
    return Banner(tuple(outages), len(moved_now), f"Degraded. {spoken}")


def _moved_by_fault(state: RequestState, never_had: AbstractSet[str]) -> bool:
    mark = state.degraded
    if mark is None or state.settled_us is not None or mark.reason in _NOT_FAULTS:
        return False
    return mark.reason != "gpu-out" or state.model not in never_had


async def _last(reader: Reader, stream: str, type_: str) -> Recorded | None:
    found = await reader.journal(stream=stream, type_=type_, limit=1, newest=True)
    return found[0] if found else None


async def _device_out(reader: Reader, row: Mapping[str, Any], lanes: Lanes, now_us: int) -> Outage:
    lost, breaker = row["state"] != "ok", breaker_of_row(row)
    record = await _last(reader, f"device-{row['id']}", "DeviceLost" if lost else "BreakerOpened")
    models = sorted({lane["model"] for lane in lanes.rows if lane["device"] == row["id"]})
    why = reason(row["reason"] or "device-lost") if lost else reason(breaker.reason or "breaker-open")
    since_us = row["since_us"] if lost else record.at_us if record else breaker.since_us
    until_us = breaker.until_us()
    return Outage(
        what=row["name"],
        sentence=explain(record.event) if record else f"{why[0].upper()}{why[1:]}.",
        since=moment(since_us, now_us),
        instead=lanes.instead(models),
        href=place_href(record) if record else "",
        label=f"event {record.seq}" if record else "",
        probe=None if until_us is None else coming(until_us, now_us),
        then=_then(breaker, lost=lost),
    )


def _then(breaker: Breaker, *, lost: bool) -> str:
    if breaker.state == "half-open":
        return "it is being tried now, with prompts whose answers are known"
    if lost or (breaker.state == "open" and breaker.held):
        return "when it answers again, or when somebody has it tried"
    return ""


def _lane_out(row: Mapping[str, Any], record: Recorded | None, lanes: Lanes, now_us: int) -> Outage:
    why = reason(row["out_reason"] or "")
    return Outage(
        what=f"{lane_name(row['lane'])} lane, {row['model']}",
        sentence=explain(record.event) if record else f"{why[0].upper()}{why[1:]}.",
        since=moment(row["since_us"], now_us),
        instead=lanes.instead([row["model"]]),
        href=place_href(record) if record else "",
        label=f"event {record.seq}" if record else "",
    )


def _still_moved(state: RequestState, now_us: int) -> Outage:
    mark = state.degraded
    assert mark is not None
    return Outage(
        what="Moved requests",
        sentence=degraded_sentence(state),
        since=moment(mark.since_us, now_us),
        instead=(Instead(f"{lane_name(mark.lane)} lane · {mark.model}"),),
        href=f"/requests/{state.id}#v{mark.version}",
        label="request",
    )
