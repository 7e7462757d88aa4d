"""The accelerator of the GPU lane, found once at the start: a simulated one, a real card, or none.

1. Drivers and native code are asked by processes of their own, each with a time limit. One that hangs is left behind,
   and this is then a CPU-only service that says so: a start never waits for a driver for longer than that.
2. A model has a lane on a real card only if its engine says that it can compute there. Whoever has none is told in the
   log, with what to install; nothing ever runs on the CPU under the name of a card.
3. Where there is no driver nobody is asked, and nothing is waited for.
"""

import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from runners.devices.backends import Ability
from runners.devices.cards import Gone, Offer, choose
from runners.devices.real import environment_for
from runners.devices.simulated import SimulatedDevice
from runners.loading import upstream_of
from store.database import Paths, read_engine
from store.house import known_cards
from store.journal import Look
from store.models.catalog import ModelEntry
from store.settings import Settings

log = logging.getLogger("failsoft")

SIMULATED_ID: Final = "sim-0"
DRIVER_NODES: Final = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", "/dev/nvmap")
"""One of them is there where an NVIDIA driver is: Linux, Linux under Windows, Jetson."""
LOOK_S: Final = 30.0
"""How long a driver may take to show its cards. Waking one that sleeps takes some seconds for each card."""
ABILITY_S: Final = 60.0
"""How long an engine may take to be loaded and to open a card."""
LOOK: Final = (sys.executable, "-P", "-m", "runners.devices.nvml")
ABILITY: Final = (sys.executable, "-P", "-m", "runners.devices.backends")


class Accelerator(msgspec.Struct, frozen=True):
    """What the GPU lane computes on."""

    id: str
    name: str
    simulated: bool
    total: int | None
    models: tuple[str, ...]
    """Ids of the models that have a lane there."""


class _Shown(msgspec.Struct, frozen=True):
    """What `runners.devices.nvml` prints."""

    devices: tuple[Offer, ...] = ()
    problem: str = ""
    advice: str = ""


def find(paths: Paths, settings: Settings, models: Sequence[ModelEntry]) -> Accelerator | None:
    """The accelerator, or None: then this is an honest CPU-only service. Raises `Malformed` for a wrong name."""
    if settings.simulate_gpu is not None:
        device = SimulatedDevice(paths.sim / f"{SIMULATED_ID}.json", settings.simulate_gpu)
        every = tuple(entry.id for entry in models)
        return Accelerator(device.id, device.name, True, settings.simulate_gpu, every)
    card = _card(paths, settings.gpu)
    if card is None:
        return None
    able = _able(card, [entry for entry in models if upstream_of(settings, "gpu", entry.id) is None], settings)
    if not able:
        log.warning("found %s (%s): nothing computes on it, so the CPU lane serves alone", card.name, card.id)
        return None
    return Accelerator(card.id, card.name, False, card.total, tuple(able))


def _card(paths: Paths, wanted: str) -> Offer | None:
    """The card to use; None, told in the log, where there is none. Without a driver only a named card is told of."""
    if wanted == "none":
        return None
    if not any(Path(node).exists() for node in DRIVER_NODES):
        if wanted != "auto":
            log.error("there is no NVIDIA driver here, so %s cannot be used: the CPU lane serves alone", wanted)
        return None
    offers = _offers(LOOK, LOOK_S)
    card = None if offers is None else choose(wanted, offers, os.environ, _known(paths))
    if isinstance(card, Gone):
        log.error("the card %s is not there any more: the CPU lane serves alone. Look at nvidia-smi -L", card.id)
        return None
    if card is None and offers is not None:
        log.warning("the NVIDIA driver shows no card that can be used: the CPU lane serves alone")
    return card


def _known(paths: Paths) -> tuple[str, ...]:
    with read_engine(paths).connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        return known_cards(Look(driver, 0))


def _offers(command: Sequence[str], limit_s: float) -> tuple[Offer, ...] | None:
    """What the driver shows; None when it cannot be asked, which is told."""
    text = ask(command, {}, limit_s)
    if text is None:
        log.error(
            "the NVIDIA driver does not answer within %.0f s: the CPU lane serves alone. Look at dmesg; start the "
            "service again when the driver is well",
            limit_s,
        )
        return None
    try:
        shown = msgspec.json.decode(text, type=_Shown)
    except msgspec.DecodeError as error:
        log.error("the NVIDIA driver cannot be asked for cards (%s): the CPU lane serves alone", error)  # noqa: TRY400
        return None
    if shown.problem:
        log.warning("no card can be used, since %s: the CPU lane serves alone. %s", shown.problem, shown.advice)
        return None
    return shown.devices


def _able(card: Offer, models: Sequence[ModelEntry], settings: Settings) -> list[str]:
    """Ids of the models whose engine can compute on the card. Each engine is asked once, and told of once."""
    engines = {entry.engine for entry in models}
    usable = {engine: _ability(card, engine, settings) for engine in sorted(engines)}
    for engine, found in usable.items():
        if not found.usable:
            names = ", ".join(entry.id for entry in models if entry.engine == engine)
            log.warning(
                "%s has no lane on %s (%s): %s. %s, and start the service again",
                *(names, card.name, card.id, found.why, found.remedy),
            )
    return [entry.id for entry in models if usable[entry.engine].usable]


def _ability(card: Offer, engine: str, settings: Settings) -> Ability:
    if engine == "null":
        return Ability(True)  # it computes nothing, so any card will do
    server = settings.llama_server if engine == "llamacpp" else ""
    if server.startswith(("http://", "https://")):
        why = f"nobody can tell which card the server at {server} computes on"
        return Ability(False, why, 'Name it in [[upstreams]] with lane = "gpu", or give the command that starts it')
    if server:
        return Ability(True)  # the operator's own program; what it took of the card is looked at after each load
    text = ask([*ABILITY, engine], environment_for(card.id), ABILITY_S)
    if text is None:
        why = f"it did not tell within {ABILITY_S:.0f} s whether it can compute there"
        return Ability(False, why, "Look at dmesg and nvidia-smi")
    try:
        return msgspec.json.decode(text, type=Ability)
    except msgspec.DecodeError:
        why = "its native code ended when it was asked whether it can compute there"
        return Ability(False, why, "Look at the lines above and at dmesg; the driver may be too old for it")


def ask(command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> bytes | None:
    """What a program prints; None when it cannot be started or takes too long.

    A process that hangs inside a driver cannot even be killed, so it is told to end and never waited for.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            cwd=Path(__file__).parent.parent,
        )
    except OSError as error:
        log.warning("cannot start %s: %s", command[0], error)
        return None
    try:
        printed: bytes = process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        _left_behind.append(process)
        return None
    return printed


_left_behind: Final[list[Any]] = []
"""Kept, so that nobody waits for them when they are forgotten."""
