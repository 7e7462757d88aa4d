"""The first page: what is in, what is out, who works on what, and what was asked last."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from core.breaker import Breaker
from core.explain import reason, rule_words
from core.machine import SMALLER
from core.state import RequestState
from core.words import ALL_STATES, State
from store.reads import Reader
from web.dashboard.bars import Bars, device_bars, host_bars
from web.dashboard.outage import Banner, Lanes, banner
from web.dashboard.wording import (
    NONE,
    Chip,
    Moment,
    ago,
    coming,
    lane_name,
    model_words,
    moment,
    short,
    size,
    state_chip,
)
from web.machineviews import breaker_of_row, device_view, host_view, is_upstream, lane_view, runner_view

ROWS: Final = 25
_MAY_BE_MOVED: Final = ("rerouted-cpu", "checkpointed", "admitted")
_MOST_MOVED: Final = 100
_IN: Final = Chip("check", "serving", "good")
_OUT: Final = Chip("warn", "out", "bad")
_LOADING: Final = Chip("clock", "loading", "wait", "It takes requests, and begins with them when its model is loaded.")
_STARTING: Final = Chip("clock", "starting", "wait", "It takes requests, and begins with them when its worker is up.")
_ASLEEP: Final = Chip("pause", "serving on demand", "good", "Its model is loaded when a request comes.")
_UP: Final = frozenset({"idle", "busy", "stopping"})
"""States of a worker whose model is loaded."""
_RUNNER_TONES: Final = {"busy": "run", "idle": "good", "starting": "wait", "loading": "wait", "stopping": "off"}


class DeviceCard(msgspec.Struct, frozen=True):
    """A device. `age` is that of its latest reading."""

    id: str
    name: str
    simulated: bool
    chip: Chip
    why: str
    epoch: int
    bars: Bars
    age: str
    read: Moment | None
    breaker: "BreakerCard | None" = None
    upstream: bool = False
    """A server of others: it has no memory that could be looked at."""


class BreakerCard(msgspec.Struct, frozen=True):
    """A device's breaker. `may_try` while it is open: then somebody may have the device tried at once."""

    chip: Chip
    why: str
    since: Moment | None
    probe: Moment | None
    held: bool
    may_try: bool
    faults: int


class LaneRow(msgspec.Struct, frozen=True):
    """A lane for one model. `since`: when the worker that is loading began."""

    lane: str
    model: str
    chip: Chip
    since: Moment | None
    why: str
    running: int
    waiting: int
    limit: int
    oldest: str
    context: int
    engine: str
    device: str
    simulated: bool


class RunnerRow(msgspec.Struct, frozen=True):
    """A runner process. `request` is the id of what it works on, or empty."""

    id: str
    chip: Chip
    lane: str
    model: str
    engine: str
    pid: int
    memory: str
    beat: str
    request: str
    request_short: str


class RequestRow(msgspec.Struct, frozen=True):
    """A request in the list. `degraded` says why it is not served as it asked, empty when it is."""

    id: str
    short: str
    chip: Chip
    lane: str
    model: str
    done: int
    of: int
    degraded: str
    created: Moment


class StateBox(msgspec.Struct, frozen=True):
    """How many requests are in a state; the link shows only those, or all again."""

    chip: Chip
    count: int
    href: str
    current: bool


class Overview(msgspec.Struct, frozen=True):
    """Everything on the page but the form."""

    banner: Banner | None
    draining: bool
    devices: tuple[DeviceCard, ...]
    lanes: tuple[LaneRow, ...]
    runners: tuple[RunnerRow, ...]
    boxes: tuple[StateBox, ...]
    requests: tuple[RequestRow, ...]
    filtered: str
    older: str | None
    models: tuple[str, ...]
    longest: int
    """Tokens that the lane with the longest context holds."""


