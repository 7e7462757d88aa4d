"""The web process as the supervisor starts it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.errors import Malformed
from store.database import Paths, migrate
from store.settings import Settings, write_in_force
from web.app import create_app

ROOT = Path(__file__).parents[2]


def start(paths: Paths, parent: int, log: Path) -> tuple[subprocess.Popen[bytes], int]:
    with socket.create_server(("127.0.0.1", 0)) as listener, log.open("wb") as errors:
        os.set_inheritable(listener.fileno(), True)
        command = [sys.executable, "-m", "web.app", "--data", str(paths.root), "--fd", str(listener.fileno())]
        process = subprocess.Popen(
            [*command, "--parent", str(parent)], cwd=ROOT, pass_fds=(listener.fileno(),), stderr=errors, stdout=errors
        )
        return process, listener.getsockname()[1]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "data").make()
    migrate(made)
    write_in_force(made, Settings(models=("null",)))
    return made


def test_it_serves_the_inherited_socket_and_ends_streams_when_told_to_stop(paths: Paths, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process, port = start(paths, os.getpid(), log)
    try:
        with httpx.stream("GET", f"http://127.0.0.1:{port}/api/stream", timeout=60) as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line.startswith("data:")) == 'data: {"seq":0}'
            secret = "do not log these words"
            body: dict[str, Any] = {"model": "null", "prompt": secret, "maxx": 1}
            assert httpx.post(f"http://127.0.0.1:{port}/api/requests", json=body).status_code == 400
            process.send_signal(signal.SIGTERM)
            assert list(lines)[-1:] == [""]  # the end of the body, not a broken connection
        assert process.wait(60) in {0, -signal.SIGTERM}
    finally:
        process.kill()
        process.wait()
    assert secret not in log.read_text()
    assert "Traceback" not in log.read_text()


def test_it_does_not_outlive_a_parent_that_is_gone_already(paths: Paths, tmp_path: Path) -> None:
    process, _port = start(paths, 1, tmp_path / "log")
    assert process.wait(60) == 1
    assert "the parent that started this process is gone" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "box.example"])
def test_it_is_not_reachable_from_elsewhere_without_keys(paths: Paths, host: str) -> None:
    with pytest.raises(Malformed, match="there are no API keys yet"):
        create_app(paths, Settings(host=host))
