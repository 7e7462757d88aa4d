"""A child process of the supervisor: how it is started, how its death is told, when it may be started again."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from core.words import Lane
from runners.devices.real import environment_for
from runners.process import INSTANCE
from runners.pulse import Pulse
from store.clock import start_ticks
from store.database import Paths

_STEADY_S: Final = 10.0
"""A process that lived for so long ends a row of deaths in quick succession."""

MONITOR_PAUSE_S: Final = 60.0
"""Shortest time between two starts of the monitor: killing one in the middle of a driver call has frozen cards, so it
is not done in a row."""

HOST_ID: Final = "cpu"
"""The device of runners that compute on this machine's CPU."""

Role = Literal["web", "monitor", "runner"]


class RunnerSpec(msgspec.Struct, frozen=True):
    """What a runner is for; a new process of the same spec gets a new id."""

    lane: Lane
    model: str
    device: str
    engine: str
    command: bool = False
    """A command that we start computes it, as a server of its own."""

    @property
    def on_host(self) -> bool:
        """Whether a worker of ours computes it on this machine's CPU."""
        return (self.lane, self.device) == ("cpu", HOST_ID)

    @property
    def in_budget(self) -> bool:
        """Whether what computes it takes of the CPU lane's memory: all of ours there, and what we start for it."""
        return self.on_host or (self.lane == "cpu" and self.command)


class Exit(msgspec.Struct, frozen=True):
    """How a process ended: by signal or with a code."""

    signal: int | None
    code: int | None


class Child:
    """One place in the house, and the process that fills it now, if any."""

    def __init__(
        self,
        role: Role,
        paths: Paths,
        *,
        spec: RunnerSpec | None = None,
        arguments: tuple[str, ...] = (),
        hold: Callable[[int], None] | None = None,
    ) -> None:
        """`hold` is given the pid of each process as soon as it exists, to set limits before it takes anything."""
        self.role = role
        self.spec = spec
        self._paths = paths
        self._arguments = arguments
        self._hold = hold
        self.process: subprocess.Popen[bytes] | None = None
        self.pidfd = -1
        self.ticks = 0
        self.id: str = role
        self.pulse: Pulse | None = None
        self.wanted = True
        """Whether a process is to be here; the residency plan says no to models that must make room."""
        self.loaded = False
        self.killed_for: str | None = None
        self.told: dict[str, str | int | float] = {}
        """What was seen that it was ended for."""
        self.deaths = 0
        """In quick succession; decides the pause before the next start."""
        self.failed_starts = 0
        """In a row; a runner that got its model loaded ends the row."""
        self.not_before = 0.0
        self.started = 0.0

    @property
    def pid(self) -> int:
        """Of the process that fills the place; 0 when none does."""
        return self.process.pid if self.process else 0

    def start(self, pass_fd: int | None = None) -> None:
        """Start a process. Only the supervisor's main thread may: the death signal is tied to it."""
        command = [sys.executable, "-m", f"{'web.app' if self.role == 'web' else f'runners.{self.role}'}"]
        command += ["--data", str(self._paths.root), "--parent", str(os.getpid()), *self._arguments]
        if self.spec is not None:
            self.id = f"{self.spec.lane}-{self.spec.model}-{secrets.token_hex(2)}"
            command += ["--id", self.id, "--lane", self.spec.lane, "--model", self.spec.model]
            command += ["--device", self.spec.device]
            self.pulse = Pulse(self._paths.run / f"{self.id}.pulse")
        if pass_fd is not None:
            command += ["--fd", str(pass_fd)]
        self.process = subprocess.Popen(
            command,
            env=os.environ | {INSTANCE: str(self._paths.root)} | self._cards(),
            stdin=subprocess.DEVNULL,
            pass_fds=() if pass_fd is None else (pass_fd,),
            start_new_session=True,
            cwd=Path(__file__).parent.parent,
        )
        if self._hold is not None:
            self._hold(self.process.pid)
        self.pidfd = os.pidfd_open(self.process.pid)
        self.ticks = start_ticks(self.process.pid) or 0
        self.loaded = False
        self.killed_for = None
        self.told = {}
        self.started = time.monotonic()

    def _cards(self) -> dict[str, str]:
        return {} if self.spec is None else environment_for(self.spec.device)

    def kill(self, why: str) -> None:
        """End it and its process group now; the reason is told when its death is seen."""
        if self.process is not None:
            self.killed_for = self.killed_for or why
            _end_group(self.process.pid)

    def at_rest(self) -> bool:
        """Whether it has its model, and works on nothing."""
        return self.process is not None and self.pulse is not None and self.pulse.phase() == "idle"

    def retire(self, why: str) -> None:
        """Ask it to stop in order, for a reason of ours that is told when its death is seen."""
        if self.process is not None:
            self.killed_for = self.killed_for or why
            self.process.terminate()

    def terminate(self) -> None:
        """Ask it to stop in order."""
        if self.process is not None:
            self.process.terminate()

    def reap(self, first_pause_s: float = 0.0, longest_pause_s: float = 0.0) -> Exit | None:
        """After its death: take the status, end the rest of its group, and set when it may be started again.

        None while it lives.
        """
        if self.process is None:
            return None
        status = self.process.poll()
        if status is None:
            return None
        _end_group(self.process.pid)
        os.close(self.pidfd)
        self.process, self.pidfd = None, -1
        if self.pulse is not None:
            self.loaded = self.loaded or self.pulse.phase() in {"idle", "busy", "stopping"}
        self._forget_pulse()
        steady = time.monotonic() - self.started > _STEADY_S
        self.deaths = 1 if steady else self.deaths + 1
        self.failed_starts = 0 if self.loaded else self.failed_starts + 1
        self._pause(first_pause_s, longest_pause_s)
        if self.role == "monitor":
            self.not_before = max(self.not_before, self.started + MONITOR_PAUSE_S)
        return Exit(-status, None) if status < 0 else Exit(None, status)

    def not_started(self, first_pause_s: float, longest_pause_s: float) -> None:
        """After a `start` that raised: the disk or the process table is full, and will not be for ever."""
        self._forget_pulse()
        self.deaths += 1
        self.failed_starts += 1
        self._pause(first_pause_s, longest_pause_s)

    def _pause(self, first_s: float, longest_s: float) -> None:
        self.not_before = time.monotonic() + min(longest_s, first_s * 2 ** min(self.deaths - 1, 12))

    def _forget_pulse(self) -> None:
        if self.pulse is not None:
            self.pulse.close()
            self.pulse = None
            (self._paths.run / f"{self.id}.pulse").unlink(missing_ok=True)


def _end_group(leader: int) -> None:
    """Kill what a child of ours leads; each leads a group of its own from before its first instruction.

    While one of the group is left, nobody else is given the leader's number.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