async def overview(
    reader: Reader,
    limits: Mapping[str, int],
    now_us: int,
    *,
    served: Sequence[str] = (),
    fallback: Mapping[str, str] | None = None,
    state: State | None = None,
    cursor: str | None = None,
) -> Overview:
    """The page. `limits` are how many new requests may wait in each lane, `served` the models in the settings' order.

    `fallback` names the smaller model that serves instead of another where a request allows it. Raises `Malformed` for
    a foreign cursor.
    """
    device_rows, lane_rows, runner_rows = await reader.devices(), await reader.lanes(), await reader.runners()
    page = await reader.requests({"state": state} if state else {}, cursor, ROWS)
    moved = [one for name in _MAY_BE_MOVED for one in (await reader.requests({"state": name}, None, _MOST_MOVED)).items]
    counts = await reader.counts()
    simulated = {row["id"] for row in device_rows if row["simulated"]}
    devices = [_device(row, await _promised(reader, row["id"], runner_rows), now_us) for row in device_rows]
    host = await reader.reading("host")
    host_bar = host_bars(host[1] if host else None)
    devices.append(_card(host_view(host, now_us=now_us), host_bar, host[0] if host else None, now_us))
    lanes = Lanes(lane_rows, limits, await reader.newcomers(now_us), fallback or {})
    return Overview(
        banner=await banner(reader, device_rows, lanes, moved, now_us),
        draining=await reader.flag("draining") == "1",
        devices=tuple(devices),
        lanes=tuple(_lane(row, limits, simulated, runner_rows, now_us) for row in lane_rows),
        runners=tuple(_runner(row, now_us) for row in runner_rows),
        boxes=tuple(_box(name, counts.get(name, 0), state) for name in ALL_STATES),
        requests=tuple(request_row(one, now_us) for one in page.items),
        filtered=state or "",
        older=_address(state, page.next) if page.next else None,
        longest=max((row["context"] for row in lane_rows), default=1),
        models=tuple(sorted({row["model"] for row in lane_rows}, key=lambda one: (*served, one).index(one))),
    )


async def _promised(reader: Reader, device: str, runners: Sequence[Mapping[str, Any]]) -> list[tuple[str, int | None]]:
    """What each runner on a device said it holds when its model was loaded; None while it has not said."""
    found: list[tuple[str, int | None]] = []
    for row in runners:
        if row["device"] == device:
            loaded = await reader.journal(stream=f"runner-{row['id']}", type_="RunnerLoaded", limit=1, newest=True)
            found.append((row["id"], getattr(loaded[0].event, "bytes_held", None) if loaded else None))
    return found


def _device(row: Mapping[str, Any], promised: Sequence[tuple[str, int | None]], now_us: int) -> DeviceCard:
    view, upstream = device_view(row, now_us=now_us), is_upstream(row["id"])
    bars = Bars((), (), "") if upstream else device_bars(view["total_bytes"], view["reading"], promised)
    card = _card(view, bars, row["read_us"], now_us)
    return msgspec.structs.replace(card, breaker=_breaker(row, now_us), upstream=upstream)


_BREAKER_CHIPS: Final = {
    "closed": Chip("check", "breaker closed", "good", "Work begins on the device."),
    "half-open": Chip("clock", "breaker half-open", "move", "The device is being tried; work begins after that."),
    "open": Chip("warn", "breaker open", "bad", "Nothing begins on the device for now."),
}


def _breaker(row: Mapping[str, Any], now_us: int) -> BreakerCard:
    found = breaker_of_row(row)
    until_us = found.until_us()
    return BreakerCard(
        chip=_BREAKER_CHIPS[found.state],
        why="" if found.state == "closed" else breaker_why(found),
        since=moment(found.since_us, now_us) if found.since_us else None,
        probe=None if until_us is None else coming(until_us, now_us),
        held=found.state == "open" and found.held,
        may_try=found.state == "open",
        faults=len(found.faults_us),
    )


