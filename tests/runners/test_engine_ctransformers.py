"""The embedded engine with the real small model. Prompts are ids of its tokenizer, as admission would store them."""

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.errors import EngineFault, StopWork
from runners.engines.base import Chunk, GenerateWork, Loaded, LoadPlan, Sampling
from runners.engines.registry import engine_named

pytestmark = pytest.mark.model

# "user\nTell me about the history of the steam engine, in detail, and of the people who made it.\nassistant\n"
STEAM: tuple[int, ...] = (4093, 198, 31530, 549, 563, 260, 1463, 282, 260, 9403, 2327, 28, 281, 2202)
STEAM += (28, 284, 282, 260, 701, 617, 1135, 357, 30, 198, 520, 9531, 198)
# "The capital of France is"
PARIS = (504, 3575, 282, 4649, 314)
END_OF_TURN = 2
CONTEXT = 256
UNITS = 40

GREEDY = Sampling(temperature=0.0, seed=7)
DRAWN = Sampling(temperature=0.8, top_p=0.95, top_k=40, seed=7)
BOTH = pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])


@pytest.fixture(scope="module")
def model(smollm2_file: Path) -> Iterator[Loaded]:
    loaded = engine_named("ctransformers").load(smollm2_file, LoadPlan(context=CONTEXT))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def undisturbed(model: Loaded) -> dict[Sampling, tuple[int, ...]]:
    """Answers by a loop of its own over the native calls: no engine, no chunks, no resume."""
    native: Any = model._native  # type: ignore[attr-defined]
    answers = {}
    for sampling in (GREEDY, DRAWN):
        native._context.clear()
        native.eval(STEAM[:16], batch_size=512, threads=1)
        native.eval(STEAM[16:], batch_size=512, threads=1)
        units: list[int] = []
        while len(units) < UNITS:
            if sampling is GREEDY:
                logits = list(native.logits)
                token = logits.index(max(logits))
            else:
                digest = hashlib.blake2b(f"7:{len(units)}".encode(), digest_size=4).hexdigest()
                token = native.sample(
                    top_k=40,
                    top_p=0.95,
                    temperature=0.8,
                    repetition_penalty=1.0,
                    last_n_tokens=64,
                    seed=int(digest, 16) % 2**31,
                )
            assert token != END_OF_TURN, "the prompt was chosen so that its answer is longer"
            units.append(token)
            native.eval([token], batch_size=512, threads=1)
        answers[sampling] = tuple(units)
    return answers


def work(
    sampling: Sampling, prompt: tuple[int, ...] = STEAM, done: tuple[int, ...] = (), units: int = UNITS
) -> GenerateWork:
    return GenerateWork(prompt=prompt, done=done, max_units=units, eos=(END_OF_TURN,), sampling=sampling)


def units_of(chunks: list[Chunk]) -> tuple[int, ...]:
    return tuple(unit for chunk in chunks for unit in chunk.units)


@BOTH
def test_an_undisturbed_answer_is_that_of_the_native_calls_in_order(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any, sampling: Sampling
) -> None:
    host = make_host(sizes=(2, 4, 8, 16))
    chunks = list(model.begin(work(sampling), host))
    assert units_of(chunks) == undisturbed[sampling]
    assert [len(chunk.units) for chunk in chunks] == [2, 4, 8, 16, 10]
    assert [chunk.end for chunk in chunks] == [None, None, None, None, "length"]
    # The prompt in batches of 16; the last unit has no successor and is never evaluated.
    assert host.pulses == [16, 11] + [1] * (UNITS - 1)
    assert [call for call in host.calls if call[0] != "pulse"] == [
        ("threads", 1),
        ("ready", 27),
        *(call for done in (0, 2, 6, 14, 30) for call in (("threads", 1), ("chunk_size", done))),
    ]
    assert host.calls[:4] == [("threads", 1), ("pulse", 16), ("pulse", 11), ("ready", 27)]


@BOTH
@pytest.mark.parametrize("cut", [1, 2, 15, 30, 39])
def test_a_resume_goes_on_bit_for_bit(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any, sampling: Sampling, cut: int
) -> None:
    whole = undisturbed[sampling]
    host = make_host()
    chunks = list(model.begin(work(sampling, done=whole[:cut]), host))
    assert units_of(chunks) == whole[cut:]
    assert host.pulses == [16, 11] + [1] * (UNITS - 1)


