"""Whoever watches sees the text whole and once, whichever process dies meanwhile, and is told of every move."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import IO, Any

import pytest
from house import FAST, PATIENCE_S, House, house, until

Failsoft = Callable[..., Any]
Spawn = Callable[..., subprocess.Popen[bytes]]

TEXT = "".join(f"{number:03d} " for number in range(60))
PROMPT = f"[[tps=12]] [[emit={TEXT}]]"


def read_until(stream: IO[bytes], length: int) -> bytes:
    """At least so many bytes of what a process prints."""
    read = b""
    while len(read) < length:
        piece = stream.read(1)
        assert piece, f"the output ended after {read!r}"
        read += piece
    return read


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("watch") / "data", config=FAST) as made:
        yield made


@pytest.fixture
def own(shared: House) -> House:
    """To be struck, and well again for the next."""
    return shared.well()


@pytest.fixture
def watching(own: House, failsoft: Failsoft, spawn: Spawn) -> Iterator[tuple[str, subprocess.Popen[bytes], bytes]]:
    """A request half-way, someone who watches it, and what they have seen so far."""
    handed_in = failsoft("submit", PROMPT, "--max-tokens", 400, "--no-wait", "--data", own.paths.root)
    request_id = handed_in.out.strip()
    process = spawn("watch", request_id, "--data", own.paths.root)
    assert process.stdout is not None
    yield request_id, process, read_until(process.stdout, 20)
    process.kill()


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out.decode(), err.decode()


def test_the_gpu_runner_is_killed(own: House, watching: tuple[str, subprocess.Popen[bytes], bytes]) -> None:
    request_id, process, seen = watching
    own.send(own.runner("gpu"), signal.SIGKILL)
    code, rest, told = end_of(process)
    assert code == 0
    assert seen.decode() + rest == TEXT + "\n"
    moved = [event["because"] for event in own.events(request_id) if event["type"] == "Rerouted"]
    assert len(moved) == 1
    assert f"[{moved[0]}]" in told.splitlines()
    assert own.view(request_id)["lane"] == "cpu"
    assert own.view(request_id)["output"]["text"] == TEXT


def test_the_web_process_is_killed(own: House, watching: tuple[str, subprocess.Popen[bytes], bytes]) -> None:
    _request_id, process, seen = watching
    web = own.child("web.app")
    assert web is not None
    own.send(web, signal.SIGKILL)
    until(lambda: own.child("web.app") not in {web, None}, "another web process")
    code, rest, told = end_of(process)
    assert code == 0, told
    assert seen.decode() + rest == TEXT + "\n"
    assert "Fault" not in told


def test_the_whole_service_is_killed_and_started_again_elsewhere(
    own: House, failsoft: Failsoft, watching: tuple[str, subprocess.Popen[bytes], bytes]
) -> None:
    """The port is another one then, so this watcher gives up, says what to do, and that works."""
    request_id, process, seen = watching
    process.kill()
    process.wait()
    own.kill()
    given_up = failsoft("watch", request_id, "--data", own.paths.root, "--patience", 0)
    assert given_up.code == 2
    assert "no service answers" in given_up.err
    own.start()
    again = failsoft("watch", request_id, "--data", own.paths.root)
    assert (again.code, again.out) == (0, TEXT + "\n")
    assert again.out.startswith(seen.decode())


def test_a_watcher_whose_service_stays_away_is_told(own: House, failsoft: Failsoft, spawn: Spawn) -> None:
    request_id = failsoft("submit", PROMPT, "--max-tokens", 400, "--no-wait", "--data", own.paths.root).out.strip()
    process = spawn("watch", request_id, "--patience", 0.5, "--data", own.paths.root)
    assert process.stdout is not None
    seen = read_until(process.stdout, 20)
    own.kill()
    code, rest, told = end_of(process)
    assert code == 2
    assert TEXT.startswith(seen.decode() + rest.strip("\n"))
    assert f"failsoft watch {request_id}" in told


def test_watching_ends_from_the_keyboard_and_the_request_goes_on(
    own: House, watching: tuple[str, subprocess.Popen[bytes], bytes]
) -> None:
    request_id, process, _seen = watching
    process.send_signal(signal.SIGINT)
    code, _rest, told = end_of(process)
    assert code == 130
    assert "Traceback" not in told
    assert own.settled(request_id)["output"]["text"] == TEXT


def test_a_reader_that_has_seen_enough_is_no_error(served: House, spawn: Spawn) -> None:
    process = spawn("list", "--json", "--data", served.paths.root)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE_S) == 0


def test_json_frames_are_one_a_line_and_in_order(failsoft: Failsoft, served: House) -> None:
    import json

    request_id = failsoft("submit", "[[emit=abc]]", "--no-wait", "--data", served.paths.root).out.strip()
    ran = failsoft("watch", request_id, "--json", "--data", served.paths.root)
    frames = [json.loads(line) for line in ran.out.splitlines()]
    assert [frame["version"] for frame in frames] == list(range(1, len(frames) + 1))
    assert frames[-1]["type"] == "Completed"
    assert "".join(frame["delta"]["text"] for frame in frames if "delta" in frame) == "abc"


def test_erased_text_is_told(failsoft: Failsoft, served: House) -> None:
    root = served.paths.root
    request_id = failsoft("submit", "[[emit=secret]]", "--json", "--data", root).json["id"]
    assert served.client.delete(f"/api/requests/{request_id}/content").status_code == 204
    ran = failsoft("watch", request_id, "--data", root)
    assert (ran.code, ran.out) == (0, "")
    assert "erased" in ran.err
    assert "erased" in failsoft("show", request_id, "--data", root).out
