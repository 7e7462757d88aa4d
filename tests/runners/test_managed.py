"""Commands of the operator's: how they are started, what is said of those that fail, and that nothing outlives them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from house import House, alive, until

from core.errors import EngineFault
from runners.managed import Managed
from runners.process import INSTANCE, end_marked
from store.clock import start_ticks

SUPPORT = Path(__file__).parent.parent / "support"
FAKE = f"{sys.executable} {SUPPORT / 'fake_upstream.py'} --port ${{PORT}}"
WORDS = """
import http.server, json, os, pathlib, signal, sys
port, file, *words = sys.argv[1:]
said = {"words": words, "group": os.getpgrp(), "ignores": signal.getsignal(signal.SIGINT) is signal.SIG_IGN}
pathlib.Path(file).write_text(json.dumps(said | {"extra": os.environ.get("EXTRA"), "stdin": sys.stdin.read()}))
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(os.environ.get("STATUS", "200")) if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *_): pass
if os.environ.get("STUBBORN"): signal.signal(signal.SIGTERM, signal.SIG_IGN)
http.server.HTTPServer(("127.0.0.1", int(port)), H).serve_forever()
"""


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A program that writes down how it was started."""
    file = tmp_path / "words.py"
    file.write_text(WORDS)
    return file


def pids_in(file: Path) -> list[int]:
    """The command and its two children, the second of them in a session of its own."""
    return [int(pid) for pid in until(lambda: file.exists() and file.read_text().split(), str(file))]


# ---- starting -------------------------------------------------------------------------------------------------


def test_values_are_put_into_words_and_no_shell_reads_them(words: Path, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    command = f"{sys.executable} {words} ${{PORT}} {told} '${{MODEL}}' --x=${{MODEL}} '$HOME;ls' ''"
    model = "/models/two words; touch $HOME/${PORT}"
    managed = Managed.start(command, values={"MODEL": model}, environment={"EXTRA": "1"}, health=("/health",))
    try:
        assert managed.alive()
        assert managed.ended() is None
        assert managed.url == f"http://127.0.0.1:{managed.port}"
        assert json.loads(told.read_text()) == {
            "words": [model, f"--x={model}", "$HOME;ls", ""],
            "group": os.getpgrp(),
            "ignores": False,
            "extra": "1",
            "stdin": "",
        }
    finally:
        managed.close()
    assert not managed.alive()
    assert managed.ended() == "was ended by signal 15 (SIGTERM)"


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("", "The command is empty"),
        ("serve 'x ${PORT}", "cannot be split into words"),
        ("serve --port 8000", r"Write \$\{PORT\} where the port belongs"),
        ("serve ${PORT} ${MODLE}", r"names \$\{MODLE\}, which stands for nothing. Known are: \$\{MODEL\}, \$\{PORT\}"),
        ("no-such-program-at-all ${PORT}", "There is no program 'no-such-program-at-all'"),
        (
            f"{sys.executable} -c 'import sys; sys.exit(3)' ${{PORT}}",
            r"command python\S* ended with exit code 3 before",
        ),
        (f"{sys.executable} -c 'import os; os.abort()' ${{PORT}}", r"was ended by signal 6 \(SIGABRT\) before"),
        ("/bin/sh -c 'exit 139' ${PORT}", "exit code 139, which stands for SIGSEGV before"),
    ],
)
def test_a_command_that_cannot_be_says_why(command: str, cause: str) -> None:
    with pytest.raises(EngineFault, match=cause):
        Managed.start(command, values={"MODEL": "m"})


