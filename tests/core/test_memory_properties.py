"""What holds of every footprint: more of anything never costs less, and nothing is negative."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from core.memory import Era, Footprint, ModelShape, Setting, footprint, predict_table, shape_of
from core.memory.setting import CACHE_BLOCK

eras = st.sampled_from(list(Era))


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    layers = draw(st.integers(1, 12))
    heads = draw(st.sampled_from([1, 4, 32]))
    kind = draw(st.sampled_from(["llama", "gemma3", "qwen35", "deepseek2", "bert", "phi3", "mixtral-like", "gpt-oss"]))
    known = draw(st.booleans())
    numbers: dict[str, Any] = {"architecture": kind, "layers": layers, "width": 64 * heads}
    numbers |= {"heads": (heads,) * layers, "kv_heads": (max(1, heads // 4),) * layers}
    numbers |= {"key_dims": (64,) * layers, "value_dims": (64,) * layers, "feed_forward": (256 * heads,) * layers}
    numbers |= {"vocabulary": draw(st.integers(1, 300_000)), "tied": draw(st.booleans())}
    if kind in {"gemma3", "gpt-oss"}:
        numbers |= {"window": draw(st.integers(1, 2000)), "sliding": tuple(i % 3 > 0 for i in range(layers))}
    if kind == "qwen35":
        numbers |= {"recurrent": tuple(i % 4 < 3 for i in range(layers)), "conv_width": 4, "inner_width": 128}
        numbers |= {"state_width": draw(st.sampled_from([None, 16])), "state_groups": 2}
    if kind == "deepseek2":
        numbers |= {"kv_lora_rank": 32, "rope_dims": 8, "latent_file": draw(st.booleans())}
    if known:
        numbers |= {"weights_bytes": 10_000_000, "embedding_bytes": 1000, "output_bytes": 1000}
        numbers |= {"layer_bytes": (9_000_000 // layers,) * layers, "largest_tensor": 5000}
    return ModelShape(**numbers)


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    return Setting(
        context=draw(st.integers(1, 300_000)),
        era=draw(eras),
        n_batch=draw(st.integers(1, 4096)),
        n_ubatch=draw(st.integers(1, 4096)),
        cache_k=draw(st.sampled_from(sorted(CACHE_BLOCK))),
        cache_v=draw(st.sampled_from(sorted(CACHE_BLOCK))),
        slots=draw(st.integers(1, 9)),
        unified=draw(st.booleans()),
        flash_attention=draw(st.booleans()),
        n_gpu_layers=draw(st.sampled_from([0, 1, 2, 5, 13, 14, 15, 999_999])),
        gpus=draw(st.integers(0, 3)),
        backend=draw(st.sampled_from(["cuda", "metal", "vulkan", "cann"])),
        mmap=draw(st.booleans()),
        repack=draw(st.booleans()),
        streams=draw(st.booleans()),
    )


def figures(found: Footprint) -> dict[str, int | None]:
    return {
        f"{phase}.{side}.{part}": getattr(getattr(getattr(found, phase), side), part).bytes
        for phase in ("peak", "steady")
        for side in ("device", "host")
        for part in ("weights", "kv", "recurrent", "compute", "output", "pool", "context")
    } | {"device": found.device_total, "host": found.host_total}


def no_less(one: Footprint, other: Footprint) -> None:
    """Whatever is known of both has not shrunk, and what was unknown has not become known by asking for more.

    The other way is possible: from 32 rows on host weights are copied over, and their sizes may not be known.
    """
    before, after = figures(one), figures(other)
    for name, value in before.items():
        larger = after[name]
        if value is None:
            assert larger is None, name
        elif larger is not None:
            assert value <= larger, name


@given(shapes(), settings())
def test_figures_are_whole_and_not_negative(shape: ModelShape, setting: Setting) -> None:
    found = footprint(shape, setting)
    for name, value in figures(found).items():
        assert value is None or (type(value) is int and value >= 0), name
    for phase in (found.peak, found.steady):
        for bill in (phase.device, phase.host):
            assert (bill.total is None) == bool(bill.unknown)


@given(shapes(), settings(), st.integers(1, 100_000))
def test_a_longer_context_never_costs_less(shape: ModelShape, setting: Setting, more: int) -> None:
    longer = msgspec.structs.replace(setting, context=setting.context + more)
    no_less(footprint(shape, setting), footprint(shape, longer))


@given(shapes(), settings())
def test_another_slot_never_costs_less_where_slots_share(shape: ModelShape, setting: Setting) -> None:
    shared = msgspec.structs.replace(setting, unified=True)
    no_less(footprint(shape, shared), footprint(shape, msgspec.structs.replace(shared, slots=shared.slots + 1)))


@given(shapes(), settings())
def test_slots_that_do_not_share_have_no_fewer_cells(shape: ModelShape, setting: Setting) -> None:
    one = msgspec.structs.replace(setting, slots=1, unified=False)
    apart = msgspec.structs.replace(setting, unified=False)
    whole, parts = footprint(shape, one).steady, footprint(shape, apart).steady
    if whole.host.kv.bytes is not None and not shape.sliding:
        assert (whole.device.kv.bytes or 0) <= (parts.device.kv.bytes or 0)


@given(shapes(), settings())
def test_another_layer_never_costs_less(shape: ModelShape, setting: Setting) -> None:
    """All layers stay on the device, so that the one more is there too."""
    whole = msgspec.structs.replace(setting, n_gpu_layers=999_999)
    per_layer = ("heads", "kv_heads", "key_dims", "value_dims", "feed_forward", "sliding", "recurrent", "layer_bytes")
    longer: dict[str, Any] = {"layers": (shape.layers or 0) + 1}
    for name in per_layer:
        value = getattr(shape, name)
        longer[name] = (*value, value[-1]) if value else value
    if shape.weights_bytes is not None:
        longer["weights_bytes"] = shape.weights_bytes + (shape.layer_bytes or (0,))[-1]
    if setting.era is Era.GGML_2023:
        return  # its tables know five depths only
    no_less(footprint(shape, whole), footprint(msgspec.structs.replace(shape, **longer), whole))


@given(shapes(), settings())
def test_the_table_has_the_same_figures(shape: ModelShape, setting: Setting) -> None:
    rows = predict_table(shape, setting, [512, 4096])
    assert [row.context for row in rows] == [512, 4096]
    for row in rows:
        found = footprint(shape, msgspec.structs.replace(setting, context=row.context))
        assert row.footprint == found
        assert (row.device_total, row.host_total) == (found.device_total, found.host_total)
        parts = (row.weights, row.kv, row.recurrent, row.compute, row.pool, row.driver)
        if None not in parts:
            assert sum(part or 0 for part in parts) == found.steady.device.total


anything = st.none() | st.booleans() | st.integers(-5, 2**70) | st.text() | st.lists(st.integers(-2, 9)) | st.floats()
KEYS = ["block_count", "embedding_length", "attention.head_count", "attention.head_count_kv", "feed_forward_length"]
KEYS += ["attention.key_length", "attention.sliding_window", "attention.sliding_window_pattern", "ssm.state_size"]
KEYS += ["attention.kv_lora_rank", "rope.dimension_count", "expert_count", "nextn_predict_layers", "vocab_size"]
NAMES = ["token_embd.weight", "output.weight", "blk.0.attn_k.weight", "blk.1.ssm_a", "blk.0.ffn_up_exps.weight", "x"]


@given(
    st.dictionaries(st.sampled_from(KEYS), anything),
    st.sampled_from(["llama", "qwen35", "deepseek2", "odd", 3]),
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2**40))),
    settings(),
)
def test_no_file_makes_it_raise(
    keys: dict[str, Any], architecture: Any, tensors: list[tuple[str, int]], setting: Setting
) -> None:
    metadata = {f"{architecture}.{key}": value for key, value in keys.items()}
    found = footprint(shape_of(metadata | {"general.architecture": architecture}, tensors), setting)
    for name, value in figures(found).items():
        assert value is None or value >= 0, name