def test_what_ran_before_has_no_influence(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any
) -> None:
    def stop(count: int) -> None:
        if count == 9:
            raise StopWork("cancelled")

    first = units_of(list(model.begin(work(DRAWN, PARIS, units=12), make_host())))
    stopped = make_host(sizes=(4,))
    stopped.at_pulse = stop
    got: list[Chunk] = []
    with pytest.raises(StopWork):
        got.extend(model.begin(work(DRAWN), stopped))
    assert units_of(got) == undisturbed[DRAWN][:4]
    assert units_of(list(model.begin(work(DRAWN, PARIS, units=12), make_host()))) == first
    assert len(first) > 4


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_the_number_of_threads_changes_nothing(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any
) -> None:
    host = make_host(threads=2, sizes=(4,))
    chunks = list(model.begin(work(DRAWN, units=12), host))
    assert units_of(chunks) == undisturbed[DRAWN][:12]
    assert ("threads", 2) in host.calls


@pytest.mark.parametrize(("size", "lengths"), [(4, [2]), (2, [2, 0]), (1, [1, 1, 0])])
def test_an_end_of_turn_ends_the_answer_and_is_not_part_of_it(
    model: Loaded, undisturbed: dict[Sampling, tuple[int, ...]], make_host: Any, size: int, lengths: list[int]
) -> None:
    whole = undisturbed[GREEDY]
    assert whole[5] not in whole[:5], "choose another place"
    # Any id may be declared an end, so unit 5 is: within a chunk, and at the start of one.
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


def test_work_that_native_code_would_not_survive_is_refused_before_it_starts(model: Loaded, make_host: Any) -> None:
    host = make_host()
    refused = {
        "no tokens": work(GREEDY, ()),
        "context of 256": work(GREEDY, units=CONTEXT - len(STEAM) + 1),
        "id 49152 is outside": work(GREEDY, (1, 49152)),
        "id -1 is outside": work(GREEDY, (1,), done=(-1,)),
        "2 units are done": work(GREEDY, (1,), done=(4, 4), units=1),
    }
    for message, given in refused.items():
        with pytest.raises(EngineFault, match=message):
            model.begin(given, host)
    assert host.calls == []


def test_the_last_place_of_the_context_is_usable(model: Loaded, make_host: Any) -> None:
    prompt = tuple(STEAM[index % len(STEAM)] for index in range(CONTEXT - 2))
    given = GenerateWork(prompt, (), 2, (), GREEDY)
    assert [len(chunk.units) for chunk in model.begin(given, make_host())] == [2]


def test_garbage_from_a_device_is_a_fault_and_not_an_answer(model: Loaded, make_host: Any) -> None:
    native: Any = model._native  # type: ignore[attr-defined]

    def corrupt(count: int) -> None:
        if count == 3:
            logits = native.logits
            for index in range(len(logits)):
                logits[index] = math.nan

    host = make_host(sizes=(1,))
    host.at_pulse = corrupt
    chunks = model.begin(work(GREEDY, PARIS), host)
    assert len(next(chunks).units) == 1
    next(chunks)
    with pytest.raises(EngineFault, match="no usable logits for unit 2"):
        next(chunks)


def test_a_sequence_that_was_overtaken_does_not_go_on_in_another_ones_state(model: Loaded, make_host: Any) -> None:
    older = model.begin(work(GREEDY), make_host(sizes=(2,)))
    next(older)
    newer = model.begin(work(GREEDY, PARIS, units=4), make_host(sizes=(2,)))
    next(newer)
    with pytest.raises(EngineFault, match="overtaken"):
        next(older)
    assert len(next(newer).units) == 2


def test_a_closed_model_refuses_work(smollm2_file: Path, make_host: Any) -> None:
    loaded = engine_named("ctransformers").load(smollm2_file, LoadPlan(context=64))
    left_open = loaded.begin(work(GREEDY, PARIS, units=4), make_host(sizes=(1,)))
    next(left_open)
    loaded.close()
    with pytest.raises(EngineFault, match="closed"):
        next(left_open)
    with pytest.raises(EngineFault, match="closed"):
        loaded.begin(work(GREEDY, PARIS, units=4), make_host())


LOADING = """
import json, sys
from pathlib import Path
from core.errors import EngineFault
from runners.engines.base import LoadPlan
from runners.engines.registry import engine_named
try:
    engine_named("ctransformers").load(Path(sys.argv[1]), LoadPlan(64))
except EngineFault as fault:
    print(json.dumps([fault.detail, type(fault.__cause__).__name__]))
"""


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_that_does_not_load_is_an_engine_fault_with_cause_and_remedy(
    smollm2_file: Path, tmp_path: Path, exists: bool
) -> None:
    path = tmp_path / "letter.gguf"
    if exists:
        path.write_text("Dear model,")
    # Native code may end a process over a bad file, so another one does this.
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    detail, cause = json.loads(done.stdout)
    assert cause == ("RuntimeError" if exists else "ValueError")
    assert f"failsoft models prepare {path}" in detail
