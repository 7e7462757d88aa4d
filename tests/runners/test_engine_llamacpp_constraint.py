"""Answers of llama.cpp that are held to a schema or a grammar."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_llama import ask, packaged_model, serving

from core.errors import CannotContinue, EngineFault
from runners.engines.base import Constraint, GenerateWork, Loaded, LoadPlan, Sampling
from runners.engines.registry import engine_named

pytestmark = pytest.mark.model

# "user\nTell me about the history of the steam engine, in detail, and of the people who made it.\nassistant\n"
STEAM: tuple[int, ...] = (4093, 198, 31530, 549, 563, 260, 1463, 282, 260, 9403, 2327, 28, 281, 2202)
STEAM += (28, 284, 282, 260, 701, 617, 1135, 357, 30, 198, 520, 9531, 198)
# "The capital of France is"
PARIS = (504, 3575, 282, 4649, 314)
END_OF_TURN = 2
CONTEXT = 1024

Words = Callable[[tuple[int, ...]], str]

GREEDY = Sampling(temperature=0.0, seed=7)
DRAWN = Sampling(temperature=0.8, top_p=0.95, top_k=40, seed=7)
BOTH = pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])


@pytest.fixture(scope="module")
def model_file() -> Path:
    return packaged_model()


@pytest.fixture(scope="module")
def model(model_file: Path) -> Iterator[Loaded]:
    loaded = engine_named("llamacpp").load(model_file, LoadPlan(context=CONTEXT))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def words(model_file: Path) -> Iterator[Words]:
    """Text of tokens, by a server of its own."""
    with serving(model_file, context=256, slots=1) as url:
        yield lambda units: str(ask(url, "/detokenize", {"tokens": list(units)})["content"])


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "number": {"type": "integer"}},
    "required": ["city", "number"],
    "additionalProperties": False,
}


@BOTH
def test_an_answer_holds_to_a_schema_and_is_one_chunk(
    model: Loaded, words: Words, make_host: Any, sampling: Sampling
) -> None:
    host = make_host(sizes=(2,))
    given = GenerateWork(PARIS, (), 200, (END_OF_TURN,), sampling, constraint=Constraint(json_schema=SCHEMA))
    (chunk,) = model.begin(given, host)
    assert chunk.end == "eos"
    answer = json.loads(words(chunk.units))
    assert set(answer) == {"city", "number"}
    assert isinstance(answer["number"], int)
    assert sum(host.pulses) >= len(PARIS) + len(chunk.units)


def test_a_grammar_holds_over_characters_in_parts(model: Loaded, words: Words, make_host: Any) -> None:
    grammar = 'root ::= "🦊 " [0-9] "漢字" [a-c]'
    given = GenerateWork(PARIS, (), 60, (END_OF_TURN,), DRAWN, constraint=Constraint(grammar=grammar))
    (chunk,) = model.begin(given, make_host())
    text = words(chunk.units)
    assert (text[:2], text[2].isdigit(), text[3:5], text[5] in "abc", len(text)) == ("🦊 ", True, "漢字", True, 6)
    assert chunk.end == "eos"


def test_a_constraint_that_cannot_be_held_is_a_fault(model: Loaded, make_host: Any) -> None:
    bad = GenerateWork(PARIS, (), 20, (END_OF_TURN,), GREEDY, constraint=Constraint(grammar="root ::= (("))
    with pytest.raises(EngineFault, match="grammar"):
        next(model.begin(bad, make_host()))
    unknown = Constraint(json_schema={"type": "nonsense"})
    with pytest.raises(EngineFault, match="JSON schema"):
        list(model.begin(GenerateWork(STEAM, (), 20, (), GREEDY, constraint=unknown), make_host()))
    begun = GenerateWork(PARIS, (1,), 20, (END_OF_TURN,), GREEDY, constraint=Constraint(json_schema=SCHEMA))
    with pytest.raises(CannotContinue, match="grammar"):
        next(model.begin(begun, make_host()))
    sound = GenerateWork(PARIS, (), 2, (END_OF_TURN,), GREEDY)
    assert [len(chunk.units) for chunk in model.begin(sound, make_host())] == [2]
