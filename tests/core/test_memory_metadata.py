"""A model's numbers as its file gives them: arrays, patterns, tensors that say more than keys."""

from typing import Any

from core.memory import Era, ModelShape, Setting, footprint, shape_of

MIB = 1 << 20


def keys(architecture: str, **values: Any) -> dict[str, Any]:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return {"general.architecture": architecture} | {f"{architecture}.{name}": value for name, value in named.items()}


def layer(index: int, *names: str, size: int = 10) -> list[tuple[str, int]]:
    return [(f"blk.{index}.{name}", size) for name in names]


LLAMA: dict[str, Any] = {"block_count": 2, "embedding_length": 64, "attention__head_count": 4}
LLAMA |= {"feed_forward_length": 128, "vocab_size": 1000, "context_length": 2048}


def cache(shape: ModelShape, **more: Any) -> int | None:
    setting = Setting(context=1024, gpus=0, **({"flash_attention": True} | more))
    return footprint(shape, setting).steady.host.kv.bytes


def test_a_plain_model() -> None:
    tensors = [("token_embd.weight", 700), ("output_norm.weight", 1), ("output.weight", 800)]
    tensors += layer(0, "attn_k.weight", "ffn_up.weight") + layer(1, "attn_k.weight", "ffn_up.weight", size=20)
    found = shape_of(keys("llama", **LLAMA), tensors)
    assert (found.layers, found.width, found.heads, found.kv_heads) == (2, 64, (4, 4), (4, 4))
    assert (found.key_dims, found.value_dims, found.vocabulary, found.context_train) == ((16, 16), (16, 16), 1000, 2048)
    assert (found.weights_bytes, found.embedding_bytes, found.output_bytes, found.tied) == (1561, 700, 800, False)
    assert (found.layer_bytes, found.largest_tensor, found.largest_expert) == ((20, 40), 20, None)
    whole = footprint(found, Setting(context=64, n_gpu_layers=99)).steady
    # The norm after the last layer is a few bytes on either side.
    assert (whole.device.weights.bytes, whole.host.weights.bytes) == (20 + 40 + 800, 700 + 1)
    assert found.ruled


def test_the_vocabulary_is_counted_when_not_given() -> None:
    without = {name: value for name, value in LLAMA.items() if name != "vocab_size"}
    found = shape_of(keys("llama", **without) | {"tokenizer.ggml.tokens": ("a", "b", "c")}, [])
    assert found.vocabulary == 3


def test_without_an_output_the_embedding_serves_again() -> None:
    found = shape_of(keys("llama", **LLAMA), [("token_embd.weight", 700), *layer(0, "attn_k.weight")])
    assert (found.tied, found.output_bytes) == (True, 700)


def test_grouped_heads_and_arrays() -> None:
    """Of three layers one has no attention; no smallest and no largest of the array is right for all."""
    three = LLAMA | {"block_count": 3, "attention__head_count": (4, 0, 4), "attention__head_count_kv": (2, 0, 1)}
    found = shape_of(keys("deci", **three, attention__key_length=16, attention__value_length=8), [])
    assert cache(found) == 1024 * 2 * (2 * (16 + 8) + 1 * (16 + 8))


def test_an_array_of_another_length_is_unknown() -> None:
    found = shape_of(keys("llama", **(LLAMA | {"attention__head_count_kv": (2,)})), [])
    assert found.kv_heads == (4, 4)  # as many as queries: the format's default
    assert shape_of(keys("llama", **(LLAMA | {"attention__head_count": (4,)})), []).heads is None
    assert cache(shape_of(keys("llama", **(LLAMA | {"attention__head_count": (4,)})), [])) is None


def test_windows_by_architecture_by_number_and_by_array() -> None:
    six = LLAMA | {"block_count": 6, "attention__sliding_window": 100}
    assert shape_of(keys("gemma3", **six), []).sliding == (True,) * 5 + (False,)
    assert shape_of(keys("gpt-oss", **six), []).sliding == (True, False) * 3
    assert shape_of(keys("olmo2", **six, attention__sliding_window_pattern=3), []).sliding == (True, True, False) * 2
    array = (True, False, False, True, False, False)
    assert shape_of(keys("laguna", **six, attention__sliding_window_pattern=array), []).sliding == array
    plain = shape_of(keys("llama", **six), [])
    assert (plain.sliding, plain.window) == ((), None)


def test_sliding_layers_may_have_heads_of_their_own() -> None:
    two = LLAMA | {"attention__sliding_window": 100, "attention__sliding_window_pattern": (True, False)}
    two |= {"attention__key_length": 32, "attention__value_length": 32}
    two |= {"attention__key_length_swa": 8, "attention__value_length_swa": 8}
    found = shape_of(keys("gemma4", **two), [])
    assert (found.key_dims, found.value_dims) == ((8, 32), (8, 32))


