"""A llama-server that is a command or an address: taken when it is what was planned, and never believed blindly."""

import contextlib
import http.server
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bare_llama import ask, packaged_model, serving

from core.errors import EngineFault
from runners.engines.base import GenerateWork, Loaded, LoadPlan, Sampling, Snapshot
from runners.engines.registry import engine_named
from store.models.gguf import read_header
from store.models.gguf_write import write_gguf

BARE = Path(__file__).resolve().parents[1] / "support" / "bare_llama.py"
# "The capital of France is"
PARIS = (504, 3575, 282, 4649, 314)
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def model_file() -> Path:
    return packaged_model()


@pytest.fixture(scope="module")
def bare(model_file: Path) -> Iterator[str]:
    """A server with two slots of 512 tokens together, and a key."""
    with serving(model_file, context=512, slots=2, key="open") as url:
        yield url


@pytest.fixture(scope="module")
def answer(bare: str) -> tuple[int, ...]:
    body = {"prompt": list(PARIS), "n_predict": 24, "temperature": 0, "return_tokens": True, "cache_prompt": False}
    return tuple(ask(bare, "/completion", body, key="open")["tokens"])


def work(units: int = 24, done: tuple[int, ...] = ()) -> GenerateWork:
    return GenerateWork(PARIS, done, units, (), GREEDY)


def units_of(loaded: Loaded, given: GenerateWork, host: Any) -> tuple[int, ...]:
    return tuple(unit for chunk in loaded.begin(given, host) for unit in chunk.units)


def with_key(url: str) -> str:
    return url.replace("http://", "http://:open@")


@pytest.mark.model
def test_a_server_at_an_address_answers_as_it_does_when_asked_directly(
    model_file: Path, bare: str, answer: tuple[int, ...], make_host: Any, tmp_path: Path
) -> None:
    plan = LoadPlan(context=256, slots=2, server=with_key(bare), snapshots=tmp_path)
    loaded = engine_named("llamacpp").load(model_file, plan)
    # It empties no slots, so a second answer in the same one tells whether the first is still there.
    for cut in (0, 0, 5):
        assert units_of(loaded, work(done=answer[:cut]), make_host(sizes=(4,))) == answer[cut:]
    assert loaded.kv_format == ""
    kept = GenerateWork(PARIS, answer[:5], 24, (), GREEDY, Snapshot(tmp_path / "x", 8))
    with pytest.raises(EngineFault, match="takes no saved states"):
        next(loaded.begin(kept, make_host()))
    loaded.close()
    assert ask(bare, "/health") == {"status": "ok"}


@pytest.mark.model
@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (LoadPlan(context=256, slots=3), r"2 slot\(s\) and 3 are planned"),
        (LoadPlan(context=1024), "context of 512 tokens and 1024 are planned"),
    ],
)
def test_a_server_that_is_less_than_planned_is_refused(model_file: Path, bare: str, plan: LoadPlan, words: str) -> None:
    with pytest.raises(EngineFault, match=words):
        engine_named("llamacpp").load(model_file, msgspec.structs.replace(plan, server=with_key(bare)))


@pytest.mark.model
def test_a_server_with_another_model_is_refused(model_file: Path, bare: str, tmp_path: Path) -> None:
    header = read_header(model_file)
    metadata = header.metadata | {"tokenizer.ggml.tokens": header.texts("tokenizer.ggml.tokens")[:1000]}
    other = tmp_path / "other.gguf"
    with other.open("wb") as file:
        write_gguf(file, version=3, metadata=metadata, types=header.types, tensors=())
    with pytest.raises(EngineFault, match=r"another model: it has 49152 words .* other\.gguf has 1000"):
        engine_named("llamacpp").load(other, LoadPlan(context=256, server=with_key(bare)))


@pytest.mark.model
def test_a_server_that_wants_another_key_says_where_it_belongs(model_file: Path, bare: str) -> None:
    with pytest.raises(EngineFault, match="Put its key into the address") as raised:
        engine_named("llamacpp").load(model_file, LoadPlan(context=256, server=bare.replace("//", "//:secret@")))
    assert "secret" not in str(raised.value)


def test_an_address_where_nobody_is_and_one_that_is_none_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("runners.engines.llamaserver._NOBODY_S", 0.5)
    with socket.socket() as taken:
        # Bound and not listened on: nobody else gets the port, and nobody answers.
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(EngineFault, match=f"Nothing answers at http://127.0.0.1:{port}"):
            engine_named("llamacpp").load(tmp_path, LoadPlan(context=8, server=f"http://127.0.0.1:{port}"))
    with pytest.raises(EngineFault, match="no address"):
        engine_named("llamacpp").load(tmp_path, LoadPlan(context=8, server="http://127.0.0.1:many"))


@pytest.mark.model
def test_a_command_is_started_used_and_ended_and_its_death_is_a_fault(
    model_file: Path, answer: tuple[int, ...], make_host: Any, tmp_path: Path
) -> None:
    command = f"{sys.executable} {BARE} ${{MODEL}} ${{PORT}} 512 2 ${{SLOTS}}"
    plan = LoadPlan(context=256, slots=2, server=command, snapshots=tmp_path, contract="c" * 64)
    loaded = engine_named("llamacpp").load(model_file, plan)
    assert units_of(loaded, work(), make_host(sizes=(4,))) == answer
    assert "c" * 16 in loaded.kv_format

    begun = loaded.begin(work(), make_host(sizes=(8,)))
    assert next(begun).units == answer[:8]
    held = loaded.save(begun, tmp_path / "kept.kv")
    assert held == len(PARIS) + 7
    begun.close()
    kept = GenerateWork(PARIS, answer[:8], 24, (), GREEDY, Snapshot(tmp_path / "kept.kv", held))
    host = make_host(sizes=(8,))
    assert units_of(loaded, kept, host) == answer[8:]
    assert host.how.way == "snapshot"

    dying = loaded.begin(work(200), make_host(sizes=(4,)))
    next(dying)
    os.kill(_pid_of(loaded), signal.SIGKILL)
    with pytest.raises(EngineFault, match="gave no usable answer"):
        for _ in dying:
            pass
    loaded.close()


