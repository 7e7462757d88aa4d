"""Paths by name, what a path tells, and the whole measurement with real engines in processes of their own."""

import importlib.util
import json
import math
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.contract import PathFacts
from core.equivalence import END, divergence
from core.errors import EngineFault, Malformed
from runners import equivalence
from runners.engines.base import GenerateWork, LoadPlan, Said, Sampling
from runners.engines.registry import engine_named
from runners.measuring import measured
from runners.pathspec import PathSpec, parse
from runners.prober import Job
from runners.tells import TOLD, NativeTells, OneToken, ServerTells, Tells, likeliest, told_place
from store import proofs
from store.database import Paths
from store.models.catalog import NULL_ENTRY, Catalog, load_prompt_side
from store.models.probes import PROBES, AskedPrompt, asked
from store.models.template import Message
from store.settings import Settings, Upstream
from store.writer import Writer

UPSTREAMS = (Upstream("box", "smollm2-135m", url="http://127.0.0.1:8000"),)
KNOWN = ("null", "smollm2-135m", "tiny")


def read(text: str, model: str | None = None) -> PathSpec:
    return parse(text, model=model, known=KNOWN, upstreams=UPSTREAMS)


# ---- paths by name ----


def test_an_engine_computes_the_model_asked_about() -> None:
    spec = read("ctransformers")
    assert (spec.engine, spec.model, spec.slots, spec.kind) == ("ctransformers", "smollm2-135m", 1, "host")
    assert read("ctransformers", "tiny").model == "tiny"
    assert read("null").model == "null"


def test_a_model_is_computed_by_its_own_engine() -> None:
    assert (read("tiny").model, read("tiny").engine) == ("tiny", "")
    assert read("tiny:slots=3").slots == 3


def test_options() -> None:
    spec = read("null:slots=4,layers=12,device=GPU-7f")
    assert (spec.slots, spec.layers, spec.kind) == (4, 12, "GPU-7f")


@pytest.mark.parametrize("text", ["llamacpp=http://127.0.0.1:8080/", "llamacpp:slots=2,server=http://127.0.0.1:8080"])
def test_a_server_that_runs_already(text: str) -> None:
    spec = read(text)
    assert (spec.engine, spec.server, spec.kind) == ("llamacpp", "http://127.0.0.1:8080", "host")
    assert spec.slots == (2 if "slots" in text else 1)


