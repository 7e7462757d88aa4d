"""Figures worked out by hand from source code, or printed by engines, for settings told in full."""

from typing import Any

import pytest

from core.errors import Malformed
from core.memory import Era, ModelShape, Setting, Shape, embedded_footprint, footprint
from core.memory.cache import cells, sliding_cells

MIB = 1 << 20


def dense(
    layers: int, width: int, heads: int, kv_heads: int, inner: int, vocabulary: int, head: int = 0, **more: Any
) -> ModelShape:
    size = head or width // heads
    recurrent = more.get("recurrent") or (False,) * layers
    numbers: dict[str, Any] = {
        "architecture": "llama",
        "layers": layers,
        "width": width,
        "heads": (heads,) * layers,
        "kv_heads": tuple(0 if recurs else kv_heads for recurs in recurrent),
        "key_dims": (size,) * layers,
        "value_dims": (size,) * layers,
        "feed_forward": (inner,) * layers,
        "vocabulary": vocabulary,
    }
    return ModelShape(**(numbers | more))


LLAMA_7B = dense(32, 4096, 32, 32, 11008, 32000)
LLAMA_13B = dense(40, 5120, 40, 40, 13824, 32000)
LLAMA_33B = dense(60, 6656, 52, 52, 17920, 32000)
LLAMA_70B = dense(80, 8192, 64, 8, 28672, 32000)
LLAMA3_8B = dense(32, 4096, 32, 8, 14336, 128256)
QWEN3_8B = dense(36, 4096, 32, 8, 12288, 151936, architecture="qwen3")
QWEN25_14B = dense(48, 5120, 40, 8, 13824, 152064, architecture="qwen2")
HYBRID_27B = dense(
    64,
    5120,
    24,
    4,
    17408,
    248320,
    head=256,
    architecture="qwen35",
    recurrent=(True, True, True, False) * 16,
    conv_width=4,
    inner_width=6144,
    state_width=128,
    state_groups=16,
)
HYBRID_4B = dense(
    32, 2560, 16, 4, 9216, 248320, head=256, architecture="qwen35", recurrent=(True, True, True, False) * 8,
    conv_width=4, inner_width=4096, state_width=128, state_groups=16,
)  # fmt: skip
GPT_OSS = dense(24, 2880, 64, 8, 2880, 201088, head=64, architecture="gpt-oss", window=128,
                sliding=(True, False) * 12, experts=32, experts_used=4, expert_feed_forward=2880)  # fmt: skip


def embedded(context: int, n_gpu_layers: int = 999_999, **more: Any) -> Setting:
    return Setting(context=context, era=Era.CTRANSFORMERS_2023, n_gpu_layers=n_gpu_layers, **more)


def full(context: int, **more: Any) -> Setting:
    return Setting(**({"context": context, "n_gpu_layers": 999} | more))


def device(shape: ModelShape, setting: Setting, part: str) -> float:
    value = getattr(footprint(shape, setting).steady.device, part).bytes
    assert value is not None
    return float(value / MIB)


def host(shape: ModelShape, setting: Setting, part: str) -> float:
    value = getattr(footprint(shape, setting).steady.host, part).bytes
    assert value is not None
    return float(value / MIB)


# ---- the embedded engine ----


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (LLAMA_7B, [70.5, 88, 152, 280, 536]),
        (LLAMA_13B, [72.5, 110, 190, 350, 670]),
        (LLAMA_70B, [112, 176, 304, 560, 1072]),
    ],
)
def test_scratch_of_the_embedded_engine(shape: ModelShape, expected: list[float]) -> None:
    contexts = [512, 1024, 2048, 4096, 8192]
    assert [device(shape, embedded(context), "compute") for context in contexts] == expected
    assert [host(shape, embedded(context), "compute") for context in contexts] == expected


@pytest.mark.parametrize(("shape", "mib"), [(LLAMA_7B, 773), (LLAMA_13B, 1045), (LLAMA_33B, 1508), (LLAMA_70B, 2260)])
def test_pool_of_the_embedded_engine(shape: ModelShape, mib: int) -> None:
    assert round(device(shape, embedded(2048), "pool")) == mib
    assert device(shape, embedded(2048, shape.layers or 0), "pool") < device(shape, embedded(2048), "pool")