def test_one_that_goes_into_the_background_is_ended_there(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with pytest.raises(EngineFault, match=r"exit code 0 before it answered\. .* stay in the foreground"):
        Managed.start(f"/bin/sh -c 'sleep 3600 & echo $! > {file}' ${{PORT}}")
    assert alive([int(file.read_text())]) == []


@pytest.mark.parametrize(("status", "said"), [("503", "503 to /health"), ("404", "404 to /v1/models")])
def test_one_that_is_not_ready_in_time_is_ended(words: Path, tmp_path: Path, status: str, said: str) -> None:
    seen: list[int] = []
    with pytest.raises(EngineFault, match=f"was not ready after 3 s .it answered {said}"):
        Managed.start(
            f"{sys.executable} {words} ${{PORT}} {tmp_path / 'told'}",
            start_s=3,
            environment={"STATUS": status},
            waiting=lambda: seen.append(1),
        )
    assert len(seen) > 3


def test_who_waits_can_give_up(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def waiting() -> None:
        if pids.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Managed.start(f'{FAKE} --children {pids} --faults \'{{"health": 500, "listing": 500}}\'', waiting=waiting)
    assert alive(pids_in(pids)) == []


def test_one_that_does_not_listen_to_reason_is_killed(words: Path, tmp_path: Path) -> None:
    managed = Managed.start(
        f"{sys.executable} {words} ${{PORT}} {tmp_path / 'told'}", environment={"STUBBORN": "1"}, health=("/health",)
    )
    managed.close(grace_s=0.3)
    assert managed.ended() == "was ended by signal 9 (SIGKILL)"


# ---- nothing outlives it --------------------------------------------------------------------------------------


def test_what_a_command_started_ends_with_it_and_nothing_else_does(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    first, second = (Managed.start(f"{FAKE} --children {file}") for file in (mine, other))
    try:
        first.close()
        assert alive(pids_in(mine)) == []
        assert len(alive(pids_in(other))) == 3
    finally:
        second.close()
    assert alive(pids_in(other)) == []


def test_a_command_that_crashed_leaves_nothing_once_closed(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    managed = Managed.start(f"{FAKE} --children {file}")
    os.kill(managed.pid, signal.SIGSEGV)
    assert managed.ended(60) == "was ended by signal 11 (SIGSEGV)"
    managed.close()
    assert alive(pids_in(file)) == []


def test_a_command_dies_with_whoever_started_it(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    program = f"from runners.managed import Managed; Managed.start({FAKE + f' --children {file}'!r}); input()"
    starter = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, start_new_session=True)
    pids = pids_in(file)
    try:
        starter.kill()
        starter.wait()
        until(lambda: pids[0] not in alive(pids), "the command to end with its starter")
    finally:
        for pid in alive(pids):
            os.kill(pid, signal.SIGKILL)
        assert starter.stdin is not None
        starter.stdin.close()


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Starts processes that do nothing, with an environment."""
    made: list[subprocess.Popen[bytes]] = []

    def start(**environment: str) -> int:
        made.append(subprocess.Popen(["sleep", "3600"], env=os.environ | environment))
        return made[-1].pid

    yield start
    for process in made:
        process.kill()
        process.wait()


def test_the_mark_is_the_whole_mark(marked: Callable[..., int], tmp_path: Path) -> None:
    root = str(tmp_path / "one")
    ours = {marked(**{INSTANCE: root}), marked(**{INSTANCE: root})}
    spared = marked(**{INSTANCE: root})
    others = [spared, marked(**{INSTANCE: f"{root}-more"}), marked(**{f"X_{INSTANCE}": root}), marked()]
    assert set(end_marked(INSTANCE, root, spare={spared})) == ours
    assert alive([*ours, *others]) == others


ADOPTS = """
import os, pathlib, subprocess, sys, time
from runners.process import adopt_orphans, end_adopted
adopt_orphans()
root = sys.argv[1]
shell = f"FAILSOFT_INSTANCE={root} sleep 3600 >&- 2>&- & echo $!; setsid sleep 3600 >&- 2>&- & echo $!"
known = subprocess.Popen(["sleep", "3600"], stdout=-3, stderr=-3, env=os.environ | {"FAILSOFT_INSTANCE": root})
ours, stranger = subprocess.run(["/bin/sh", "-c", shell], stdout=subprocess.PIPE, stderr=2).stdout.split()
there = lambda pid: pathlib.Path(f"/proc/{int(pid)}").exists()
deadline = time.monotonic() + 60
while there(ours) and time.monotonic() < deadline:
    end_adopted({known.pid}, pathlib.Path(root))
    time.sleep(0.01)
print(there(ours), there(stranger), known.poll())
os.kill(int(stranger), 9)
known.kill()
known.wait()
"""


def test_of_the_adopted_only_those_left_over_are_ended_and_none_stays_a_zombie(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ADOPTS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False True None\n", done.stderr


# ---- in the house ---------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[House, Path]]:
    """A house whose GPU lane is a command that starts two children, and the file with their pids."""
    file = tmp_path / "pids"
    config = f"""
[[upstreams]]
name = "box"
model = "null"
continues = "tokens"
cmd = '''{FAKE} --children {file}'''
"""
    made = House(tmp_path / "house", gpu=None, config=config)
    made.start()
    until(lambda: made._runner("gpu"), "a loaded gpu runner")
    yield made, file
    made.client.close()
    assert made.process is not None
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()
    end_marked(INSTANCE, str(made.paths.root))


def test_a_killed_runner_leaves_nothing(served: tuple[House, Path]) -> None:
    house, file = served
    pids, runner = pids_in(file), house.runner("gpu")
    assert len(alive(pids)) == 3
    file.unlink()
    house.send(runner, signal.SIGKILL)
    until(lambda: not alive(pids), f"all of {pids} to end")
    assert len(alive(pids_in(file))) == 3
    until(lambda: house._runner("gpu") not in {None, runner}, "another runner")


def test_a_stop_leaves_nothing(served: tuple[House, Path]) -> None:
    house, file = served
    pids = pids_in(file)
    assert house.stop() == 0
    assert alive(pids) == []


def test_after_a_killed_supervisor_the_next_start_leaves_nothing(served: tuple[House, Path]) -> None:
    house, file = served
    pids = pids_in(file)
    stranger = subprocess.Popen(["sleep", "3600"], env=os.environ | {INSTANCE: f"{house.paths.root}-2"})
    file.unlink()
    house.kill()
    house.start()
    assert alive(pids) == []
    assert len(alive(pids_in(file))) == 3
    assert start_ticks(stranger.pid) is not None
    stranger.kill()
    stranger.wait()


def test_children_that_a_supervisor_had_before_it_became_one_live(tmp_path: Path) -> None:
    """As in a container whose start script begins a helper and then becomes the service."""
    house = House(tmp_path / "house")
    shell = f"sleep 3600 & echo $! > {tmp_path / 'helper'}; exec {sys.executable} -m runners.supervisor"
    shell += f" --data {house.paths.root} --port 0 --model null"
    with house.log.open("wb") as log:
        house.process = subprocess.Popen(["/bin/sh", "-c", shell], cwd=SUPPORT.parent.parent, stdout=log, stderr=log)
    house.wait_ready()
    helper = int((tmp_path / "helper").read_text())
    signs = "SELECT max(beat_us) FROM runners"
    seen = house.rows(signs)
    # Orphans are looked at right after the signs of life are written; the third look is certainly over.
    for _ in range(3):
        until(lambda before=seen: house.rows(signs) != before, "another sign of life")
        seen = house.rows(signs)
    assert house.stop() == 0
    assert alive([helper]) == [helper]
    os.kill(helper, signal.SIGKILL)
    house.client.close()
