"""The pages of models: the catalog, and one model with its chart of footprints and the record of its pair.

Made of what the API answers (`web.api.models`), so that page and twin cannot differ.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from core.telling import engine_words, memory_notes, need_words
from web.dashboard.wording import NONE, Chip, Moment, lane_name, moment, size

WIDTH: Final = 1000
HEIGHT: Final = 100
"""The chart in its own units; the page stretches it."""
_GAP: Final = 0.3
_WARM: Final = Chip("check", "loaded", "good", "warm")
_COLD: Final = Chip("pause", "not loaded", "wait", "cold")
_OUT: Final = Chip("warn", "out", "bad")
_PAIRS: Final[Mapping[str, Chip]] = {
    "identical": Chip("check", "identical", "good"),
    "faithful": Chip("check", "faithful", "run"),
    "none": Chip("ban", "not alike", "off"),
}


class Part(msgspec.Struct, frozen=True):
    """A kind of memory, and what it is."""

    name: str
    note: str


_PARTS: Final = (
    ("weights", Part("Weights", "the model itself")),
    ("kv", Part("KV cache", "what it keeps of the text so far; it grows with the context")),
    ("recurrent", Part("State", "what it keeps of the text in a fixed size, where it is of such a kind")),
    ("compute", Part("Compute", "room to compute in")),
    ("pool", Part("Pool", "what its engine takes beside that while it computes")),
    ("driver", Part("Driver", "what the driver of a card takes for each process")),
)


class ModelRow(msgspec.Struct, frozen=True):
    """A model in the list."""

    id: str
    name: str
    engine: str
    chip: Chip
    serving: str
    quantization: str
    parameters: str
    context: str
    size: str
    problem: str


class Fact(msgspec.Struct, frozen=True):
    """A name and a value."""

    name: str
    value: str
    code: bool = False


class LaneRow(msgspec.Struct, frozen=True):
    """The model on one lane. `need`: what is counted for its worker there; empty where nothing is."""

    lane: str
    chip: Chip
    why: str
    device: str
    engine: str
    context: int
    need: str


class Column(msgspec.Struct, frozen=True):
    """A column of the chart; `y` counts from the top."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    label: str


class FootprintRow(msgspec.Struct, frozen=True):
    """A row of the table below the chart; sizes are in words."""

    context: str
    tick: str
    """The same, as short as it stands below the chart."""
    served: bool
    parts: tuple[str, ...]
    device: str
    host: str


class LearnedRow(msgspec.Struct, frozen=True):
    """What loads with one engine and setting were seen to take, beside the formula."""

    engine: str
    settings: str
    formula: str
    learned: str
    last: str
    loads: int
    off: str
    """How far what counts lies from the formula."""


class ProofRow(msgspec.Struct, frozen=True):
    """A recorded measurement."""

    chip: Chip
    at: Moment
    sentence: str
    href: str


class Permit(msgspec.Struct, frozen=True):
    """Whether a request with this `failover` setting goes on after text was shown."""

    failover: str
    goes_on: bool


class PairPart(msgspec.Struct, frozen=True):
    """How alike the model's two lanes are, what that means, and how to measure it. `chip` is None without two lanes."""

    chip: Chip | None
    means: str
    basis: str
    source: str
    target: str
    prove: str
    permits: tuple[Permit, ...]
    proofs: tuple[ProofRow, ...]


class ModelPage(msgspec.Struct, frozen=True):
    """One model."""

    id: str
    name: str
    chip: Chip
    problem: str
    facts: tuple[Fact, ...]
    lanes: tuple[LaneRow, ...]
    parts: tuple["Part", ...]
    columns: tuple[Column, ...]
    footprints: tuple[FootprintRow, ...]
    top: str
    unknown: str
    notes: tuple[str, ...]
    learned: tuple[LearnedRow, ...]
    pair: PairPart


def model_rows(views: Sequence[Mapping[str, Any]]) -> tuple[ModelRow, ...]:
    """The list, in the order of the API."""
    return tuple(
        ModelRow(
            id=view["id"],
            name=view["name"],
            engine=view["engine"],
            chip=_chip(view),
            serving=", ".join(lane_name(lane) for lane in view["serving"]) or NONE,
            quantization=view["quantization"] or NONE,
            parameters=_millions(view["parameters"]),
            context=_count(view["context_length"]),
            size=_file_size(view),
            problem=view["problem"] or "",
        )
        for view in views
    )


def _chip(view: Mapping[str, Any]) -> Chip:
    if view["problem"]:
        return Chip("warn", "cannot be used", "bad")
    if not view["served"]:
        return Chip("dot", "not served", "off")
    return _WARM if view["readiness"] == "warm" else _COLD


def _millions(count: int | None) -> str:
    return f"{count / 1e6:,.0f} M" if count else NONE


def _count(count: int | None) -> str:
    return f"{count:,}" if count else NONE