def _pid_of(loaded: Loaded) -> int:
    managed: Any = loaded._server.close.__self__  # type: ignore[attr-defined]
    return int(managed.pid)


# ---- servers that misbehave ---------------------------------------------------------------------------------

PROPS = {"default_generation_settings": {"n_ctx": 64}, "total_slots": 1}
MODELS = {"data": [{"meta": {"n_vocab": 49152}}]}


def event(**facts: Any) -> str:
    return f"data: {json.dumps(facts)}\n\n"


def token(count: int, **facts: Any) -> str:
    return event(**{"content": "x", "tokens": [count], "stop": False, "tokens_predicted": count} | facts)


def end(count: int, **facts: Any) -> str:
    facts = {"stop_type": "limit", "id_slot": 0, "truncated": False} | facts
    return event(content="", tokens=[], stop=True, tokens_predicted=count, **facts)


class Misbehaving(http.server.BaseHTTPRequestHandler):
    """A llama-server that is sound until it is asked to compute."""

    said = ""
    status = 200

    def do_GET(self) -> None:
        answers = {"/health": {}, "/props": PROPS, "/v1/models": MODELS, "/slots": []}
        self._answer(200, json.dumps(answers[self.path]))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path == "/completion":
            self._answer(type(self).status, type(self).said)
        else:
            self._answer(501, json.dumps({"error": {"message": "no slots here"}}))

    def _answer(self, status: int, words: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(words.encode())
        if words.endswith("SILENCE"):
            self.wfile.flush()
            with contextlib.suppress(OSError):
                self.rfile.read(1)
        with contextlib.suppress(OSError):
            while words.endswith("PINGS"):
                self.wfile.write(b": ping\n\n")
                self.wfile.flush()
                time.sleep(0.05)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def misbehaving() -> Iterator[Loaded]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Misbehaving)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    loaded = engine_named("llamacpp").load(Path("/nowhere.gguf"), LoadPlan(context=32, server=address))
    yield loaded
    loaded.close()
    server.shutdown()
    server.server_close()
    thread.join()
    Misbehaving.status = 200


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "broke off"),
        (token(1), "broke off"),
        ("data: {]\n\n", "gave no usable answer"),
        (event(stop="maybe"), "gave no usable answer"),
        ('data: {"error": {"message": "out of luck"}}\n\n', "out of luck"),
        ('error: {"error": {"message": "out of luck"}}\n\n', "out of luck"),
        (token(1) + end(1), "stopped after 1 of 4 tokens"),
        (token(1) + token(2) + token(3) + token(4) + end(4, id_slot=3), "used slot 3 and was asked for slot 0"),
        (token(1) + token(2) + token(3) + token(4) + end(4, stop_type="word"), "not given to it: 'word'"),
        (token(1) + token(2) + token(3) + token(4) + end(3), "counts 3 tokens where 4 of 4 were named"),
        (
            event(prompt_progress={"total": 5, "cache": 3, "processed": 5}, tokens=[0], tokens_predicted=0),
            "found 3 tokens in its slot 0 where 0 must be",
        ),
        (token(1) + "SILENCE", "timed out"),
    ],
)
def test_an_answer_that_cannot_be_is_a_fault_with_its_cause(
    misbehaving: Loaded, make_host: Any, monkeypatch: pytest.MonkeyPatch, said: str, words: str
) -> None:
    if said.endswith("SILENCE"):
        monkeypatch.setattr("runners.engines.llamahttp.SILENCE_S", 0.5)
    Misbehaving.said = said
    with pytest.raises(EngineFault, match=words):
        next(misbehaving.begin(work(4), make_host(sizes=(4,))))
    # The slot is free again, whatever happened in it.
    Misbehaving.said = "".join(token(count) for count in (1, 2, 3, 4)) + end(4)
    assert next(misbehaving.begin(work(4), make_host(sizes=(4,)))).units == (1, 2, 3, 4)


def test_a_status_that_is_no_answer_is_a_fault_with_the_servers_words(misbehaving: Loaded, make_host: Any) -> None:
    Misbehaving.status, Misbehaving.said = 500, '{"error": {"message": "Context size has been exceeded."}}'
    with pytest.raises(EngineFault, match=r"refused POST /completion \(500\): Context size has been exceeded"):
        next(misbehaving.begin(work(4), make_host()))


def test_an_end_that_is_shown_as_text_is_not_part_of_the_answer(misbehaving: Loaded, make_host: Any) -> None:
    Misbehaving.said = token(1) + token(2, content="<|im_end|>") + end(2, stop_type="eos")
    (chunk,) = misbehaving.begin(work(4), make_host(sizes=(4,)))
    assert (chunk.units, chunk.end) == ((1,), "eos")


def test_lines_that_only_say_the_connection_lives_are_no_sign_of_work(
    misbehaving: Loaded, make_host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.engines.llamahttp.SILENCE_S", 0.5)
    Misbehaving.said = token(1) + ": PINGS"
    with pytest.raises(EngineFault, match="no token within"):
        next(misbehaving.begin(work(4), make_host(sizes=(4,))))
