"""llama.cpp with the real small model, against a bare server in a process of its own that is asked directly."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_llama import ask, packaged_model, serving

from core.errors import EngineFault, StopWork
from runners.engines.base import Chunk, GenerateWork, Loaded, LoadPlan, Ready, Sampling
from runners.engines.registry import engine_named

pytestmark = pytest.mark.model

# "user\nTell me about the history of the steam engine, in detail, and of the people who made it.\nassistant\n"
STEAM: tuple[int, ...] = (4093, 198, 31530, 549, 563, 260, 1463, 282, 260, 9403, 2327, 28, 281, 2202)
STEAM += (28, 284, 282, 260, 701, 617, 1135, 357, 30, 198, 520, 9531, 198)
# "The capital of France is"
PARIS = (504, 3575, 282, 4649, 314)
HI = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
LONG = (STEAM * 25)[:650]
END_OF_TURN = 2
CONTEXT = 1024
UNITS = 40

GREEDY = Sampling(temperature=0.0, seed=7)
DRAWN = Sampling(temperature=0.8, top_p=0.95, top_k=40, seed=7)
BOTH = pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])


@pytest.fixture(scope="module")
def model_file() -> Path:
    return packaged_model()


@pytest.fixture(scope="module")
def bare(model_file: Path) -> Iterator[str]:
    with serving(model_file, context=CONTEXT, slots=1) as url:
        yield url


@pytest.fixture(scope="module")
def model(model_file: Path) -> Iterator[Loaded]:
    loaded = engine_named("llamacpp").load(model_file, LoadPlan(context=CONTEXT))
    yield loaded
    loaded.close()


def bare_answer(
    bare: str, sampling: Sampling, prompt: tuple[int, ...], sizes: list[int], begun: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Calls in order, each for as many tokens as `sizes` says; one call is all there is to a greedy answer."""
    units: list[int] = list(begun)
    for size in sizes:
        body: dict[str, Any] = {"prompt": [*prompt, *units], "n_predict": size, "cache_prompt": bool(units)}
        body |= {"samplers": ["top_k", "top_p", "temperature"], "return_tokens": True}
        if sampling.temperature == 0:
            body |= {"temperature": 0}
        else:
            digest = hashlib.blake2b(f"{sampling.seed}:{len(units)}".encode(), digest_size=4).hexdigest()
            body |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
            body |= {"seed": int(digest, 16) % 2**31}
        units += ask(bare, "/completion", body)["tokens"]
    return tuple(units)


