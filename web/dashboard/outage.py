"""What is out, since when, why, and what answers instead: the banner before everything else.

1. A device that is not `ok` is an outage, and so is a lane that does not serve.
2. A lane that is out because its device is, is told once, by the device.
3. A machine that never had an accelerator is not degraded by that; it is what it is.
4. Active requests that were moved by a fault keep the banner up until they have ended.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from core.events import Recorded
from core.explain import explain, moved, reason
from core.state import RequestState
from store.reads import Reader
from web.dashboard.timeline import journal_href
from web.dashboard.wording import Moment, lane_name, moment

_CALM: Final = frozenset({"no-device", "no-gpu"})
_NOT_FAULTS: Final = _CALM | {"gpu-queue-full", "too-long-for-gpu"}


class Outage(msgspec.Struct, frozen=True):
    """One thing that is out. `href` leads to the event, if there is one."""

    what: str
    sentence: str
    since: Moment
    instead: str
    href: str
    label: str


class Banner(msgspec.Struct, frozen=True):
    """What is out, and how many active requests are served less well for it. `spoken` is the one line read aloud."""

    outages: tuple[Outage, ...]
    degraded: int
    spoken: str


async def banner(
    reader: Reader,
    devices: Sequence[Mapping[str, Any]],
    lanes: Sequence[Mapping[str, Any]],
    requests: Sequence[RequestState],
    now_us: int,
) -> Banner | None:
    """The banner, or None when all is in. `devices` and `lanes` are rows of the reader."""
    outages = []
    for row in devices:
        if row["state"] != "ok":
            record = await _last(reader, f"device-{row['id']}", "DeviceLost")
            outages.append(_device_out(row, record, lanes, now_us))
    lost = {row["id"] for row in devices if row["state"] != "ok"}
    for row in lanes:
        if not row["serving"] and row["device"] not in lost and row["out_reason"] not in _CALM:
            record = await _last(reader, f"lane-{row['lane']}", "LaneOut")
            outages.append(_lane_out(row, record, lanes, now_us))
    never_had = {row["model"] for row in lanes if row["out_reason"] in _CALM}
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


def _device_out(
    row: Mapping[str, Any], record: Recorded | None, lanes: Sequence[Mapping[str, Any]], now_us: int
) -> Outage:
    models = sorted({lane["model"] for lane in lanes if lane["device"] == row["id"]})
    why = reason(row["reason"] or "device-lost")
    return Outage(
        what=row["name"],
        sentence=explain(record.event) if record else f"{why[0].upper()}{why[1:]}.",
        since=moment(row["since_us"], now_us),
        instead=_instead(models, lanes),
        href=journal_href(record) if record else "",
        label=f"event {record.seq}" if record else "",
    )


def _lane_out(
    row: Mapping[str, Any], record: Recorded | None, lanes: Sequence[Mapping[str, Any]], now_us: int
) -> Outage:
    why = reason(row["out_reason"] or "")
    return Outage(
        what=f"{lane_name(row['lane'])} lane, {row['model']}",
        sentence=explain(record.event) if record else f"{why[0].upper()}{why[1:]}.",
        since=moment(row["since_us"], now_us),
        instead=_instead([row["model"]], lanes),
        href=journal_href(record) if record else "",
        label=f"event {record.seq}" if record else "",
    )


def _still_moved(state: RequestState, now_us: int) -> Outage:
    mark = state.degraded
    assert mark is not None
    source = next((m.from_lane for m in state.failovers if m.version == mark.version), None)
    return Outage(
        what="Moved requests",
        sentence=moved(source, mark.lane, mark.reason, mark.rule),
        since=moment(mark.since_us, now_us),
        instead=f"{lane_name(mark.lane)} lane · {mark.model}",
        href=f"/requests/{state.id}#v{mark.version}",
        label="request",
    )


def _instead(models: Sequence[str], lanes: Sequence[Mapping[str, Any]]) -> str:
    serving = [lane for lane in lanes if lane["serving"] and lane["model"] in models]
    return ", ".join(f"{lane_name(lane['lane'])} lane · {lane['model']}" for lane in serving) or "nothing"
