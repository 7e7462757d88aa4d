"""A command of the operator's that serves HTTP: started, awaited, and ended with all it has started.

1. There is no shell: the command is split into words first, and values are put into the words after that, so that a
   value with a space or a semicolon in it stays one word.
2. It stays in its starter's process group, so that whoever ends a runner's group ends it too; and the kernel kills it
   when its starter dies. What *it* starts is told by a mark in the environment, which survives a new session and a
   dead parent.
3. It is ready when it answers, and not before; a command that ends first is reported with the way it ended.
4. Its command line is never put into a message or the log, since it may hold a key.

Start it from a thread that lives as long as it shall: the kernel's order to die is tied to the thread.
"""

import contextlib
import http.client
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

from core.errors import EngineFault
from runners.execwrap import NOT_FOUND
from runners.process import end_marked

COMMAND: Final = "FAILSOFT_COMMAND"
"""Environment variable of a managed command and of all it starts: which command they belong to."""

_NAME: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LOOK_S: Final = 0.05
_ANSWER_S: Final = 2.0
_GRACE_S: Final = 5.0
_HOST: Final = "127.0.0.1"
_NO_SUCH_PATH: Final = frozenset((404, 405, 501))
_AS_A_SHELL: Final = 128
"""Shells, and programs that wait for others, tell a death by signal n as exit code 128 + n."""


class Managed:
    """A running command. Made by `start`."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], mark: str, port: int) -> None:
        self.name = name
        """The program's file name, to be shown."""
        self.port = port
        self.url = f"http://{_HOST}:{port}"
        """Where it answers."""
        self._process = process
        self._mark = mark

    @classmethod
    def start(
        cls,
        cmd: str,
        *,
        start_s: float = 120.0,
        values: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        health: tuple[str, ...] = ("/health", "/v1/models"),
        waiting: Callable[[], None] | None = None,
    ) -> Self:
        """Start `cmd` and wait until one of the paths in `health` answers, at most `start_s` seconds.

        `${PORT}` in it becomes a free loopback port, `${NAME}` what `values` has under NAME. `environment` is added to
        this process's own. `waiting` is called again and again meanwhile; what it raises ends the command. Raises
        `EngineFault` with the remedy when the command cannot be started, ends, or does not answer in time.
        """
        port = _free_port()
        words = _words(cmd, {**(values or {}), "PORT": str(port)})
        if shutil.which(words[0]) is None:
            raise EngineFault(f"There is no program {words[0]!r} to start. Install it, or write its whole path.")
        mark = secrets.token_hex(8)
        process = subprocess.Popen(
            [sys.executable, "-m", "runners.execwrap", "--parent", str(os.getpid()), "--", *words],
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL,
            env={**os.environ, **(environment or {}), COMMAND: mark},
            cwd=Path(__file__).parent.parent,
        )
        made = cls(Path(words[0]).name, process, mark, port)
        try:
            made._await(start_s, health, waiting or _nothing)
        except BaseException:
            made.close()
            raise
        return made

    @property
    def pid(self) -> int:
        """Of the command itself."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the command itself still runs."""
        return self._process.poll() is None

    def ended(self, within_s: float = 0.0) -> str | None:
        """How it ended, such as `ended with exit code 1`, or None when it has not, even after `within_s` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        status = self._process.poll()
        return None if status is None else _told(status)

    def close(self, grace_s: float = _GRACE_S) -> None:
        """Ask it to end, wait for `grace_s` seconds, then kill it and everything it started. Twice does nothing."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self._process.kill()
        self._process.wait()
        end_marked(COMMAND, self._mark)

    def _await(self, start_s: float, health: tuple[str, ...], waiting: Callable[[], None]) -> None:
        deadline = time.monotonic() + start_s
        said = "nothing"
        while time.monotonic() < deadline:
            waiting()
            if (how := self.ended(_LOOK_S)) is not None:
                raise EngineFault(
                    f"The command {self.name} {how} before it answered. Its own messages are in the log; it has to stay"
                    " in the foreground and listen on 127.0.0.1, at the port that ${PORT} stands for."
                )
            said = self._asked(health) or said
            # Another program might have taken the port and be the one that answers; then ours has ended.
            if said == "ready" and self.alive():
                return
        raise EngineFault(
            f"The command {self.name} was not ready after {start_s:g} s (it answered {said}). Give it more time with"
            " start_s, and see that it listens on 127.0.0.1 at the port that ${PORT} stands for."
        )

    def _asked(self, health: tuple[str, ...]) -> str | None:
        """`ready`, what it said instead, or None when it does not answer yet. The first path that it has counts."""
        said = None
        for path in health:
            connection = http.client.HTTPConnection(_HOST, self.port, timeout=_ANSWER_S)
            try:
                connection.request("GET", path)
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException):
                return said
            finally:
                connection.close()
            # One that wants a key is there all the same.
            if status < 400 or status in {401, 403}:
                return "ready"
            said = f"{status} to {path}"
            if status not in _NO_SUCH_PATH:
                break
        return said


def _words(cmd: str, values: Mapping[str, str]) -> list[str]:
    try:
        words = shlex.split(cmd)
    except ValueError as error:
        raise EngineFault(f"The command cannot be split into words ({error}). Check its quotes.") from error
    if not words:
        raise EngineFault("The command is empty. Write the program and its arguments.")
    named = {name for word in words for name in _NAME.findall(word)}
    if unknown := named - values.keys():
        known = ", ".join(f"${{{name}}}" for name in sorted(values))
        raise EngineFault(f"The command names ${{{min(unknown)}}}, which stands for nothing. Known are: {known}.")
    if "PORT" not in named:
        raise EngineFault("The command does not say where it is to listen. Write ${PORT} where the port belongs.")
    return [_NAME.sub(lambda found: values[found[1]], word) for word in words]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _told(status: int) -> str:
    number = -status if status < 0 else status - _AS_A_SHELL
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = ""
    if status == NOT_FOUND:
        return f"ended with exit code {status}, which mostly means that a program was not found"
    if status < 0:
        return f"was ended by signal {-status}{f' ({name})' if name else ''}"
    return f"ended with exit code {status}{f', which stands for {name}' if name else ''}"


def _nothing() -> None:
    """Nobody wants to be asked while waiting."""