def _file_size(view: Mapping[str, Any]) -> str:
    held = (view["footprint"] or {}).get("file_bytes")
    return size(held) if held else NONE


def model_page(view: Mapping[str, Any], now_us: int) -> ModelPage:
    """The page, from what the API says of the model."""
    rows = view["footprints"]["rows"]
    top = max((row[key] or 0 for row in rows for key in ("device_bytes", "cpu_lane_bytes")), default=0)
    return ModelPage(
        id=view["id"],
        name=view["name"] or view["id"],
        chip=_chip(view),
        problem=view["problem"] or "",
        facts=_facts(view),
        lanes=tuple(_lane(row) for row in view["lanes"]),
        parts=tuple(part for _key, part in _PARTS),
        columns=_columns(rows, top),
        footprints=tuple(_footprint(row) for row in rows),
        top=size(top) if top else "",
        unknown=view["footprints"]["unknown"] or "",
        notes=memory_notes(view["footprints"]["worker_bytes"], simulated=view["footprints"]["simulated"]),
        learned=tuple(_learned(row) for row in view["learned"]),
        pair=_pair(view["pair"], now_us),
    )


def _facts(view: Mapping[str, Any]) -> tuple[Fact, ...]:
    return (
        Fact("File", view["file"] or NONE, code=True),
        Fact("Size", _file_size(view)),
        Fact("Engine", engine_words(view["engine"], view["engines"])),
        Fact("Architecture", view["architecture"] or NONE),
        Fact("Weights", view["quantization"] or NONE),
        Fact("Parameters", _millions(view["parameters"])),
        Fact("Context", _count(view["context_length"])),
        Fact("Vocabulary", _count(view["vocabulary"])),
        Fact("Chat template", "yes" if view["chat_template"] else "no"),
        Fact("Contract", view["contract"] or NONE, code=True),
    )


def _lane(row: Mapping[str, Any]) -> LaneRow:
    chip = _OUT if not row["serving"] else _WARM if row["readiness"] == "warm" else _COLD
    return LaneRow(
        lane=lane_name(row["lane"]),
        chip=chip,
        why=row["out_reason"] or "",
        device=row["device"],
        engine=row["engine"],
        context=row["context"],
        need=need_words(row["load_bytes"], row["token_bytes"], row["need_basis"]) or NONE,
    )


def _columns(rows: Sequence[Mapping[str, Any]], top: int) -> tuple[Column, ...]:
    """Two columns for each context, device then host, on one scale; what is unknown has none."""
    found, room = [], WIDTH / max(1, len(rows))
    width = room * (1 - _GAP) / 2
    for index, row in enumerate(rows):
        for place, (key, tone) in enumerate((("device_bytes", "device"), ("cpu_lane_bytes", "host"))):
            if row[key] is None or not top:
                continue
            height = HEIGHT * row[key] / top
            x = room * (index + _GAP / 2) + place * width
            label = f"{row['context']:,} tokens, {tone}: {size(row[key])}"
            found.append(Column(round(x, 1), round(HEIGHT - height, 1), round(width, 1), round(height, 1), tone, label))
    return tuple(found)


def _footprint(row: Mapping[str, Any]) -> FootprintRow:
    return FootprintRow(
        context=f"{row['context']:,}",
        tick=f"{row['context'] >> 10}k" if row["context"] % 1024 == 0 else f"{row['context']:,}",
        served=row["served"],
        parts=tuple(size(row[key]) for key, _name in _PARTS),
        device=size(row["device_bytes"]),
        host=size(row["cpu_lane_bytes"]),
    )


def _learned(row: Mapping[str, Any]) -> LearnedRow:
    formula, value = row["formula_bytes"], row["learned_bytes"]
    return LearnedRow(
        engine=row["engine"],
        settings=row["settings"],
        formula=size(formula),
        learned=size(value),
        last=size(row["last_bytes"]),
        loads=row["loads"],
        off=f"{(value - formula) / formula:+.1%}" if formula else NONE,
    )


def _pair(view: Mapping[str, Any], now_us: int) -> PairPart:
    proofs = tuple(_proof(one, now_us) for one in view["proofs"])
    if view["class"] is None:
        return PairPart(None, "", "", "", "", "", (), proofs)
    basis = "measured" if view["proof"] else "known without measuring" if view["class"] != "none" else "not measured"
    return PairPart(
        chip=_PAIRS[view["class"]],
        means=view["means"],
        basis=basis,
        source=view["source"],
        target=view["target"],
        prove=view["prove"],
        permits=tuple(Permit(name, goes_on) for name, goes_on in view["permits"].items()),
        proofs=proofs,
    )


def _proof(view: Mapping[str, Any], now_us: int) -> ProofRow:
    at_us = round(datetime.fromisoformat(view["at"]).timestamp() * 1e6)
    href = f"/events?type=EquivalenceProved&before={view['seq'] + 1}#e{view['seq']}"
    return ProofRow(_PAIRS[view["pair"]], moment(at_us, now_us), view["because"], href)