def breaker_why(found: Breaker) -> str:
    """Why it is not closed, as one sentence."""
    why, rule = reason(found.reason or "breaker-open"), rule_words(found.rule)
    return f"{why[0].upper()}{why[1:]}" + (f"; {rule}." if rule and rule != why else ".")


def _card(view: Mapping[str, Any], bars: Bars, read_us: int | None, now_us: int) -> DeviceCard:
    return DeviceCard(
        id=view["id"],
        name=view["name"],
        simulated=view["simulated"],
        chip=Chip("check", "working", "good") if view["state"] == "ok" else Chip("warn", view["state"], "bad"),
        why=view["reason"] or "",
        epoch=view["epoch"],
        bars=bars,
        age=ago(view["reading_age_s"]),
        read=None if read_us is None else moment(read_us, now_us),
    )


def lane_chip(row: Mapping[str, Any], runners: Sequence[Mapping[str, Any]], now_us: int) -> tuple[Chip, Moment | None]:
    """How a lane for a model stands, by its worker too, and since when that one loads. Rows are of the reader."""
    if not row["serving"]:
        return _OUT, None
    own = [one for one in runners if (one["lane"], one["model"]) == (row["lane"], row["model"])]
    on_their_way = [one["started_us"] for one in own if one["state"] in {"starting", "loading"}]
    if on_their_way and not any(one["state"] in _UP for one in own):
        return _LOADING, moment(min(on_their_way), now_us)
    if any(one["state"] in _UP for one in own):
        return _IN, None
    return (_STARTING if row["resident"] else _ASLEEP), None


def _lane(
    row: Mapping[str, Any],
    limits: Mapping[str, int],
    simulated: set[str],
    runners: Sequence[Mapping[str, Any]],
    now_us: int,
) -> LaneRow:
    view = lane_view(row, limit=limits[row["lane"]], now_us=now_us)
    chip, since = lane_chip(row, runners, now_us)
    return LaneRow(
        lane=lane_name(view["lane"]),
        model=view["model"],
        chip=chip,
        since=since,
        why=view["out_reason"] or "",
        running=view["running"],
        waiting=view["waiting"],
        limit=view["limit"],
        oldest=NONE if view["oldest_age_s"] is None else ago(view["oldest_age_s"]),
        context=view["context"],
        engine=view["engine"],
        device=view["device"],
        simulated=view["device"] in simulated,
    )


def _runner(row: Mapping[str, Any], now_us: int) -> RunnerRow:
    view = runner_view(row, now_us=now_us)
    held = view["request_id"] or ""
    return RunnerRow(
        id=view["id"],
        chip=Chip("dot", view["state"], _RUNNER_TONES.get(view["state"], "off")),
        lane=lane_name(view["lane"]),
        model=view["model"],
        engine=view["engine"],
        pid=view["pid"],
        memory=size(view["rss_bytes"]),
        beat=ago(view["heartbeat_age_s"]),
        request=held,
        request_short=short(held),
    )


def request_row(state: RequestState, now_us: int) -> RequestRow:
    """A request as a row of the list."""
    return RequestRow(
        id=state.id,
        short=short(state.id),
        chip=state_chip(state.state, state.failovers),
        lane=lane_name(state.lane),
        model=model_words(state),
        done=state.units,
        of=state.max_units,
        degraded=_degraded(state),
        created=moment(state.created_us, now_us),
    )


def _degraded(state: RequestState) -> str:
    mark = state.degraded
    if mark is None:
        return ""
    if mark.rule == SMALLER:
        return "other model"
    return f"other model; {reason(mark.reason)}" if state.asked_model else reason(mark.reason)


def _box(name: State, count: int, current: State | None) -> StateBox:
    return StateBox(state_chip(name), count, "/" if name == current else f"/?state={name}#requests", name == current)


def _address(state: State | None, cursor: str) -> str:
    query = {"state": state} if state else {}
    return "/?" + urlencode(query | {"cursor": cursor}) + "#requests"