def test_the_embedded_engine_moves_output_then_values_then_keys() -> None:
    """A 62-layer model at 8192 cells: each half of the cache is 4960 MiB."""
    shape = dense(62, 5120, 40, 40, 13824, 32000)
    moved = [device(shape, embedded(8192, count), "kv") for count in (60, 62, 63, 64, 65, 999_999)]
    assert moved == [0, 0, 0, 4960, 9920, 9920]
    assert {host(shape, embedded(8192, count), "kv") for count in (0, 60, 64, 999_999)} == {9920}


def test_a_whole_load_of_the_embedded_engine() -> None:
    """Llama-2-7B Q4_0 at 2048: 3578 + 1024 + 152 + 773 MiB, and the driver's share."""
    shape = dense(
        32, 4096, 32, 32, 11008, 32000, weights_bytes=3648 * MIB, embedding_bytes=70 * MIB, output_bytes=102 * MIB
    )
    found = footprint(shape, embedded(2048, 50, process_context=300 * MIB)).steady.device
    assert found.weights.bytes == pytest.approx(3578 * MIB, rel=0.001)
    assert found.total == pytest.approx((3578 + 1024 + 152 + 773 + 300) * MIB, rel=0.001)
    assert found.context.basis == "declared"


def test_without_devices_nothing_is_on_them() -> None:
    shape = dense(32, 4096, 32, 32, 11008, 32000, weights_bytes=3648 * MIB)
    found = footprint(shape, embedded(2048, 0, gpus=0))
    assert found.device_total == 0
    assert found.steady.host.weights.bytes == 3648 * MIB
    assert found.host_total == found.steady.host.total == (3648 + 1024 + 152) * MIB + 4 * 32000


def test_the_catalogue_numbers_give_the_same() -> None:
    found = embedded_footprint(Shape(100, 32, 4096, 32, 32, 32000), 2048)
    assert (found.weights, found.kv, found.compute) == (100, 1024 * MIB, 152 * MIB)
    assert embedded_footprint(Shape(7, 0, 0, 1, 0, 0), 2048).total == 7


# ---- cells ----


def test_slots_that_do_not_share_can_cost_more_than_a_fourth_slot() -> None:
    found = [cells(Setting(context=1024, slots=slots, flash_attention=True)) for slots in (1, 2, 3, 4)]
    assert found == [1024, 1024, 1536, 1024]
    assert cells(Setting(context=1024, slots=3, unified=True)) == 1024


def test_windows() -> None:
    assert sliding_cells(Setting(context=4096), 128) == 640
    assert sliding_cells(Setting(context=4096, flash_attention=True), 128) == 768
    assert sliding_cells(Setting(context=8192, flash_attention=True, slots=4, unified=True), 1024) == 4608
    assert sliding_cells(Setting(context=8192, flash_attention=True), 1024) == 1536
    assert sliding_cells(Setting(context=8192, flash_attention=True), 2048) == 2560
    assert sliding_cells(Setting(context=1024, flash_attention=True), 4096) == 1024
    for more in ({"swa_full": True}, {"era": Era.IK_LLAMA}, {"era": Era.LLAMACPP_2024}):
        assert sliding_cells(Setting(context=4096, **more), 128) == 4096


def test_sliding_layers_are_not_quantised_any_more() -> None:
    """12 layers of 4096 cells and 12 of 768, rows of 512 + 512 values."""
    old = full(4096, flash_attention=True, cache_k="q8_0", cache_v="q8_0")
    new = full(4096, flash_attention=True, cache_k="q8_0", cache_v="q8_0", era=Era.LLAMACPP_2026)
    assert device(GPT_OSS, old, "kv") == 12 * (4096 + 768) * 1024 * 34 / 32 / MIB
    assert device(GPT_OSS, new, "kv") == 12 * (4096 * 1024 * 34 / 32 + 768 * 1024 * 2) / MIB


def test_a_context_is_padded() -> None:
    assert cells(Setting(context=1000)) == 1024
    assert cells(Setting(context=1100)) == 1120
    assert cells(Setting(context=1100, flash_attention=True)) == 1280
    assert cells(Setting(context=1100, era=Era.LLAMACPP_2026)) == 1280
    assert cells(embedded(1100)) == 1100


# ---- other caches ----


def mla(**more: Any) -> ModelShape:
    numbers: dict[str, Any] = {"key_dims": (192,) * 61, "value_dims": (128,) * 61, "architecture": "deepseek2"}
    numbers |= {"kv_lora_rank": 512, "rope_dims": 64, "experts": 256, "experts_used": 8, "dense_layers": 3}
    return dense(61, 7168, 128, 128, 18432, 129280, expert_feed_forward=2048, **(numbers | more))


