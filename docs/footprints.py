"""How well do the memory formulas do on public logs? `python docs/footprints.py` writes the tables of footprints.md.

With --check nothing is written; exit status 1 when the page is not current. With --cases every comparison is printed.

A log tells a model's numbers, the settings, and the buffers that the engine printed. Here each log becomes a
`ModelShape` and a `Setting`, by rules that look at what the log says of its inputs and never at what it printed:

1. An engine's date decides its era; a bare "2026" or "2025-26" is taken as the costlier, older law.
2. Flash attention that is not told is off before 2025 and on since, as the engines' defaults are.
3. Sizes of the embedding and of the output are not in the logs; they follow from the quantisation's name, by the
   recipe that the usual quantiser uses.
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from core.memory import Era, Footprint, ModelShape, Setting, footprint  # noqa: E402 - started as a program, from anywhere
from core.memory.architectures import ENCODERS, FUSED_QKV, TIED, WINDOW_EVERY, every  # noqa: E402 - the same

CASES = ROOT / "tests" / "data" / "memory_cases.json"
EXCLUDED = ROOT / "tests" / "data" / "memory_excluded.json"
PAGE = ROOT / "docs" / "footprints.md"
BEGIN, END = "<!-- tables: python docs/footprints.py -->", "<!-- end of tables -->"
MIB = 1 << 20
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
BITS = {"F32": 3200, "F16": 1600, "BF16": 1600, "Q8_0": 850, "Q6_K": 656.25, "Q5_K": 550, "Q4_K": 450, "Q4_0": 450}
BITS |= {"Q5_0": 550, "Q3_K": 343.75, "Q2_K": 262.5, "MXFP4": 425, "IQ2_K": 237.5, "IQ3_K": 343.75, "IQ4_K": 450}
BITS |= {"IQ4_XS": 425, "IQ3_XXS": 306.25}
"""Hundredths of a bit per weight, by the start of a quantisation's name."""
QUANTITIES = ("kv", "recurrent", "compute", "host_compute", "weights", "device_weights")


class Compared(NamedTuple):
    """One printed figure and ours, in bytes; `ours` is None when unknown."""

    case: str
    quantity: str
    family: str
    printed: float
    ours: int | None

    @property
    def error(self) -> float:
        """Relative, negative when ours is too small."""
        assert self.ours is not None
        return (self.ours - self.printed) / self.printed


# ---- a log becomes a shape ----


