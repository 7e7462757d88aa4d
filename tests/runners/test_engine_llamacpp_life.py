"""A model in llama.cpp from its load to its end: room, slots, keys, and what is no model."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_llama import ask, packaged_model

from core.errors import EngineFault
from runners.engines.base import Chunk, GenerateWork, Loaded, LoadPlan, Ready, Sampling
from runners.engines.registry import engine_named

pytestmark = pytest.mark.model

# "user\nTell me about the history of the steam engine, in detail, and of the people who made it.\nassistant\n"
STEAM: tuple[int, ...] = (4093, 198, 31530, 549, 563, 260, 1463, 282, 260, 9403, 2327, 28, 281, 2202)
STEAM += (28, 284, 282, 260, 701, 617, 1135, 357, 30, 198, 520, 9531, 198)
# "The capital of France is"
PARIS = (504, 3575, 282, 4649, 314)
END_OF_TURN = 2
CONTEXT = 1024
UNITS = 40

GREEDY = Sampling(temperature=0.0, seed=7)
DRAWN = Sampling(temperature=0.8, top_p=0.95, top_k=40, seed=7)


@pytest.fixture(scope="module")
def model_file() -> Path:
    return packaged_model()


@pytest.fixture(scope="module")
def model(model_file: Path) -> Iterator[Loaded]:
    loaded = engine_named("llamacpp").load(model_file, LoadPlan(context=CONTEXT))
    yield loaded
    loaded.close()


def work(
    sampling: Sampling, prompt: tuple[int, ...] = STEAM, done: tuple[int, ...] = (), units: int = UNITS
) -> GenerateWork:
    return GenerateWork(prompt=prompt, done=done, max_units=units, eos=(END_OF_TURN,), sampling=sampling)


def units_of(chunks: list[Chunk]) -> tuple[int, ...]:
    return tuple(unit for chunk in chunks for unit in chunk.units)


def test_the_last_place_of_the_context_is_usable(model_file: Path, make_host: Any) -> None:
    model = engine_named("llamacpp").load(model_file, LoadPlan(context=256))
    prompt = tuple(STEAM[index % len(STEAM)] for index in range(256 - 2))
    given = GenerateWork(prompt, (), 2, (), GREEDY)
    assert [len(chunk.units) for chunk in model.begin(given, make_host())] == [2]
    model.close()
    model.close()
    with pytest.raises(EngineFault, match="closed"):
        model.begin(given, make_host())


def test_many_answers_at_once_are_each_whole(model_file: Path, make_host: Any) -> None:
    model = engine_named("llamacpp").load(model_file, LoadPlan(context=256, slots=4, cells=512))
    wrong: list[str] = []

    def eight(first: int) -> None:
        for number in range(first, first + 8):
            prompt = (*STEAM[: 10 + number % 7], *PARIS)
            sampling = Sampling(temperature=0.0 if number % 2 else 0.8, seed=number)
            host = make_host(sizes=(2, 4))
            sequence = model.begin(GenerateWork(prompt, (), 6, (), sampling), host)
            try:
                if number % 8 == 5:
                    next(sequence)
                    continue
                chunks = list(sequence)
            finally:
                sequence.close()
            ended = chunks[-1].end == "eos"
            if not ended and [len(chunk.units) for chunk in chunks] != [2, 4]:
                wrong.append(f"{number}: {chunks}")
            if sum(host.pulses) < len(prompt) + len(units_of(chunks)) - 1 or host.how != Ready(
                "computed", 0, len(prompt)
            ):
                wrong.append(f"{number}: {host.calls}")

    threads = [threading.Thread(target=eight, args=(first,)) for first in (0, 8, 16, 24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)
    held = [model.begin(work(GREEDY, PARIS, units=2), make_host()) for _ in range(4)]
    assert [len(next(sequence).units) for sequence in held] == [2] * 4
    model.close()


def test_a_model_that_is_closed_under_its_sequences_ends_them(model_file: Path, make_host: Any) -> None:
    model = engine_named("llamacpp").load(model_file, LoadPlan(context=CONTEXT, slots=2))
    computing = threading.Event()
    ended: list[str] = []

    def compute(sampling: Sampling) -> None:
        host = make_host(sizes=(4,))
        host.run_on = 900
        try:
            for _ in model.begin(work(sampling, units=900), host):
                computing.set()
        except EngineFault as fault:
            ended.append(fault.detail)

    threads = [threading.Thread(target=compute, args=(sampling,)) for sampling in (GREEDY, DRAWN)]
    for thread in threads:
        thread.start()
    assert computing.wait(300)
    model.close()
    for thread in threads:
        thread.join(300)
    assert len(ended) == 2, ended


LOADING = """
import json, os, sys
from pathlib import Path
from core.errors import EngineFault
from runners.engines.base import LoadPlan
from runners.engines.registry import engine_named
try:
    engine_named("llamacpp").load(Path(sys.argv[1]), LoadPlan(64))
except EngineFault as fault:
    print(json.dumps([fault.detail, type(fault.__cause__).__name__, os.environ["GGML_NO_BACKTRACE"]]))
"""


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_that_does_not_load_is_an_engine_fault_with_cause_and_remedy(
    model_file: Path, tmp_path: Path, exists: bool
) -> None:
    path = tmp_path / "letter.gguf"
    if exists:
        path.write_text("Dear model,")
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    detail, cause, quiet = json.loads(done.stdout)
    assert str(path) in detail
    assert "check that the file is whole" in detail
    assert (cause, quiet) == ("RuntimeError", "1")


def test_nobody_without_the_key_may_use_the_server_in_this_process(model: Loaded) -> None:
    at = model._server.at.shown  # type: ignore[attr-defined]
    assert at.startswith("http://127.0.0.1:")
    with pytest.raises(OSError, match="401"):
        ask(at, "/completion", {"prompt": [1], "n_predict": 1}, key="guessed")
    with pytest.raises(OSError, match="401"):
        ask(at, "/slots")