def test_latent_attention_in_full_takes_71_times_as_much() -> None:
    whole = device(mla(), full(2048), "kv")
    latent = device(mla(latent_file=True), full(2048), "kv")
    assert whole == 9760 == 61 * 160
    assert latent == 61 * 2048 * 576 * 2 / MIB
    assert whole / latent == pytest.approx(71.1, abs=0.1)
    assert device(mla(latent_file=True), full(16384, mla="latent+v"), "kv") == 2074


def test_a_recurrent_state_does_not_grow_with_the_context() -> None:
    for context in (1024, 131072):
        assert device(HYBRID_27B, full(context), "recurrent") == pytest.approx(149.62, abs=0.01)
    four = full(1024, drafts=4)
    assert device(HYBRID_27B, four, "recurrent") == pytest.approx(748.12, abs=0.01)
    assert device(HYBRID_27B, full(131072, cache_k="q4_0", cache_v="q4_0"), "kv") == 2304


def test_half_the_layers_hold_half_the_cache() -> None:
    shape = dense(80, 8192, 64, 8, 28672, 128256)
    found = Setting(context=2048, era=Era.LLAMACPP_2024, n_gpu_layers=61)
    assert (device(shape, found, "kv"), host(shape, found, "kv")) == (488, 152)


def test_an_encoder_has_a_cache_until_it_has_none() -> None:
    shape = dense(12, 384, 12, 12, 1536, 30522, architecture="bert", causal=False)
    assert device(shape, full(512, n_ubatch=2048), "kv") == 9
    assert device(shape, full(512, n_ubatch=2048), "compute") == 16.75
    assert device(shape, full(512, era=Era.LLAMACPP_2026), "kv") == 0


# ---- compute buffers ----


def test_logits_for_one_row_instead_of_all() -> None:
    new = full(4096, flash_attention=True, era=Era.LLAMACPP_2026)
    assert device(QWEN25_14B, full(4096, flash_attention=True), "compute") == 307
    assert device(QWEN25_14B, new, "compute") == 105


def test_a_quantised_cache_is_copied_as_f16() -> None:
    new = {"flash_attention": True, "era": Era.LLAMACPP_2026}
    plain = device(HYBRID_4B, full(262144, **new), "compute") / 1024
    quantised = device(HYBRID_4B, full(262144, cache_k="q8_0", cache_v="q8_0", **new), "compute") / 1024
    assert plain == pytest.approx(0.31, abs=0.005)
    assert quantised == pytest.approx(1.30, abs=0.015)
    one = device(HYBRID_27B, full(245760, **new), "compute")
    other = device(HYBRID_27B, full(245760, cache_k="q8_0", cache_v="q8_0", **new), "compute")
    assert other - one == 960
    assert device(HYBRID_27B, full(16384, **new), "compute") == pytest.approx(138.02, abs=0.03)


def test_before_that_the_copy_is_in_the_pool() -> None:
    old = full(245760, flash_attention=True, cache_k="q8_0", cache_v="q8_0")
    assert device(HYBRID_27B, old, "pool") == 960


