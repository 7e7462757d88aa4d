"""`failsoft doctor`: is this machine fit, and is the service on it well? One line each, with what to do about it."""

import argparse
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from sqlalchemy.exc import DBAPIError

from core.contract import kind_of
from web.commands.failed import OK, UNWELL
from web.commands.options import Commands, command, with_store
from web.commands.terminal import document, note, size_text, table

Level = Literal["ok", "warn", "fail"]

_FIXED_SQLITE: Final = (3, 51, 3)
"""From here on, and in 3.50.7 and 3.44.6 of their series, a WAL checkpoint beside a commit cannot lose it."""
_BACKPORTED: Final = {(3, 50): 7, (3, 44): 6}
_LITTLE_SPACE: Final = 2 << 30
_NO_SPACE: Final = 200 << 20
_LITTLE_MEMORY: Final = 1 << 30
_SLOW_SYNC_S: Final = 0.05
_SYNCS: Final = 25
_LOOK_S: Final = 30.0
_ABILITY_S: Final = 60.0


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    level: Level
    what: str
    found: str
    remedy: str = ""


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Enter the command."""
    with_store(command(commands, "doctor", run, "check this machine, the data directory and the service on it"))


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when something failed; warnings are told and pass."""
    from store.database import default_root

    root = (args.data or default_root()).expanduser().absolute()
    findings = list(examine(root))
    if args.json:
        document({"data": str(root), "findings": [msgspec.to_builtins(finding) for finding in findings]})
    else:
        note(f"Data directory: {root}")
        shown = [(f.level, f.what, f.found + (f". {f.remedy}" if f.remedy else "")) for f in findings]
        table(("", "what", "found"), shown)
    return UNWELL if any(finding.level == "fail" for finding in findings) else OK


def examine(root: Path) -> Iterator[Finding]:
    """Everything, in the order of a first start."""
    yield _python()
    yield sqlite(sqlite3.sqlite_version_info[:3])
    yield from _directory(root)
    yield from _machine(in_use(root))
    yield from _models(root)
    yield _service(root)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("ok", "python", f"{version} at {sys.executable}")


def sqlite(version: tuple[int, int, int]) -> Finding:
    """Whether this SQLite needs the writer gate to keep commits safe; it is always there."""
    text = ".".join(map(str, version))
    safe = version >= _FIXED_SQLITE or version[2] >= _BACKPORTED.get(version[:2], 1 << 30)
    if safe:
        return Finding("ok", "sqlite", f"{text}; the writer gate is kept for its fair waiting alone")
    return Finding("ok", "sqlite", f"{text} has the WAL-reset bug; the writer gate keeps commits safe from it")


def _directory(root: Path) -> Iterator[Finding]:
    from core.errors import NoSpace
    from store.database import filesystem_of, refuse_network

    place = next(folder for folder in (root, *root.parents) if folder.exists())
    kind = filesystem_of(place)
    try:
        refuse_network(place)
    except NoSpace as error:
        yield Finding("fail", "filesystem", error.detail)
        return
    if kind in {"tmpfs", "ramfs"}:
        yield Finding("warn", "filesystem", f"{kind}: the record is gone with the next boot", "Use a disk (--data DIR)")
    else:
        yield Finding("ok", "filesystem", kind)
    try:
        yield _sync(place)
    except OSError as error:
        why = f"{place} cannot be written: {error.strerror}"
        yield Finding("fail", "writable", why, "Choose another with --data DIR, or free some space")
        return
    yield _space(place)


