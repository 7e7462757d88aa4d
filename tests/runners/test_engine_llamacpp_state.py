"""Saved states of llama.cpp: taken up by another process, replayed from, and distrusted when they are not as told."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bare_llama import packaged_model

from core.errors import EngineFault, RestoreFailed
from runners.engines.base import GenerateWork, Loaded, LoadPlan, Ready, Sampling, Snapshot
from runners.engines.kvstate import kv_format, why_not
from runners.engines.registry import engine_named

# "user\nTell me about the history of the steam engine, in detail, and of the people who made it.\nassistant\n"
STEAM: tuple[int, ...] = (4093, 198, 31530, 549, 563, 260, 1463, 282, 260, 9403, 2327, 28, 281, 2202)
STEAM += (28, 284, 282, 260, 701, 617, 1135, 357, 30, 198, 520, 9531, 198)
PROMPT = (STEAM * 8)[:200]
END_OF_TURN = 2
UNITS = 32
CONTRACT = hashlib.sha256(b"smollm2").hexdigest()

GREEDY = Sampling(temperature=0.0, seed=7)
DRAWN = Sampling(temperature=0.8, top_p=0.95, top_k=40, seed=7)
BOTH = pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])


@pytest.fixture(scope="module")
def model_file() -> Path:
    return packaged_model()


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> LoadPlan:
    return LoadPlan(context=512, snapshots=tmp_path_factory.mktemp("snapshots"), contract=CONTRACT)


@pytest.fixture(scope="module")
def model(model_file: Path, plan: LoadPlan) -> Iterator[Loaded]:
    loaded = engine_named("llamacpp").load(model_file, plan)
    yield loaded
    loaded.close()


def work(
    sampling: Sampling, done: tuple[int, ...] = (), snapshot: Snapshot | None = None, prompt: tuple[int, ...] = PROMPT
) -> GenerateWork:
    return GenerateWork(prompt, done, UNITS, (END_OF_TURN,), sampling, snapshot)


class Saved(msgspec.Struct):
    """An undisturbed answer, and the state that was saved after its first 16 units."""

    units: tuple[int, ...]
    snapshot: Snapshot


@pytest.fixture(scope="module")
def saved(model: Loaded, plan: LoadPlan) -> dict[Sampling, Saved]:
    from tests.runners.conftest import RecordingHost

    assert plan.snapshots is not None
    made = {}
    for name, sampling in (("greedy", GREEDY), ("drawn", DRAWN)):
        sequence = model.begin(work(sampling), RecordingHost(sizes=(8,)))
        units = [*next(sequence).units, *next(sequence).units]
        into = plan.snapshots / f"{name}.kv"
        held = model.save(sequence, into)
        # Everything but the newest unit, whose successor is not drawn yet.
        assert held == len(PROMPT) + 16 - 1
        for chunk in sequence:
            units += chunk.units
        made[sampling] = Saved(tuple(units), Snapshot(into, held))
    return made


ELSEWHERE = """
import json, sys
from pathlib import Path
import msgspec
from runners.engines.base import GenerateWork, LoadPlan
from runners.engines.registry import engine_named

class Host:
    pulses = 0
    def pulse(self, units): self.pulses += units
    def threads(self): return 1
    def chunk_size(self, done): return 8
    def stretch(self, done): return 8
    def ready(self, how): self.how = how