def test_layers_without_a_cache_of_their_own() -> None:
    ahead = shape_of(keys("glm4moe", **LLAMA, nextn_predict_layers=1), [])
    assert ahead.kv_heads == (4, 0)
    shared = shape_of(keys("gemma3n", **LLAMA, attention__shared_kv_layers=1), [])
    assert shared.kv_heads == (4, 0)


def test_a_hybrid_by_its_tensors_and_by_its_interval() -> None:
    four = LLAMA | {"block_count": 4, "attention__head_count_kv": 2, "ssm__conv_kernel": 4, "ssm__inner_size": 8}
    four |= {"ssm__state_size": 2, "ssm__group_count": 1}
    interval = shape_of(keys("qwen35", **four, full_attention_interval=2), [])
    assert interval.recurrent == (True, False, True, False)
    assert interval.kv_heads == (0, 2, 0, 2)
    tensors = [item for index in (0, 1, 2) for item in layer(index, "attn_qkv.weight", "ssm_a")]
    by_tensors = shape_of(keys("qwen35", **four), [*tensors, *layer(3, "attn_k.weight")])
    assert by_tensors.recurrent == (True, True, True, False)
    assert by_tensors.kv_heads == (0, 0, 0, 2)
    assert not by_tensors.fused_qkv
    state = footprint(by_tensors, Setting(context=64, gpus=0)).steady.host.recurrent.bytes
    assert state == 3 * 4 * (3 * (8 + 2 * 1 * 2) + 2 * 8)


def test_attention_and_state_in_the_same_layer() -> None:
    both = LLAMA | {"ssm__conv_kernel": 4, "ssm__inner_size": 8, "ssm__state_size": 2}
    tensors = [item for index in (0, 1) for item in layer(index, "attn_k.weight", "ssm_a")]
    found = shape_of(keys("falcon-h1", **both), tensors)
    assert (found.recurrent, found.kv_heads) == ((True, True), (4, 4))


def test_a_model_without_attention() -> None:
    numbers = {"block_count": 2, "embedding_length": 64, "vocab_size": 10, "ssm__conv_kernel": 4}
    numbers |= {"ssm__inner_size": 8, "ssm__state_size": 2, "attention__head_count": 0, "feed_forward_length": 0}
    found = footprint(shape_of(keys("mamba", **numbers), []), Setting(context=64, gpus=0)).steady.host
    assert (found.kv.bytes, found.recurrent.bytes) == (0, 2 * 4 * (3 * 8 + 2 * 8))
    assert found.compute.bytes is None


def test_latent_attention() -> None:
    numbers = LLAMA | {"attention__kv_lora_rank": 32, "rope__dimension_count": 8}
    old = shape_of(keys("deepseek2", **numbers, attention__key_length=24, attention__value_length=16), [])
    assert cache(old) == 2 * 1024 * 2 * 4 * (24 + 16)
    new = shape_of(keys("deepseek2", **numbers, attention__key_length=40, attention__key_length_mla=24), [])
    assert cache(new) == 2 * 1024 * 2 * (32 + 8)
    assert new.latent_file
    assert not old.latent_file


def test_experts_are_counted_all() -> None:
    tensors = [*layer(0, "attn_k.weight"), *layer(0, "ffn_up_exps.weight", "ffn_down_exps.weight", size=500)]
    found = shape_of(keys("qwen3moe", **LLAMA, expert_count=8, expert_used_count=2), tensors)
    assert (found.layer_bytes, found.expert_bytes, found.largest_expert, found.largest_tensor) == (
        (1010, 0),
        (1000, 0),
        500,
        10,
    )


def test_an_encoder_keeps_its_position_embeddings_on_the_host() -> None:
    tensors = [("token_embd.weight", 700), ("position_embd.weight", 50), ("token_types.weight", 4)]
    found = shape_of(keys("bert", **LLAMA, attention__causal=False), tensors + layer(0, "attn_k.weight"))
    assert (found.embedding_bytes, found.encoder, found.tied, found.output_bytes) == (754, True, False, None)


def test_kinds_of_layers_that_no_formula_knows_make_it_unknown() -> None:
    found = shape_of(keys("llama", **LLAMA), layer(0, "time_mix_w1.weight"))
    whole = footprint(found, Setting(context=64, era=Era.LLAMACPP_2025, n_gpu_layers=99))
    assert not found.ruled
    assert whole.device_total is None


def test_nothing_at_all() -> None:
    assert shape_of({}, []) == ModelShape()
    assert shape_of({"general.architecture": "llama"}, [("x", 3)]) == ModelShape(architecture="llama", weights_bytes=3)
    assert shape_of(keys("llama", **(LLAMA | {"block_count": 10**9})), []).layers is None