def shape_of_case(case: dict[str, Any]) -> ModelShape:
    """The model of a log."""
    h = case["hparams"]
    architecture = re.split(r"[ (]", h["arch"])[0].removesuffix("-like")
    layers = h["n_layer"]
    text = " ".join((h["arch"], h.get("note", ""), case["model"]))
    sliding: tuple[bool, ...] = ()
    if h.get("n_swa"):
        found = re.search(r"(\d+) full\S* \+ (\d+) sliding", text)
        sliding = every(layers, layers // int(found[1])) if found else every(layers, WINDOW_EVERY.get(architecture, 1))
    recurrent: tuple[bool, ...] = ()
    if found := re.search(r"(\d+) recurrent|\+ (\d+) gated-delta", text):
        recurrent = every(layers, layers // (layers - int(found[1] or found[2])))
    quant = (case.get("quant") or "").upper()
    tied = bool(h.get("tied")) or architecture in TIED
    encoder = architecture in ENCODERS
    embedding = _elements(h, _embedding_bits(quant, tied=tied))
    if encoder and embedding is not None:
        embedding += 512 * h["n_embd"] * 2
    output = embedding if tied else None if encoder else _elements(h, _output_bits(quant))
    total = case.get("file_mib")
    experts = h.get("n_expert") or 0
    expert_inner = h.get("n_ff_exp") or (None if h.get("n_lora_kv") else h.get("n_ff"))
    return ModelShape(
        architecture=architecture,
        layers=layers,
        width=h.get("n_embd"),
        heads=_per_layer(h.get("n_head"), layers),
        kv_heads=_kv_heads(h, layers, recurrent),
        key_dims=_dims(case, "k", sliding),
        value_dims=_dims(case, "v", sliding),
        feed_forward=_per_layer(h.get("n_ff"), layers),
        vocabulary=h.get("n_vocab"),
        window=h.get("n_swa") if sliding else None,
        sliding=sliding,
        kv_lora_rank=h.get("n_lora_kv"),
        rope_dims=h.get("n_rot"),
        conv_width=h.get("ssm_d_conv"),
        inner_width=h.get("ssm_d_inner"),
        state_width=h.get("ssm_d_state"),
        state_groups=h.get("ssm_n_group") or 0,
        recurrent=recurrent,
        experts=experts,
        experts_used=h.get("n_expert_used") or 0,
        expert_feed_forward=expert_inner if experts else None,
        dense_layers=h.get("n_layer_dense_lead") or 0,
        fused_qkv=architecture in FUSED_QKV,
        causal=not encoder,
        tied=tied,
        weights_bytes=None if total is None else round(total * MIB),
        embedding_bytes=embedding,
        output_bytes=output,
        expert_bytes=_expert_bytes(h, total, expert_inner) if experts else None,
        largest_tensor=_largest_tensor(h, quant, _per_layer(h.get("n_ff"), layers)),
        largest_expert=_largest_expert(h, quant, expert_inner) if experts else None,
    )


def _per_layer(value: Any, layers: int) -> tuple[int, ...] | None:
    if isinstance(value, str):
        value = json.loads(value)
    return None if value is None else tuple(value) if isinstance(value, list) else (value,) * layers


def _kv_heads(h: dict[str, Any], layers: int, recurrent: tuple[bool, ...]) -> tuple[int, ...] | None:
    held = _per_layer(h.get("n_head_kv") if h.get("n_head_kv") is not None else 1, layers)
    assert held is not None
    return tuple(0 if recurrent and recurrent[index] else count for index, count in enumerate(held))


def _dims(case: dict[str, Any], side: str, sliding: tuple[bool, ...]) -> tuple[int, ...] | None:
    """Head lengths; where a log does not tell them, the row widths that were worked out for it."""
    h = case["hparams"]
    if h.get(f"head_dim_{side}") is not None:
        return (h[f"head_dim_{side}"],) * h["n_layer"]
    rows = {group["kind"]: group[f"{side}_row"] for group in case["verification"].get("kv_groups", [])}
    if not rows:
        return None
    return tuple(rows["swa" if slides else "full"] for slides in sliding)


def _elements(h: dict[str, Any], bits: float | None) -> int | None:
    if bits is None or not h.get("n_vocab") or not h.get("n_embd"):
        return None
    return int(h["n_vocab"] * h["n_embd"] * bits / 800)


def _named_bits(quant: str) -> float | None:
    return next((bits for name, bits in BITS.items() if quant.startswith(name)), None)


def _output_bits(quant: str) -> float | None:
    """The usual recipe keeps the output in q6_K; the fork's own types come with q8_0."""
    if not quant or quant.startswith("UNKNOWN"):
        return None
    if re.match(r"IQ\d_K", quant):
        return BITS["Q8_0"]
    whole = ("F32", "F16", "BF16", "Q8_0", "MXFP4")
    return {"MXFP4": BITS["Q8_0"]}.get(quant, _named_bits(quant)) if quant.startswith(whole) else BITS["Q6_K"]


def _embedding_bits(quant: str, *, tied: bool) -> float | None:
    """A tied embedding is kept as an output would be."""
    if tied or quant.startswith(("IQ", "MXFP4", "UNKNOWN")):
        return _output_bits(quant)
    return _named_bits(quant)


def _expert_bytes(h: dict[str, Any], total: float | None, inner: int | None) -> tuple[int, ...] | None:
    """The experts' share of a layer, by numbers of weights; only how weights are divided depends on it."""
    if total is None or inner is None or not h.get("n_embd"):
        return None
    attention = h["n_embd"] * (2 * h["n_head"] * h["head_dim_k"] + h["n_head_kv"] * (h["head_dim_k"] + h["head_dim_v"]))
    experts = 3 * inner * h["n_embd"] * h["n_expert"]
    return (int(total * MIB * experts / (experts + attention)) // h["n_layer"] * 9 // 10,) * h["n_layer"]


def _largest_tensor(h: dict[str, Any], quant: str, inner: tuple[int, ...] | None) -> int | None:
    bits = BITS["Q6_K"] if quant.startswith("Q4_K") else _named_bits(quant)
    return None if bits is None or not inner or not h.get("n_embd") else int(max(inner) * h["n_embd"] * bits / 800)


def _largest_expert(h: dict[str, Any], quant: str, inner: int | None) -> int | None:
    """Mixed recipes keep half of the down projections in q6_K."""
    bits = BITS["Q6_K"] if quant.startswith("Q4_K") else _named_bits(quant)
    if bits is None or inner is None or not h.get("n_embd"):
        return None
    return int(inner * h["n_embd"] * h["n_expert"] * bits / 800)


# ---- a log becomes a setting ----


def era_of(hint: str) -> tuple[Era, bool]:
    """The era that an engine's description names, and whether it copies host weights to the device."""
    text = hint.lower()
    month = max((index for index, name in enumerate(MONTHS) if re.search(rf"\b{name}", text)), default=None)
    build = re.search(r"build (\d{5,})", text)
    late = (build is not None and int(build[1]) >= 10000) or ("2026" in text and month is not None and month >= 5)
    rules = (
        ("mainline" in text, Era.LLAMACPP_2025),
        ("ik_llama" in text, Era.IK_LLAMA),
        ("ggml v3" in text or "ggjt" in text, Era.GGML_2023),
        ("2023" in text and (month is None or month <= 8), Era.LLAMACPP_2023_SEP),
        ("2023" in text, Era.LLAMACPP_2023),
        ("2024" in text, Era.LLAMACPP_2024),
        (late, Era.LLAMACPP_2026),
    )
    era = next((era for holds, era in rules if holds), Era.LLAMACPP_2025)
    early = era is Era.LLAMACPP_2024 and "2024-25" not in text and month is not None and month <= 2
    return era, not early


def setting_of_case(case: dict[str, Any]) -> Setting:
    """The settings of a log."""
    s = case["settings"]
    era, streams = era_of(case["engine_version_hint"])
    layers = case["hparams"]["n_layer"]
    offloaded = s.get("offloaded")
    count = s.get("n_gpu_layers")
    if count is None and isinstance(offloaded, list):
        count = offloaded[0]
    printed = case["observed"].get("compute_mib", {}) | case["observed"].get("model_buffer_mib", {})
    on_host = printed and all(re.match(r"(CPU|AMX)", name) for name in printed)
    flash = s.get("flash_attn")
    quantised = s.get("type_v", "f16") not in {"f16", "f32", "bf16"}
    default = quantised or era in {Era.LLAMACPP_2025, Era.LLAMACPP_2026}
    devices = [name for name in printed if re.match(r"(CUDA|ROCm|Vulkan|CANN)\d", name)]
    gpus = s.get("gpus") or len(devices) or 1
    types = _cache_types(case)
    return Setting(
        context=s.get("n_ctx") or 512,
        era=era,
        n_batch=s.get("n_batch") or 512,
        n_ubatch=s.get("n_ubatch") or s.get("n_batch") or 512,
        cache_k=types[0],
        cache_v=types[1],
        slots=s.get("n_seq_max") or 1,
        unified=bool(s.get("kv_unified", False)),
        flash_attention=default if flash is None else flash == "auto" or bool(flash),
        n_gpu_layers=(count if count is not None else layers + 1) if not on_host else 0,
        gpus=0 if on_host else gpus,
        backend=_backend(case),
        rows_split="CUDA_Split" in printed,
        experts_on_host=_experts_on_host(case),
        streams=streams,
        swa_full=bool(s.get("swa_full", False)),
        mla=_mla(case),
        repack="AMX" in printed,
    )


def _cache_types(case: dict[str, Any]) -> tuple[str, str]:
    s = case["settings"]
    if "type_k" in s:
        return s["type_k"], s["type_v"]
    found = re.findall(r"(?:K|V|c\^KV) \((\w+)\)", case["observed"].get("kv_detail", ""))
    return (found[0], found[-1]) if found else ("f16", "f16")


def _backend(case: dict[str, Any]) -> str:
    text = case["engine_version_hint"].lower()
    known = ("cann", "hexagon", "vulkan", "metal", "opencl", "rocm")
    return next((name for name in known if name in text), "cuda")


def _experts_on_host(case: dict[str, Any]) -> bool:
    """Told, or seen: a model with experts whose layers are all offloaded leaves gigabytes in CPU buffers."""
    s, buffers = case["settings"], case["observed"].get("model_buffer_mib", {})
    if "override_tensor" in s or "n_cpu_moe" in s:
        return True
    whole = sum(buffers.values())
    host = sum(size for name, size in buffers.items() if name.startswith("CPU"))
    several = any(not name.startswith(("CPU", "AMX")) for name in buffers)
    offloaded = s.get("offloaded")
    full = isinstance(offloaded, list) and offloaded[0] == offloaded[1]
    return bool(case["hparams"].get("n_expert")) and several and full and host > whole / 4


def _mla(case: dict[str, Any]) -> str | None:
    """The fork's own switch; else the form that the head counts of the log describe."""
    if case["settings"].get("mla_attn"):
        return "latent"
    h = case["hparams"]
    return "latent+v" if h.get("n_lora_kv") and h.get("n_head_kv") == 1 else None


# ---- what was printed, and ours ----


def compare(case: dict[str, Any]) -> list[Compared]:
    """Every printed figure beside ours."""
    shape, setting = shape_of_case(case), setting_of_case(case)
    found: Footprint = footprint(shape, setting)
    sides = (found.steady.device, found.steady.host)
    family = str(setting.era)
    rows = []

    def add(quantity: str, printed: float | None, ours: int | None) -> None:
        if printed is not None:
            rows.append(Compared(case["id"], quantity, family, printed * MIB, ours))

    seen = case["observed"]
    # These logs print the part that is on the device.
    cached = sides[:1] if "vram_context_mib" in seen else sides
    add("kv", seen.get("kv_mib"), _sum(*(side.kv.bytes for side in cached)))
    add("recurrent", seen.get("recurrent_state_mib"), _sum(*(side.recurrent.bytes for side in sides)))
    device, host = printed_compute(seen.get("compute_mib", {}))
    if setting.gpus == 0 or setting.n_gpu_layers == 0:
        # On the host alone, or the host's graph of 2023, which has no name of its own.
        device, host = (device, host) if setting.gpus and not setting.scratch else (None, host or device)
    add("compute", device, sides[0].compute.bytes)
    add("compute" if device is None else "host_compute", host, sides[1].compute.bytes)
    if case.get("file_mib") is not None and seen.get("model_buffer_mib"):
        buffers = seen["model_buffer_mib"]
        add("weights", sum(buffers.values()), _sum(*(side.weights.bytes for side in sides)))
        on_device = sum(size for name, size in buffers.items() if not re.match(r"CPU|AMX|.*_Host", name))
        # Which experts were left on the host is not told.
        add("device_weights", None if setting.experts_on_host else on_device or None, sides[0].weights.bytes)
    return rows


def printed_compute(buffers: dict[str, float]) -> tuple[float | None, float | None]:
    """The largest device buffer and the host's. `graph_alloc_total` is the host's of 2023."""
    devices = [size for name, size in buffers.items() if not re.match(r"CPU|.*_Host|graph_alloc|failed_single", name)]
    hosts = [size for name, size in buffers.items() if re.match(r"CPU|.*_Host", name)]
    if not devices and not hosts and "graph_alloc_total" in buffers:
        hosts = [buffers["graph_alloc_total"]]
    return max(devices, default=None), max(hosts, default=None)


def _sum(*parts: int | None) -> int | None:
    return None if None in parts else sum(part for part in parts if part is not None)


def cases() -> list[dict[str, Any]]:
    """All logs."""
    found: list[dict[str, Any]] = json.loads(CASES.read_text())["cases"]
    return found


def excluded() -> dict[str, dict[str, str]]:
    """By case and quantity: why a printed figure is no test of the formula."""
    found: dict[str, dict[str, str]] = json.loads(EXCLUDED.read_text())
    return found


def comparisons() -> list[Compared]:
    """All that count."""
    left_out = excluded()
    return [row for case in cases() for row in compare(case) if row.quantity not in left_out.get(row.case, {})]


# ---- the page ----


def tables() -> str:
    """The generated part of the page."""
    rows = comparisons()
    lines = [
        "| figure | engine generation | n | median error | worst under | worst over |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for quantity in QUANTITIES:
        families = sorted({row.family for row in rows if row.quantity == quantity})
        for family in [*families, "all"]:
            errors = [row.error for row in rows if row.quantity == quantity and family in {row.family, "all"}]
            median = statistics.median(abs(error) for error in errors)
            cells = (_percent(median), _percent(min(0.0, *errors)), _percent(max(0.0, *errors)))
            lines.append(f"| {quantity} | {family} | {len(errors)} | " + " | ".join(cells) + " |")
    lines += ["", "Left out, and why:", "", "| log | figure | reason |", "|---|---|---|"]
    for case, reasons in sorted(excluded().items()):
        lines += [f"| {case} | {quantity} | {reason} |" for quantity, reason in sorted(reasons.items())]
    return "\n".join(lines)


def _percent(error: float) -> str:
    return f"{100 * error:.2f} %".replace("-0.00", "0.00")


def page(text: str) -> str:
    """The page with current tables."""
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def main() -> int:
    """Write the page, or check it."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--check", action="store_true", help="write nothing; exit status 1 when the page is old")
    options.add_argument("--cases", action="store_true", help="print every comparison instead")
    chosen = options.parse_args()
    if chosen.cases:
        left_out = excluded()
        for row in (row for case in cases() for row in compare(case)):
            ours = "unknown" if row.ours is None else f"{row.ours / MIB:10.2f} {100 * row.error:+8.2f} %"
            mark = "left out" if row.quantity in left_out.get(row.case, {}) else ""
            print(f"{row.case:36} {row.quantity:12} {row.family:18} {row.printed / MIB:10.2f} {ours} {mark}")
        return 0
    text = PAGE.read_text()
    if chosen.check:
        return 0 if page(text) == text else 1
    PAGE.write_text(page(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