@pytest.fixture(scope="module")
def undisturbed(bare: str) -> dict[Sampling, tuple[int, ...]]:
    answers = {
        GREEDY: bare_answer(bare, GREEDY, STEAM, [UNITS]),
        DRAWN: bare_answer(bare, DRAWN, STEAM, [8] * (UNITS // 8)),
    }
    assert all(END_OF_TURN not in units and len(units) == UNITS for units in answers.values())
    return answers


def work(
    sampling: Sampling, prompt: tuple[int, ...] = STEAM, done: tuple[int, ...] = (), units: int = UNITS
) -> GenerateWork:
    return GenerateWork(prompt=prompt, done=done, max_units=units, eos=(END_OF_TURN,), sampling=sampling)


def units_of(chunks: list[Chunk]) -> tuple[int, ...]:
    return tuple(unit for chunk in chunks for unit in chunk.units)


@BOTH
def test_an_undisturbed_answer_is_that_of_a_bare_server(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any, sampling: Sampling
) -> None:
    host = make_host(sizes=(8,))
    chunks = list(model.begin(work(sampling), host))
    assert units_of(chunks) == undisturbed[sampling]
    assert [len(chunk.units) for chunk in chunks] == [8] * 5
    assert [chunk.end for chunk in chunks] == [None] * 4 + ["length"]
    # The prompt in one batch; the last unit has no successor and is never evaluated.
    assert host.pulses == [27] + [1] * (UNITS - 1)
    assert [call for call in host.calls if call[0] != "pulse"] == [
        ("threads", 1),
        *(("threads", 1), ("chunk_size", 0), ("ready", 27)),
        *(call for done in (8, 16, 24, 32) for call in (("threads", 1), ("chunk_size", done))),
    ]
    assert host.how == Ready("computed", 0, 27)
    assert host.calls[3:5] == [("pulse", 27), ("ready", 27)]


@pytest.mark.parametrize(
    ("sampling", "cut"),
    [*((GREEDY, cut) for cut in (1, 2, 8, 15, 30, 39)), *((DRAWN, cut) for cut in (8, 16, 24, 32))],
    ids=lambda given: given if isinstance(given, int) else "greedy" if given is GREEDY else "drawn",
)
def test_a_resume_goes_on_bit_for_bit(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any, sampling: Sampling, cut: int
) -> None:
    whole = undisturbed[sampling]
    # A drawn chunk has the seed of its first unit, so that its cuts are where chunks end.
    sizes = {1: (7, 8), 2: (6, 8)}.get(cut, (8,))
    host = make_host(sizes=sizes)
    chunks = list(model.begin(work(sampling, done=whole[:cut]), host))
    assert units_of(chunks) == whole[cut:]
    assert host.pulses == [27] + [1] * (UNITS - 1)
    assert host.how == Ready("recomputed", 0, 27 + cut - 1)


@pytest.mark.prove
@pytest.mark.parametrize(("sampling", "cut"), [(GREEDY, 0), (DRAWN, 8)], ids=["whole greedy", "resumed drawn"])
def test_a_prompt_of_many_batches_is_evaluated_in_them_also_on_a_resume(
    model: Loaded, bare: str, make_host: Any, sampling: Sampling, cut: int
) -> None:
    whole = bare_answer(bare, sampling, LONG, [8, 8])
    host = make_host(sizes=(8,))
    chunks = list(model.begin(work(sampling, LONG, whole[:cut], 16), host))
    assert units_of(chunks) == whole[cut:]
    assert host.pulses == [64] * 10 + [10] + [1] * 15


@BOTH
def test_chunks_of_one_stretch_are_those_of_many(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any, sampling: Sampling
) -> None:
    host = make_host(sizes=(8,))
    host.run_on = 19
    chunks = list(model.begin(work(sampling), host))
    assert units_of(chunks) == undisturbed[sampling]
    assert [len(chunk.units) for chunk in chunks] == [8] * 5
    assert [call for call in host.calls if call[0] == "chunk_size"] == [
        ("chunk_size", done) for done in (0, 8, 16, 24, 32)
    ]
    assert host.pulses == [27] + [1] * (UNITS - 1)


def test_what_ran_before_has_no_influence(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any
) -> None:
    def stop(count: int) -> None:
        if count == 12:
            raise StopWork("cancelled")

    stopped = make_host(sizes=(4,))
    stopped.at_pulse = stop
    stopped.run_on = 40
    got: list[Chunk] = []
    with pytest.raises(StopWork):
        got.extend(model.begin(work(GREEDY), stopped))
    assert units_of(got) == undisturbed[GREEDY][:8]
    left = model.begin(work(DRAWN), make_host(sizes=(8,)))
    assert next(left).units == undisturbed[DRAWN][:8]
    left.close()
    left.close()
    assert units_of(list(model.begin(work(DRAWN), make_host(sizes=(8,))))) == undisturbed[DRAWN]


def test_stopping_in_a_long_prompt_frees_the_slot(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any
) -> None:
    def stop(count: int) -> None:
        if count == 2:
            raise StopWork("cancelled")

    stopped = make_host()
    stopped.at_pulse = stop
    sequence = model.begin(work(GREEDY, LONG), stopped)
    with pytest.raises(EngineFault, match=r"All 1 slot\(s\) are taken"):
        model.begin(work(GREEDY), make_host())
    with pytest.raises(StopWork):
        next(sequence)
    assert stopped.pulses == [64, 64]
    assert units_of(list(model.begin(work(GREEDY), make_host()))) == undisturbed[GREEDY]


def emoji(bare: str) -> tuple[int, ...]:
    words = "user\nRepeat: 🦊🐦🌊 漢字かな 🦊🐦🌊 漢字かな\nassistant\n🦊🐦🌊 漢字かな 🦊🐦🌊"
    return tuple(ask(bare, "/tokenize", {"content": words})["tokens"])


@BOTH
@pytest.mark.parametrize("stretch", [0, 24])
def test_tokens_that_are_parts_of_characters_are_all_there(
    model: Loaded, bare: str, make_host: Any, sampling: Sampling, stretch: int
) -> None:
    prompt = emoji(bare)
    whole = bare_answer(bare, sampling, prompt, [24] if sampling is GREEDY else [2, 6, 8, 8])
    text = ask(bare, "/detokenize", {"tokens": list(whole)})["content"]
    assert any(ord(letter) > 0x3000 for letter in text), "choose another prompt"
    host = make_host(sizes=(2, 6, 8))
    host.run_on = stretch
    chunks = list(model.begin(work(sampling, prompt, units=24), host))
    assert units_of(chunks) == whole
    assert [len(chunk.units) for chunk in chunks] == [2, 6, 8, 8]
    host = make_host(sizes=(8,))
    assert units_of(list(model.begin(work(sampling, prompt, whole[:8], units=24), host))) == whole[8:]


@pytest.mark.parametrize("eos", [(END_OF_TURN,), ()], ids=["named", "not named"])
@pytest.mark.parametrize("stretch", [0, 60])
@pytest.mark.parametrize("size", [8, 11, 33])
def test_the_models_own_end_ends_the_answer_and_is_not_part_of_it(
    model: Loaded, bare: str, make_host: Any, eos: tuple[int, ...], stretch: int, size: int
) -> None:
    hi = tuple(ask(bare, "/tokenize", {"content": HI, "parse_special": True})["tokens"])
    whole = bare_answer(bare, GREEDY, hi, [60])
    assert whole[-1] == END_OF_TURN
    assert len(whole) == 33, "sizes are chosen for 32 units and an end"
    host = make_host(sizes=(size,))
    host.run_on = stretch
    chunks = list(model.begin(GenerateWork(hi, (), 60, eos, GREEDY), host))
    assert units_of(chunks) == whole[:-1]
    assert [chunk.end for chunk in chunks] == [None] * (len(chunks) - 1) + ["eos"]
    assert [len(chunk.units) for chunk in chunks] == {8: [8, 8, 8, 8, 0], 11: [11, 11, 10], 33: [32]}[size]


@pytest.mark.parametrize(("size", "lengths"), [(4, [2]), (2, [2, 0]), (1, [1, 1, 0])])
def test_any_id_may_be_an_end(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any, size: int, lengths: list[int]
) -> None:
    whole = undisturbed[GREEDY]
    assert whole[5] not in whole[:5], "choose another place"
    given = GenerateWork(STEAM, whole[:3], UNITS, (END_OF_TURN, whole[5]), GREEDY)
    chunks = list(model.begin(given, make_host(sizes=(size,))))
    assert units_of(chunks) == whole[3:5]
    assert [len(chunk.units) for chunk in chunks] == lengths
    assert [chunk.end for chunk in chunks] == [None] * (len(chunks) - 1) + ["eos"]


def test_nothing_is_evaluated_when_all_units_are_done(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any
) -> None:
    host = make_host()
    assert list(model.begin(work(GREEDY, done=undisturbed[GREEDY]), host)) == [Chunk((), "length")]
    assert host.calls == []


def test_a_top_k_of_zero_means_all_tokens_and_not_one(model: Loaded, make_host: Any) -> None:
    hot = [Sampling(temperature=50.0, top_k=0, seed=seed) for seed in range(6)]
    drawn = {units_of(list(model.begin(work(sampling, PARIS, units=1), make_host()))) for sampling in hot}
    assert len(drawn) > 1


def test_work_that_a_server_would_misunderstand_is_refused_before_it_starts(model: Loaded, make_host: Any) -> None:
    host = make_host()
    refused = {
        "no tokens": work(GREEDY, ()),
        f"context of {CONTEXT}": work(GREEDY, units=CONTEXT - len(STEAM) + 1),
        "id 49152 is outside": work(GREEDY, (1, 49152)),
        "id -1 is outside": work(GREEDY, (1,), done=(-1,)),
        "2 units are done": work(GREEDY, (1,), done=(4, 4), units=1),
    }
    for message, given in refused.items():
        with pytest.raises(EngineFault, match=message):
            model.begin(given, host)
    assert host.calls == []


def test_what_the_adaptor_costs_is_told(model: Loaded, bare: str, make_host: Any) -> None:
    began = time.monotonic()
    whole = bare_answer(bare, GREEDY, STEAM, [64])
    between = time.monotonic()
    host = make_host(sizes=(16,))
    host.run_on = 64
    assert units_of(list(model.begin(work(GREEDY, units=64), host))) == whole
    took = time.monotonic() - between
    print(f"64 greedy units: {between - began:.2f} s from a bare server, {took:.2f} s through the engine")