def test_an_upstream_is_of_the_settings() -> None:
    spec = read("upstream:box")
    assert (spec.model, spec.kind, spec.upstream) == ("smollm2-135m", "upstream:box", UPSTREAMS[0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vllm", "'vllm' names no path.*ctransformers"),
        ("", "names no path"),
        ("null:slots", "no option"),
        ("null:speed=3", "'speed' is no option"),
        ("null:slots=0", "slots=0 is out of range.*1 to 64"),
        ("null:slots=٣", "out of range"),
        ("null:layers=-1", "out of range"),
        ("null=http://127.0.0.1:1", "has no server of its own"),
        ("llamacpp=127.0.0.1:8080", "is no address"),
        ("upstream:nobody", "no upstream 'nobody'.*box"),
    ],
)
def test_what_is_no_path_is_refused_with_what_would_be(text: str, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read(text)


def test_an_upstream_of_another_model_is_none_of_this_one() -> None:
    with pytest.raises(Malformed, match="no upstream 'box' for tiny"):
        read("upstream:box", "tiny")


# ---- what a path tells ----


def test_the_likeliest_tokens_by_hand() -> None:
    # Shares 1, 2 and 5 of 8, in nats, each shifted by the same 100.
    told = likeliest([math.log(share) + 100 for share in (1.0, 2.0, 5.0)])
    assert {token: round(math.exp(log), 9) for token, log in told.items()} == {0: 0.125, 1: 0.25, 2: 0.625}
    assert list(told) == [2, 1, 0]
    assert len(likeliest([0.0] * (TOLD + 9))) == TOLD


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_are_no_logits_is_a_fault(bad: float) -> None:
    with pytest.raises(EngineFault, match="no usable logits"):
        likeliest([bad, bad])


def test_an_engine_that_tells_nothing_is_asked_for_one_token(make_host: Any) -> None:
    loaded = engine_named("null").load(Path(), LoadPlan(context=256))
    prompt = tuple(b"[[emit=no]]")
    one = OneToken(loaded, make_host())
    assert [one.place(prompt, done, (256,), Said()) for done in ((), (110,), (110, 111))] == [
        msgspec.convert({"top": top}, type(one.place(prompt, (), (256,), Said()))) for top in (110, 111, END)
    ]


@pytest.mark.model
def test_what_the_embedded_engine_tells_is_what_its_logits_say(smollm2_file: Path, make_host: Any) -> None:
    """Beside it a second instance of the package, asked by a loop of its own."""
    from ctransformers import LLM
    from ctransformers.llm import Config

    prompt = (504, 3575, 282, 4649, 314)  # "The capital of France is"
    engine = engine_named("ctransformers")
    loaded = engine.load(smollm2_file, LoadPlan(context=128))
    answer = [
        unit
        for chunk in loaded.begin(GenerateWork(prompt, (), 6, (2,), Sampling()), make_host())
        for unit in chunk.units
    ]
    bare = LLM(
        str(smollm2_file),
        model_type="llama",
        config=Config(context_length=128, threads=1),
        lib=engine.version.partition("+")[2],
    )
    tells: Tells = NativeTells(loaded, make_host())
    bare.eval(list(prompt), batch_size=16, threads=1)
    for at, unit in enumerate(answer):
        logits = list(bare.logits)
        place = told_place(tells, prompt, tuple(answer[:at]), (2,))
        assert place.told is not None
        peak = max(logits)
        assert place.top == logits.index(peak) == unit
        whole = math.fsum(math.exp(one - peak) for one in logits)
        assert math.exp(place.told[unit]) == pytest.approx(1 / whole, rel=1e-6)
        assert 0.3 < sum(map(math.exp, place.told.values())) <= 1 + 1e-6
        bare.eval([unit], batch_size=16, threads=1)
    loaded.close()


# ---- one path in a process of its own ----


def job(paths: Paths, text: str, **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "engine": "null",
        "upstream": None,
        "entry": NULL_ENTRY,
        "file": "",
        "plan": {"context": 512},
        "prompts": (AskedPrompt("one", tuple(text.encode())),),
        "eos": (256,),
        "units": 8,
        "texts": None,
        "chunk_cap": 16,
        "cores": str(paths.run / "cores"),
        "reserve": 1,
        "result": "",
    }
    return Job(**(fields | changes))


def test_an_answer_and_its_places(empty: Paths) -> None:
    steps: list[int] = []
    found = measured(job(empty, "[[emit=yes]]"), "null", steps.append)
    assert found.build == "null/1"
    assert found.answers == ((121, 101, 115, END),)
    assert [place and place.top for place in found.places[0]] == [121, 101, 115, END]
    assert steps == [1, 2]


def test_along_a_given_text_it_tells_its_own_next_token(empty: Paths) -> None:
    found = measured(job(empty, "[[emit=yes]]", texts=((120, 101, END),)), "null", lambda _: None)
    assert [place and place.top for place in found.places[0]] == [121, 101, 115]


def test_a_path_that_dies_is_named_with_the_signal(empty: Paths) -> None:
    with pytest.raises(EngineFault, match="the path null was killed by SIGSEGV"):
        measured(job(empty, f"[[crash={signal.SIGSEGV.value}@3]]"), "null", lambda _: None)


def test_a_path_that_fails_is_told_in_its_own_words(empty: Paths) -> None:
    with pytest.raises(EngineFault, match=r"the path null failed: .* do not fit a context of 8 tokens"):
        measured(job(empty, "hello", plan={"context": 8}), "null", lambda _: None)
    with pytest.raises(EngineFault, match="works on 16 at once, not 17"):
        measured(job(empty, "hello", plan={"context": 64, "slots": 17}), "null", lambda _: None)


def test_a_path_that_hangs_is_ended(empty: Paths) -> None:
    with pytest.raises(EngineFault, match="did nothing for 3 s and was ended"):
        measured(job(empty, "[[hang@2]]"), "null", lambda _: None, silent_s=3.0)


# ---- the whole ----


def run(paths: Paths, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = equivalence.main([*arguments, "--data", str(paths.root)])
    return code, json.loads(capsys.readouterr().out)


def kept(paths: Paths, source: PathFacts, target: PathFacts) -> str | None:
    writer = Writer(paths)
    try:
        return writer.run(lambda tx: proofs.proof_of(tx, source, target))
    finally:
        writer.close()


def test_a_path_is_identical_to_itself_and_that_is_recorded(empty: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run(empty, capsys, "null", "null")
    assert code == equivalence.RECORDED
    assert (told["pair"], told["now"], told["recorded"]) == ("identical", "identical", True)
    assert told["totals"]["tokens"] == len(PROBES) * 48
    assert [one["name"] for one in told["prompts"]] == [probe.name for probe in PROBES]
    here = PathFacts("null/1", NULL_ENTRY.contract, "host")
    assert kept(empty, here, here) == "identical"


def test_several_at_once_are_faithful_at_best(empty: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run(empty, capsys, "null:slots=4", "null")
    assert (code, told["pair"], told["source"]["slots"]) == (equivalence.RECORDED, "faithful", 4)
    assert told["failover"]["auto"]
    assert not told["failover"]["identical"]


def test_too_little_is_told_and_not_kept(empty: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run(empty, capsys, "null", "null:device=GPU-1", "--prompts", "2")
    assert (code, told["recorded"]) == (equivalence.NOT_WELL, False)
    assert "only 96 tokens" in told["reasons"][0]
    facts = PathFacts("null/1", NULL_ENTRY.contract, "host")
    assert kept(empty, facts, msgspec.structs.replace(facts, kind="GPU-1")) is None


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("null", "nobody"), equivalence.USAGE, "names no path"),
        (("null", "null", "--prompts", "13"), equivalence.USAGE, "1 to 12 prompts"),
        (("null", "ctransformers"), equivalence.REJECTED, "there is no model 'smollm2-135m'"),
        (("null:slots=17", "null"), equivalence.NOT_WELL, "works on 16 at once"),
    ],
)
def test_what_cannot_be_measured_is_told(
    empty: Paths, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, why: str
) -> None:
    got, told = run(empty, capsys, *arguments)
    assert (got, why in told["error"]["detail"]) == (code, True), told


@pytest.fixture(scope="module")
def with_model(tmp_path_factory: pytest.TempPathFactory, smollm2_file: Path) -> Paths:
    """The small model, entered for the embedded engine."""
    paths = Paths(tmp_path_factory.mktemp("model") / "data").make()
    Catalog(paths.models).add_default(engine="ctransformers")
    return paths


@pytest.mark.model
@pytest.mark.prove
def test_one_real_build_is_identical_to_itself(with_model: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run(with_model, capsys, "ctransformers", "smollm2-135m", "--prompts", "5")
    assert (code, told["pair"], told["totals"]["free_same"]) == (equivalence.RECORDED, "identical", 5)
    assert (told["totals"]["agreement"], told["totals"]["divergence"]) == (1.0, 0.0)


@pytest.mark.model
def test_another_model_is_none_without_being_computed(with_model: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run(with_model, capsys, "ctransformers", "null")
    assert code == equivalence.REJECTED
    assert told["error"]["differ"] == ["tokenizer", "weights", "template", "quantization"]


@pytest.mark.model
@pytest.mark.prove
def test_one_contract_does_not_make_paths_alike(with_model: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run(with_model, capsys, "ctransformers", "null", "--model", "smollm2-135m", "--prompts", "5")
    assert (code, told["pair"], told["totals"]["agreed"]) == (equivalence.RECORDED, "none", 0)
    assert not told["failover"]["auto"]


@pytest.mark.model
@pytest.mark.prove
def test_the_two_real_engines_are_faithful_to_each_other(
    with_model: Paths, capsys: pytest.CaptureFixture[str], need: Any
) -> None:
    """The embedded engine computes a prepared copy, llama.cpp the source: one contract, three years apart."""
    if importlib.util.find_spec("xllamacpp") is None:
        need("xllamacpp", "pip install 'failsoft[llamacpp]'")
    code, told = run(with_model, capsys, "ctransformers", "llamacpp")
    assert (code, told["pair"], told["failover"]["auto"]) == (equivalence.RECORDED, "faithful", True)
    assert 0 < told["totals"]["divergence"] < 0.02
    assert told["totals"]["free_same"] < len(PROBES), "near ties fall one way here and the other way there"
    source = PathFacts(told["source"]["engine"], told["contract"], "host")
    assert kept(with_model, PathFacts(told["target"]["engine"], told["contract"], "host"), source) == "faithful"


@pytest.mark.model
def test_a_server_tells_what_another_engine_tells(with_model: Paths, make_host: Any, need: Any) -> None:
    """The same prompt on both: the same next tokens, the same end, and nearly the same distributions."""
    if importlib.util.find_spec("xllamacpp") is None:
        need("xllamacpp", "pip install 'failsoft[llamacpp]'")
    entry = Catalog(with_model.models).get("smollm2-135m")
    side = load_prompt_side(entry)
    prompt = side.chat_ids([Message("user", "What is the capital of France? Answer with one word.")])
    plan = LoadPlan(context=256)
    embedded = engine_named("ctransformers").load(Path(entry.prepared), plan)
    served = engine_named("llamacpp").load(Path(entry.source), plan)
    one, two = NativeTells(embedded, make_host()), ServerTells(served._server.at, 0)  # type: ignore[attr-defined]
    done: list[int] = []
    while len(done) < 40:
        here, there = (told_place(tells, prompt, tuple(done), side.eos) for tells in (one, two))
        assert here.told is not None
        assert there.told is not None
        assert len(there.told) == TOLD
        apart = divergence(here.told, there.told)
        assert apart is not None
        assert apart < 0.05
        assert here.top == there.top
        if here.top == END:
            break
        done.append(here.top)
    assert b"Paris" in b"".join(map(side.piece, done))
    assert here.top == END, "both end the answer in the same place"
    embedded.close()
    served.close()


@pytest.mark.model
def test_the_prompts_are_many_kinds_and_fit(with_model: Paths) -> None:
    prompts = asked(Catalog(with_model.models).get("smollm2-135m"), len(PROBES))
    assert len({prompt.name for prompt in prompts}) == len(prompts) == 12
    assert sum(prompt.prompt is not None for prompt in prompts) == 2
    assert max(len(prompt.ids) for prompt in prompts) + equivalence.MOST_TOKENS <= Settings().context
