"""Which workers of the CPU lane are up: all of them, or those that are needed.

1. `warm`: always. A takeover begins within a moment, and the memory is held all the time.
2. `cold`: a worker is started when there is work on its lane, or when its GPU lane is out, since work will come; it is
   ended when it was not needed for `cpu_idle_s`. A takeover waits for the model to load.
3. `mmap`: the same, and the model's file is kept in the page cache, so that loading it needs no disk. The kernel may
   take those pages for others at any time.
4. A model without a GPU lane always needs its worker. Servers of others are not touched.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from core.policy import Policy
from runners.children import Child
from store import laneviews
from store.journal import Look, Tx

log = logging.getLogger("failsoft")

_WARM_EVERY_S: Final = 10.0

Submit = Callable[[Callable[[Tx], Any]], "Future[Any]"]


class Readiness:
    """The CPU-lane children of one run that this machine computes itself."""

    def __init__(
        self,
        kind: Literal["warm", "mmap", "cold"],
        children: list[Child],
        files: Mapping[str, Path],
        driver: sqlite3.Connection,
        submit: Submit,
        policy: Policy,
    ) -> None:
        """`files`: by model, what its worker maps."""
        chosen = [child for child in children if child.spec and child.spec.on_host]
        self._children = {child.spec.model: child for child in chosen if child.spec} if kind != "warm" else {}
        self._files = dict(files) if kind == "mmap" else {}
        self._driver = driver
        self._submit = submit
        self._policy = policy
        self._needed_at = dict.fromkeys(self._children, time.monotonic() - policy.cpu_idle_s)
        self._next_read = 0.0
        for child in self._children.values():
            child.wanted = False

    def tick(self) -> None:
        """Look, and start or end who is to be started or ended."""
        now = time.monotonic()
        for model, child in self._children.items():
            if self._needed(model):
                self._needed_at[model] = now
                self._set(model, child, wanted=True)
            elif child.wanted and child.at_rest() and now - self._needed_at[model] >= self._policy.cpu_idle_s:
                self._set(model, child, wanted=False)
                child.retire("not-needed")
        if self._files and now >= self._next_read:
            self._next_read = now + _WARM_EVERY_S
            threading.Thread(target=_read_ahead, args=(list(self._files.values()),), daemon=True).start()

    def _needed(self, model: str) -> bool:
        look = Look(self._driver, 0)
        gpu = laneviews.lane_row(look, "gpu", model)
        return gpu is None or not gpu.serving or laneviews.has_work(look, "cpu", model)

    def _set(self, model: str, child: Child, *, wanted: bool) -> None:
        if child.wanted != wanted:
            child.wanted = wanted
            self._submit(partial(laneviews.set_resident, lane="cpu", model=model, resident=wanted))


def _read_ahead(files: list[Path]) -> None:
    """Have the kernel read what of these files it does not hold."""
    for file in files:
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            log.warning("%s cannot be kept in the page cache: %s", file, error.strerror)
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)