def _space(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    found = f"{size_text(free)} free"
    if free < _NO_SPACE:
        return Finding("fail", "space", found, "Free some; a full disk stops all writing")
    level: Level = "warn" if free < _LITTLE_SPACE else "ok"
    return Finding(level, "space", found, "Models and the record may soon need more" if level == "warn" else "")


def _sync(place: Path) -> Finding:
    """How long the disk takes to make a small write durable: each answer that was promised waits for one."""
    times = []
    with tempfile.NamedTemporaryFile(dir=place, prefix=".failsoft-doctor-") as file:
        for _ in range(_SYNCS):
            file.write(b"\0" * 4096)
            file.flush()
            begun = time.monotonic()
            os.fdatasync(file.fileno())
            times.append(time.monotonic() - begun)
    middle = statistics.median(times)
    found = f"a durable write takes {middle * 1000:.2f} ms (median of {_SYNCS})"
    if middle > _SLOW_SYNC_S:
        return Finding("warn", "disk", found, "Every accepted request waits for one; use a faster disk (--data DIR)")
    return Finding("ok", "disk", found)


def in_use(root: Path) -> dict[str, Any] | None:
    """What the service that runs on this directory said of its CPU lane's memory; None where none runs."""
    from store.database import Paths, read_engine
    from store.hostlane import seen
    from store.journal import Look

    if not _held(Paths(root).service_lock):
        return None
    try:
        with read_engine(Paths(root)).connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            found = seen(Look(driver, 0))
    except DBAPIError:
        return None
    return None if found is None else msgspec.to_builtins(found)


def _held(lock: Path) -> bool:
    """Whether a service runs on the directory; its lock is only read, since one that just starts may need it."""
    try:
        return Path(f"/proc/{int(lock.read_text())}").exists()
    except (OSError, ValueError):
        return False


def budget(found: dict[str, Any], *, running: bool) -> Finding:
    """What the workers of the CPU lane may hold together, and what holds them to it."""
    now = f", {size_text(sum(found['held'].values()))} held now" if running else ""
    size = f"{size_text(found['budget'])} for the CPU lane (limit: {found['limited_by']}){now}"
    if found["by"] == "cgroup":
        return Finding("ok", "host budget", f"{size}; the kernel holds it, in a cgroup of its own")
    text = f"{size}; a watch and a limit on each worker hold it: {found['why']}"
    return Finding("ok", "host budget", text, _DELEGATE)


_DELEGATE: Final = "Where cgroup v2 is, the kernel does: systemd-run --user --scope -p Delegate=yes failsoft serve"


def _machine(lane: dict[str, Any] | None) -> Iterator[Finding]:
    try:
        look = subprocess.run(
            [sys.executable, "-P", "-m", "runners.lookout"], capture_output=True, timeout=_LOOK_S, check=True
        )
        found = msgspec.json.decode(look.stdout)
    except subprocess.TimeoutExpired:
        hung = f"asking for cores, memory and accelerators took more than {_LOOK_S:.0f} s"
        yield Finding("fail", "machine", hung, "The GPU driver may hang: look at dmesg, reboot if it says so")
        return
    except (subprocess.CalledProcessError, msgspec.DecodeError) as error:
        last = getattr(error, "stderr", b"").decode(errors="replace").strip().splitlines()[-1:]
        yield Finding("fail", "machine", f"cannot look at this machine: {last or error}", "Run: make setup")
        return
    cores = found["cores"]
    yield Finding("ok" if cores > 1 else "warn", "cores", f"{cores} may be used", "" if cores > 1 else _ONE_CORE)
    memory = found["memory"]
    enough = memory["available"] >= _LITTLE_MEMORY
    yield Finding(
        "ok" if enough else "warn",
        "memory",
        f"{size_text(memory['available'])} of {size_text(memory['total'])} available (limit: {memory['limited_by']})",
        "" if enough else "A model may not fit; end other programs or raise the limit",
    )
    yield budget(lane or found["budget"], running=lane is not None)
    yield from _accelerators(found["accelerators"])


_ONE_CORE: Final = "The lanes take turns on it"


def _accelerators(found: dict[str, Any]) -> Iterator[Finding]:
    simulate = "--simulate-gpu 1GiB shows everything with a simulated one"
    if "problem" in found:
        yield Finding(
            "warn", "accelerator", f"none through NVML: {found['problem']}", f"The CPU lane serves; {simulate}"
        )
        return
    for device in found["devices"]:
        memory = f"{size_text(device['free_bytes'])} of {size_text(device['total_bytes'])} free"
        text = f"{device['name']} ({device['id']}, kind {kind_of(device['name'])}), {memory}, driver {found['driver']}"
        yield Finding("ok", "accelerator", text)
    if not found["devices"]:
        yield Finding(
            "warn", "accelerator", f"the driver {found['driver']} shows none", f"The CPU lane serves; {simulate}"
        )
        return
    for engine in ("llamacpp", "ctransformers"):
        yield _on_cards(engine)


def _on_cards(engine: str) -> Finding:
    """Whether an engine can compute on a card; asked by a process of its own, as the service does at its start."""
    what = f"{engine} on cards"
    try:
        look = subprocess.run(
            [sys.executable, "-P", "-m", "runners.devices.backends", engine],
            capture_output=True,
            timeout=_ABILITY_S,
            check=True,
        )
        found = msgspec.json.decode(look.stdout)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError, msgspec.DecodeError) as error:
        return Finding("warn", what, f"it cannot be asked: {error}", "Look at dmesg and nvidia-smi")
    if found["usable"]:
        return Finding("ok", what, "it can compute there")
    return Finding("warn", what, found["why"], found["remedy"])


def _models(root: Path) -> Iterator[Finding]:
    from store.database import Paths
    from store.models.catalog import DEFAULT_ID, Catalog, packaged_smollm2

    entries = Catalog(Paths(root).models).entries()
    for entry in entries:
        if entry.problem:
            yield Finding("warn", f"model {entry.id}", entry.problem)
        else:
            size = size_text(entry.prepared_bytes) if entry.prepared_bytes else "built in"
            yield Finding("ok", f"model {entry.id}", f"ready ({size})")
    if DEFAULT_ID not in {entry.id for entry in entries}:
        if packaged_smollm2() is None:
            remedy = "Run: make setup, or serve a file of your own (failsoft models prepare FILE --id ID)"
            yield Finding("warn", f"model {DEFAULT_ID}", "the package with it is not installed", remedy)
        else:
            yield Finding("ok", f"model {DEFAULT_ID}", "packaged; prepared at the first start")


def _service(root: Path) -> Finding:
    import httpx

    try:
        url = (root / "run" / "address").read_text().strip()
        answer = httpx.get(f"{url}/health", timeout=5.0, trust_env=False)
        health = msgspec.json.decode(answer.content, type=dict[str, Any])
        checks = health["checks"]
    except (OSError, httpx.ConnectError):
        return Finding("ok", "service", "none runs on this directory", "Start one with: failsoft serve")
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError, KeyError, TypeError) as error:
        return Finding("fail", "service", f"{url} does not answer well: {error}", "Look at the service's log")
    unwell = "; ".join(f"{check['name']}: {check['detail']}" for check in checks if check["status"] != "pass")
    level: Level = {"pass": "ok", "warn": "warn"}.get(health["status"], "fail")  # type: ignore[assignment]
    return Finding(level, "service", f"runs at {url}" + (f"; {unwell}" if unwell else ", and is well"))
