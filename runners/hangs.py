"""Who lives and does not move: runners by their pulses, whoever holds the gate by its record, web by its answers.

1. It acts: who is stuck is ended here, and its death is told like any other.
2. Waiting for a slow disk is not hanging.
3. Each is judged by its own measure, so that a busy machine does not count as a dead one.
"""

import http.client
import logging
import os
import threading
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from core.policy import Policy
from runners.children import Child
from store.clock import Clock
from store.gate import Gate

log = logging.getLogger("failsoft")

_ASK_EVERY_S: Final = 2.0
_ANSWER_S: Final = 5.0


class Hangs:
    """The supervisor's eye on its children."""

    def __init__(self, children: list[Child], gate: Gate, policy: Policy, clock: Clock) -> None:
        self._children = children
        self._gate = gate
        self._policy = policy
        self._clock = clock
        self._stuck_since: tuple[object, float] | None = None
        self._answered = time.monotonic()
        self._asking: threading.Thread | None = None
        self._silent: set[str] = set()
        """Runners that showed no sign of life at the last look."""

    def pulses(self) -> None:
        """End runners that show no sign of life for many times as long as their own last steps took."""
        silent = {child.id for child in self._children if self._silent_us(child) is not None}
        for child in self._children:
            # A beat that is read while it is written may look like one of long ago, once; never at two looks in a row.
            if child.id in silent & self._silent and (since_us := self._silent_us(child)) is not None:
                log.error("runner %s shows no sign of life for %.1f s", child.id, since_us / 1e6)
                child.kill("hung")
        self._silent = silent

    def _silent_us(self, child: Child) -> int | None:
        """For how long it has shown no sign of life, if that is too long."""
        beat = child.pulse.read() if child.pulse and child.process and child.killed_for is None else None
        if beat is None:
            return None
        grace = self._policy.load_grace_s if beat.phase == "loading" else self._policy.hang_grace_s
        silent_us = self._clock.mono_us() - beat.at_us
        return silent_us if silent_us > max(grace * 1e6, self._policy.hang_factor * beat.step_us) else None

    def gate(self) -> None:
        """End a process of ours that holds the writer gate and does not move."""
        holder = self._gate.holder()
        if holder is None or holder.pid == os.getpid():
            self._stuck_since = None
            return
        if self._stuck_since is None or self._stuck_since[0] != holder:
            self._stuck_since = (holder, time.monotonic())
            return
        if time.monotonic() - self._stuck_since[1] < self._policy.gate_grace_s or self._gate.free():
            return
        child = next((c for c in self._children if c.pid == holder.pid), None)
        if child is None:
            log.error("process %d holds the writer gate and is not ours; nothing can be written", holder.pid)
            self._stuck_since = (holder, time.monotonic())
        elif _in_disk_wait(holder.pid):
            log.warning("%s waits for the disk with the writer gate held", child.id)
            self._stuck_since = (holder, time.monotonic())
        else:
            log.error("%s holds the writer gate and does not move; ending it", child.id)
            child.kill("gate-held")

    def web(self, address: str) -> None:
        """Ask the web process whether it lives, in a thread; end it when it has long not answered."""
        child = next(child for child in self._children if child.role == "web")
        if child.process is None:
            self._answered = time.monotonic()
            return
        silent = time.monotonic() - max(self._answered, child.started)
        if silent > self._policy.answer_grace_s and child.killed_for is None:
            log.error("the web process has not answered for %.0f s; ending it", silent)
            child.kill("hung")
        elif self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask, args=(address,), name="ask-web", daemon=True)
            self._asking.start()

    def monitor(self, silent_s: float | None) -> None:
        """End a monitor whose readings have stopped; it is started again at most once a minute."""
        child = next(child for child in self._children if child.role == "monitor")
        if child.process is None or silent_s is None:
            return
        silent = min(silent_s, time.monotonic() - child.started)
        if silent > self._policy.answer_grace_s and child.killed_for is None:
            log.error("the monitor has written no reading for %.0f s; ending it", silent)
            child.kill("hung")

    def _ask(self, address: str) -> None:
        where = urlsplit(address)
        try:
            connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=_ANSWER_S)
            connection.request("GET", "/livez")
            if connection.getresponse().status < 500:
                self._answered = time.monotonic()
            connection.close()
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(_ASK_EVERY_S)


def _in_disk_wait(pid: int) -> bool:
    """Whether the process is in uninterruptible sleep: the disk is slow, and killing it would help nobody."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"
    except OSError:
        return False