def test_leaving_out_the_output_costs_more() -> None:
    """QwQ-32B: 916 MiB with the output on the host, 307 with everything on the device."""
    shape = dense(64, 5120, 40, 8, 27648, 152064, output_bytes=152064 * 5120 * 210 // 256, largest_tensor=MIB)
    part = Setting(context=8192, flash_attention=True, n_gpu_layers=64)
    assert device(shape, part, "compute") == pytest.approx(916.08, abs=0.01)
    assert device(shape, full(8192, flash_attention=True), "compute") == 307
    assert device(shape, Setting(context=8192, n_ubatch=31, n_gpu_layers=64, flash_attention=True), "compute") < 307


def test_an_output_left_on_the_host_by_hand() -> None:
    """GLM-4 32B in BF16: 1776 MiB of output matrix and 308 MiB of logits."""
    shape = dense(61, 6144, 48, 8, 23040, 151552, architecture="chatglm", output_bytes=151552 * 6144 * 2)
    found = full(512, n_batch=512, era=Era.IK_LLAMA, output_on_host=True)
    assert device(shape, found, "compute") == 2084


def test_pipeline_copies() -> None:
    """Command-R on several devices."""
    shape = dense(40, 8192, 64, 64, 22528, 256000, architecture="command-r")
    assert device(shape, full(4096, gpus=2, era=Era.LLAMACPP_2024), "compute") == 672
    assert device(shape, full(4096, gpus=2, era=Era.LLAMACPP_2024, copies=1), "compute") == 584


def test_the_gap_of_a_long_mask() -> None:
    """Llama-3-8B on Vulkan with 1024 rows at 16384 cells: 613 MiB, not the 517 of logits alone."""
    long = full(16384, n_ubatch=1024, flash_attention=True, backend="vulkan")
    short = full(4096, n_ubatch=1024, flash_attention=True, backend="vulkan")
    assert device(LLAMA3_8B, long, "compute") == 613
    assert device(LLAMA3_8B, short, "compute") == 517


def test_masks_on_the_host_became_half_as_large() -> None:
    old = full(150_000, n_batch=4096, n_ubatch=4096, flash_attention=True)
    new = full(150_000, n_batch=4096, n_ubatch=4096, flash_attention=True, era=Era.LLAMACPP_2026)
    assert (host(QWEN3_8B, old, "compute"), host(QWEN3_8B, new, "compute")) == (2408, 1236)


# ---- weights ----


def test_a_tied_embedding_is_held_twice() -> None:
    shape = dense(26, 1152, 4, 1, 6912, 262144, architecture="gemma3", tied=True, weights_bytes=1000 * MIB,
                  embedding_bytes=306 * MIB, output_bytes=306 * MIB)  # fmt: skip
    assert (device(shape, full(512), "weights"), host(shape, full(512), "weights")) == (
        pytest.approx(1000, abs=0.001),
        pytest.approx(306, abs=0.001),
    )
    part = Setting(context=512, n_gpu_layers=26)
    assert device(shape, part, "weights") == pytest.approx(694, abs=0.001)


def test_experts_on_the_host_and_repacking() -> None:
    shape = dense(2, 64, 2, 2, 64, 100, experts=4, experts_used=2, weights_bytes=1000, embedding_bytes=100,
                  output_bytes=100, layer_bytes=(400, 400), expert_bytes=(300, 300), largest_expert=200)  # fmt: skip
    found = footprint(shape, full(64, experts_on_host=True)).steady
    assert (found.device.weights.bytes, found.host.weights.bytes) == (300, 700)
    cpu = footprint(shape, Setting(context=64, gpus=0, repack=True)).steady.host.weights
    assert cpu.bytes == 1000 + 918


def test_a_mapped_file_passes_through_the_host() -> None:
    shape = dense(2, 64, 2, 2, 64, 100, weights_bytes=1000, embedding_bytes=100, output_bytes=100)
    mapped, copied = footprint(shape, full(64)), footprint(shape, full(64, mmap=False))
    assert mapped.peak.host.weights.bytes == 1000
    assert copied.peak.host.weights.bytes == mapped.steady.host.weights.bytes == 100
    assert mapped.peak.device.pool.bytes == 0


# ---- what is not known ----


@pytest.mark.parametrize(
    ("shape", "setting", "parts"),
    [
        (dense(2, 64, 2, 2, 64, 100, architecture="no-such", weights_bytes=9), full(64), {"kv", "compute"}),
        (ModelShape(weights_bytes=9), full(64), {"kv", "compute", "weights", "recurrent", "pool"}),
        (mla(latent_file=True), full(2048), {"compute"}),
        (LLAMA_7B, full(64, backend="cann"), {"compute", "weights"}),
        (LLAMA_7B, full(64, cache_k="q3_z"), {"kv"}),
        (dense(2, 64, 2, 2, 64, 100, recurrent=(True, False)), full(64), {"recurrent"}),
        (dense(2, 64, 2, 2, 64, 100, sliding=(True, False)), full(64), {"kv"}),
        (LLAMA_7B, Setting(context=64, n_gpu_layers=20), {"compute"}),
    ],
)
def test_unknown_stays_unknown(shape: ModelShape, setting: Setting, parts: set[str]) -> None:
    found = footprint(shape, setting)
    assert parts <= set(found.steady.device.unknown)
    assert found.device_total is None
    for name in parts:
        term = getattr(found.steady.device, name)
        assert (term.bytes, term.basis) == (None, "unknown")


@pytest.mark.parametrize("wrong", [{"context": 0}, {"context": 5, "slots": 0}, {"context": 5, "n_gpu_layers": -1}])
def test_settings_that_no_engine_takes(wrong: dict[str, int]) -> None:
    with pytest.raises(Malformed, match="must be at least"):
        Setting(**wrong)
