import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import pytest

from core.errors import ModelFileError
from store.models.atomic import replacing
from store.models.gguf import GGUF, read_header
from store.models.prepare import prepare
from store.models.suitability import suitability
from store.models.tokenizer import Tokenizer
from store.models.trial import trial_load
from store.models.weights import tensor_chunks, weights_digest


def data(header: GGUF, name: str) -> bytes:
    (found,) = [tensor for tensor in header.tensors if tensor.name == name]
    return b"".join(tensor_chunks(header, found))


def test_the_copy_is_what_the_old_reader_wants(tiny: Path, tmp_path: Path) -> None:
    before = tiny.read_bytes()
    source, copy = read_header(tiny), read_header(prepare(tiny, tmp_path / "out"))
    assert copy.version == 2
    assert tiny.read_bytes() == before
    for tensor in source.tensors:
        assert data(copy, tensor.name) == data(source, tensor.name)
    assert data(copy, "output.weight") == data(source, "token_embd.weight")
    assert copy.metadata["tokenizer.ggml.scores"] == (0.0,) * 265
    assert copy.types["tokenizer.ggml.scores"] == 6
    assert copy.metadata["tokenizer.ggml.merges"] == source.metadata["tokenizer.ggml.merges"]
    tokens = [token.encode("utf-8", "surrogateescape") for token in copy.texts("tokenizer.ggml.tokens")]
    assert tokens[:3] == [b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>"]
    assert tokens[3 : 3 + 256] == [bytes([byte]) for byte in range(256)]
    assert tokens[-2:] == [b" hello", b"\n\n"]
    unknown = {"general.license", "tokenizer.chat_template", "tokenizer.ggml.pre"}
    assert not unknown & set(copy.metadata)
    for key in set(source.metadata) - unknown - {"tokenizer.ggml.tokens"}:
        assert (copy.metadata[key], copy.types[key]) == (source.metadata[key], source.types[key])


def test_preparing_keeps_the_digest_of_the_weights(
    tiny: Path, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    prepared = prepare(tiny, tmp_path / "out")
    assert weights_digest(read_header(prepared)) == weights_digest(read_header(tiny))
    other = write(tmp_path / "other.gguf", parts, seed=1)
    assert weights_digest(read_header(other)) != weights_digest(read_header(tiny))


def test_a_model_with_its_own_output_keeps_it(
    tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    parts["tensors"]["output.weight"] = parts["tensors"]["token_embd.weight"]
    source = read_header(write(tmp_path / "untied.gguf", parts))
    copy = read_header(prepare(source.path, tmp_path / "out"))
    assert data(copy, "output.weight") == data(source, "output.weight") != data(source, "token_embd.weight")
    assert len(copy.tensors) == len(source.tensors)


def test_a_copy_is_made_once_per_source(
    tiny: Path, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    target = prepare(tiny, tmp_path / "out")
    first = target.stat().st_ino
    assert prepare(tiny, tmp_path / "out").stat().st_ino == first
    record = target.with_suffix(".json")
    kept = record.read_bytes()

    def made_again() -> bool:
        nonlocal first
        before, first = first, prepare(tiny, tmp_path / "out").stat().st_ino
        return first != before

    keep = target.open("rb")  # so that the number of the old file is not used again
    record.unlink()
    assert made_again(), "without a record nothing vouches for the copy"
    assert record.read_bytes() == kept
    keep.close()
    keep = target.open("rb")
    with target.open("r+b") as file:
        file.truncate(1_000)
    assert made_again(), "a copy of another length is not the one recorded"
    keep.close()
    keep = target.open("rb")
    write(tiny, parts, seed=7)
    assert made_again(), "another source needs another copy"
    keep.close()
    assert weights_digest(read_header(target)) == weights_digest(read_header(tiny))
    assert sorted(path.name for path in target.parent.iterdir()) == ["tiny.prepared.gguf", "tiny.prepared.json"]


def test_a_copy_left_behind_by_a_crash_is_not_trusted(
    tiny: Path, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = prepare(tiny, tmp_path / "out").read_bytes()
    original = tiny.read_bytes()
    write(tiny, parts, seed=3)

    def dies_at_the_record(path: Path) -> AbstractContextManager[IO[bytes]]:
        if path.suffix == ".json":
            raise KeyboardInterrupt
        return replacing(path)

    monkeypatch.setattr("store.models.prepare.replacing", dies_at_the_record)
    with pytest.raises(KeyboardInterrupt):
        prepare(tiny, tmp_path / "out")
    monkeypatch.undo()
    # The new copy is there without its record; the old source must not find it current.
    tiny.write_bytes(original)
    assert prepare(tiny, tmp_path / "out").read_bytes() == old


def without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda parts: parts["metadata"].pop(key)


def with_key(key: str, kind: int, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda parts: parts["metadata"].update({key: (kind, value)})


def with_tensor(name: str, shape: tuple[int, ...], kind: int = 0) -> Callable[[dict[str, Any]], None]:
    return lambda parts: parts["tensors"].update({name: (shape, kind)})


UNSUITABLE = {
    "SentencePiece": (with_key("tokenizer.ggml.model", 8, "llama"), "vocabulary is a SentencePiece one"),
    "architecture": (with_key("general.architecture", 8, "qwen2"), "architecture is 'qwen2'"),
    "no block count": (without("llama.block_count"), "llama.block_count is missing"),
    "block count as text": (with_key("llama.block_count", 8, "2"), "llama.block_count is missing or no positive"),
    "no heads": (with_key("llama.attention.head_count", 4, 0), "head_count is missing or no positive"),
    "odd heads": (with_key("llama.attention.head_count", 4, 3), "do not fit together"),
    "heads per layer": (with_key("llama.attention.head_count_kv", 5, (1, 2)), "not one number for all layers"),
    "no epsilon": (without("llama.attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon is missing"),
    "rotary size": (with_key("llama.rope.dimension_count", 4, 8), "dimension_count differs from the head size 16"),
    "head size": (with_key("llama.attention.key_length", 4, 64), "key_length differs"),
    "scaled positions": (with_key("llama.rope.scaling.type", 8, "yarn"), "scaled rotary positions"),
    "experts": (with_key("llama.expert_count", 4, 8), "it uses expert count"),
    "pre-tokenizer": (with_key("tokenizer.ggml.pre", 8, "brand-new"), "'brand-new' is not known"),
    "no eos": (without("tokenizer.ggml.eos_token_id"), "names no BOS or EOS"),
    "bias": (with_tensor("blk.0.attn_q.bias", (32,)), "does not know: blk.0.attn_q.bias"),
    "rotary factors": (with_tensor("rope_freqs.weight", (8,)), "does not know: rope_freqs.weight"),
    "more blocks than tensors": (with_key("llama.block_count", 4, 1_000_000), "fewer than there are blocks"),
    "one more block": (with_key("llama.block_count", 4, 3), r"missing: blk.2.*and 6 more"),
    "shape": (with_tensor("blk.1.ffn_up.weight", (32, 65)), "another shape.*blk.1.ffn_up"),
    "new type": (with_tensor("blk.1.ffn_up.weight", (32, 64), 30), "newer than the engine: BF16"),
    "norm type": (with_tensor("output_norm.weight", (32,), 1), "not F32: output_norm"),
}


@pytest.mark.parametrize("case", UNSUITABLE)
def test_what_the_engine_cannot_read_is_refused_before_it_sees_it(
    case: str, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    change, cause = UNSUITABLE[case]
    change(parts)
    source = write(tmp_path / "odd.gguf", parts)
    with pytest.raises(ModelFileError, match=f"odd.gguf does not suit the embedded engine: .*{cause}"):
        prepare(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_good_file_has_no_problems_and_its_copy_is_not_prepared_again(tiny: Path, tmp_path: Path) -> None:
    assert suitability(read_header(tiny)) == []
    prepared = prepare(tiny, tmp_path / "out")
    with pytest.raises(ModelFileError, match="prepared for another engine"):
        prepare(prepared, tmp_path / "again")


@pytest.mark.usefixtures("embedded")
def test_the_embedded_engine_loads_the_copy_and_not_the_source(tiny: Path, tmp_path: Path) -> None:
    trial_load(prepare(tiny, tmp_path / "out"), 120)
    with pytest.raises(
        ModelFileError, match=r"tiny.gguf: the embedded engine cannot use this file; a trial of it (was|ended)"
    ):
        trial_load(tiny, 120)


@pytest.mark.usefixtures("embedded")
def test_a_native_crash_is_told_by_its_signal(tiny: Path, tmp_path: Path) -> None:
    prepared = prepare(tiny, tmp_path / "out")
    raw = bytearray(prepared.read_bytes())
    key = b"llama.attention.head_count_kv"
    value = raw.index(key) + len(key) + 4
    raw[value : value + 4] = bytes(4)  # no key/value heads: the engine divides by them
    prepared.write_bytes(raw)
    with pytest.raises(ModelFileError, match=r"a trial of it was killed by SIGFPE\. It last printed"):
        trial_load(prepared, 120)


@pytest.mark.usefixtures("llamacpp")
def test_the_llamacpp_engine_loads_the_source(tiny: Path, spm_file: Path, tmp_path: Path) -> None:
    for good in (tiny, spm_file):
        trial_load(good, 120, "llamacpp")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[:-5_000])
    with pytest.raises(
        ModelFileError,
        match=r"cut.gguf: the llama.cpp engine cannot use this file; a trial of it ended with exit code 1",
    ):
        trial_load(cut, 120, "llamacpp")


@pytest.mark.usefixtures("embedded")
def test_a_trial_that_takes_too_long_is_ended(tiny: Path) -> None:
    with pytest.raises(ModelFileError, match=r"gave no token within 0.001 s"):
        trial_load(tiny, 0.001)


@pytest.mark.model
@pytest.mark.usefixtures("embedded")
def test_the_real_model_speaks_after_preparing(smollm2: Path, tmp_path: Path) -> None:
    from ctransformers import LLM
    from ctransformers.llm import Config

    prepared = prepare(smollm2, tmp_path)
    tokenizer = Tokenizer.from_gguf(smollm2)
    model = LLM(str(prepared), model_type="gguf", config=Config(context_length=64, threads=1))
    ids = list(tokenizer.encode("The capital of France is", special=False))
    text = b""
    for _ in range(2):
        model.eval(ids, batch_size=8, threads=1)
        token = model.sample(top_k=1, temperature=1.0, repetition_penalty=1.0, seed=1)
        text += tokenizer.piece(token)
        ids = [token]
    assert text == b" Paris."
    shutil.rmtree(tmp_path)
