"""Devices that are out: whoever computes there is ended, and nobody is started, until they answer again.

1. A device is lost by its reading, or by the word of a runner that saw it first; the record hears of it once.
2. What a driver says of a lost device is told once for each thing it says: it may say the same in turns, for days.
3. While a breaker is open nobody is started either (`runners.cooldowns`).
"""

import logging
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from core.policy import Policy
from runners.children import Child
from runners.cooldowns import Cooldowns
from runners.devices.base import OUT
from store import breakers, house
from store.clock import Clock
from store.house import DeviceSeen
from store.journal import Look, Tx

log = logging.getLogger("failsoft")

Submit = Callable[[Callable[[Tx], Any]], Any]
_ACTOR: Final = "supervisor"


class Outages:
    """The supervisor's eye on devices, over one read-only connection."""

    def __init__(
        self, children: list[Child], driver: sqlite3.Connection, submit: Submit, policy: Policy, clock: Clock
    ) -> None:
        self._children = children
        self._look = Look(driver, 0)
        self._submit = submit
        self._policy = policy
        self._cooldowns = Cooldowns(driver, submit, clock)
        self._out: set[str] = set()
        self._said: dict[str, set[tuple[str, str]]] = {}

    def holds(self, child: Child) -> bool:
        """Whether a runner is not to be started now, for what is known of its device."""
        device = child.spec.device if child.spec is not None else None
        return device is not None and (device in self._out or self._cooldowns.open(device))

    def lost(self, device: str) -> None:
        """A runner has seen it first, and has told the record."""
        self._out.add(device)

    def cool(self) -> None:
        """Try devices whose cooldown is over."""
        self._cooldowns.tick()

    def tick(self) -> None:
        """Look at what was read last."""
        for device in house.devices_seen(self._look):
            if device.seen in OUT:
                self._gone(device)
            elif device.seen is None and device.recorded == "lost":
                self._out.add(device.id)
            elif device.seen == "ok":
                self._out.discard(device.id)
                self._said.pop(device.id, None)
                if device.recorded == "lost":
                    back = partial(breakers.device_back, device=device.id, reason="it answers again", actor=_ACTOR)
                    self._submit(back)

    def _gone(self, device: DeviceSeen) -> None:
        self._out.add(device.id)
        for child in self._children:
            if child.spec is not None and child.spec.device == device.id and child.process is not None:
                child.kill("device-lost")
        said, words = self._said.setdefault(device.id, set()), (device.reason, device.advice)
        if words not in said:
            log.error(
                "device %s is lost: %s%s", device.id, device.reason, f". {device.advice}" if device.advice else ""
            )
        if device.recorded != "lost":
            lost = partial(breakers.device_lost, device=device.id, policy=self._policy)
            self._submit(partial(lost, reason=device.reason, actor=_ACTOR))
        elif words not in said:
            self._submit(partial(breakers.device_says, device=device.id, policy=self._policy, actor=_ACTOR))
        said.add(words)