work = msgspec.json.decode(sys.stdin.buffer.read(), type=GenerateWork, dec_hook=lambda kind, given: kind(given))
loaded = engine_named("llamacpp").load(Path(sys.argv[1]), LoadPlan(context=512, snapshots=Path(sys.argv[2])))
host = Host()
units = [unit for chunk in loaded.begin(work, host) for unit in chunk.units]
print(json.dumps([units, host.pulses, [host.how.way, host.how.restored, host.how.computed]]))
loaded.close()
"""


def elsewhere(model_file: Path, directory: Path, given: GenerateWork) -> Any:
    command = [sys.executable, "-c", ELSEWHERE, str(model_file), str(directory)]
    body = msgspec.json.encode(given, enc_hook=str)
    done = subprocess.run(command, input=body, capture_output=True, check=True, timeout=300)
    return json.loads(done.stdout)


@pytest.mark.model
@BOTH
@pytest.mark.parametrize("cut", [16, 24])
def test_another_process_takes_a_saved_state_up_and_goes_on_bit_for_bit(
    model_file: Path, saved: dict[Sampling, Saved], tmp_path: Path, sampling: Sampling, cut: int
) -> None:
    kept = saved[sampling]
    units, pulses, how = elsewhere(model_file, tmp_path, work(sampling, kept.units[:cut], kept.snapshot))
    assert tuple(units) == kept.units[cut:]
    # Replayed: what became durable after the save. Then the newest unit, and the new ones but the last.
    assert how == ["snapshot", len(PROMPT) + 15, cut - 16]
    assert pulses == UNITS - 1 - 15
    assert list(tmp_path.iterdir()) == []


@pytest.mark.model
@BOTH
def test_with_a_saved_state_or_without_the_answer_is_the_same(
    model: Loaded, saved: dict[Sampling, Saved], make_host: Any, sampling: Sampling
) -> None:
    kept = saved[sampling]
    for snapshot, how in (
        (kept.snapshot, Ready("snapshot", len(PROMPT) + 15, 8)),
        (None, Ready("recomputed", 0, len(PROMPT) + 23)),
    ):
        host = make_host(sizes=(8,))
        chunks = list(model.begin(work(sampling, kept.units[:24], snapshot), host))
        assert tuple(unit for chunk in chunks for unit in chunk.units) == kept.units[24:]
        assert host.how == how


@pytest.mark.model
def test_a_state_that_is_not_as_told_is_not_gone_on_with(
    model: Loaded, plan: LoadPlan, saved: dict[Sampling, Saved], make_host: Any
) -> None:
    assert plan.snapshots is not None
    kept = saved[GREEDY]
    path, tokens = kept.snapshot.path, kept.snapshot.tokens
    other = (5, *PROMPT[1:])
    wrong = {
        "came back with 215 tokens": work(GREEDY, kept.units[:16], Snapshot(path, tokens - 1)),
        "could not be taken up": work(GREEDY, kept.units[:16], Snapshot(plan.snapshots / "gone.kv", tokens)),
        "found 0 tokens": work(GREEDY, kept.units[:16], kept.snapshot, prompt=other),
        "found 201 tokens": work(GREEDY, (kept.units[0], 9, *kept.units[2:24]), kept.snapshot),
    }
    for words, given in wrong.items():
        host = make_host(sizes=(8,))
        with pytest.raises(RestoreFailed, match=words):
            next(model.begin(given, host))
        assert host.how is None or host.how.computed == 0
    with pytest.raises(RestoreFailed, match="cannot be brought"):
        next(model.begin(work(GREEDY, kept.units[:16], Snapshot(Path("/nowhere/x.kv"), tokens)), make_host()))
    useless = work(GREEDY, kept.units[:15], kept.snapshot)
    with pytest.raises(EngineFault, match="215 tokens is no use here; 200 to 214 would be"):
        next(model.begin(useless, make_host()))


@pytest.mark.model
def test_a_state_is_saved_only_between_stretches_and_only_in_its_directory(
    model: Loaded, plan: LoadPlan, tmp_path: Path, make_host: Any
) -> None:
    assert plan.snapshots is not None
    host = make_host(sizes=(4,))
    host.run_on = 8
    sequence = model.begin(work(GREEDY), host)
    into = plan.snapshots / "between.kv"
    with pytest.raises(EngineFault, match="between two stretches"):
        model.save(sequence, into)
    next(sequence)
    with pytest.raises(EngineFault, match="between two stretches"):
        model.save(sequence, into)
    next(sequence)
    with pytest.raises(EngineFault, match="nowhere else"):
        model.save(sequence, tmp_path / "between.kv")
    assert not into.exists()
    assert model.save(sequence, into) == len(PROMPT) + 7
    assert into.stat().st_size > 1000
    assert len(next(sequence).units) == 4
    sequence.close()
    with pytest.raises(EngineFault, match="between two stretches"):
        model.save(sequence, into)


@pytest.mark.model
def test_the_format_says_what_must_agree(model: Loaded, model_file: Path, make_host: Any) -> None:
    words = model.kv_format
    assert CONTRACT[:16] in words
    assert engine_named("llamacpp").version in words
    for fact in ("k=f16", "v=f16", "flash", "unified", "context 512"):
        assert fact in words
    unplanned = engine_named("llamacpp").load(model_file, LoadPlan(context=256))
    try:
        assert unplanned.kv_format == ""
        sequence = unplanned.begin(GenerateWork((1,), (), 2, (), GREEDY), make_host())
        with pytest.raises(EngineFault, match="cannot be saved here"):
            unplanned.save(sequence, Path("x"))
        sequence.close()
    finally:
        unplanned.close()


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general.architecture": "llama"}, ""),
        ({"general.architecture": "qwen3"}, ""),
        ({"general.architecture": "llama", "llama.attention.sliding_window": 4096}, "window"),
        ({"general.architecture": "gemma3"}, "window"),
        ({"general.architecture": "gpt-oss"}, "window"),
        ({"general.architecture": "mamba2"}, "running state"),
        ({"general.architecture": "qwen3next"}, "running state"),
        ({"general.architecture": "qwen2vl"}, "pictures"),
        ({"general.architecture": "newest"}, "not known"),
        ({}, "not known"),
    ],
)
def test_only_what_is_known_to_come_back_is_saved(metadata: dict[str, Any], reason: str) -> None:
    assert reason in why_not(metadata)
    assert bool(why_not(metadata)) == bool(reason)
    assert bool(kv_format(build="1", contract="c" * 64, context=1, metadata=metadata)) == (not reason)


def test_scaled_positions_are_another_format() -> None:
    plain: dict[str, Any] = {"general.architecture": "llama"}
    scaled = plain | {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    formats = {kv_format(build="1", contract="c", context=8, metadata=metadata) for metadata in (plain, scaled)}
    assert len(formats) == 2
