"""Saved states on the disk, for one runner: saved between chunks, named once they are durable, checked before use.

1. The engine writes a file under a draft's name while the work stands still; hashing and naming it happen beside the
   work that goes on. What is saved for a way that is certain (a stop, a move) is on the disk before it is named. What
   is saved in passing is not flushed: it outlives every process, and is mostly replaced before it would have to be
   written; after a power cut its digest tells what is missing, and the prefix is computed again.
2. A file is handed to an engine only if its bytes are those that were saved and it is of the kind that engine takes:
   native code dies of a damaged one.
3. Saving is a comfort: when it fails, or there is no room, the work goes on without.
"""

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from core.errors import EngineFault, Fenced
from runners.engines.base import Loaded, Sequence, Snapshot
from store import snapshots
from store.claims import Claim
from store.journal import Sees
from store.snapshots import Kept
from store.writer import Writer

log = logging.getLogger("failsoft.runner")

_AFTER_FAILURE_S: Final = 5.0
"""After a save that failed the next one is not tried at once."""
DRAFT: Final = ".draft"
KEPT: Final = ".kv"
FRESH_S: Final = 10.0
"""A file younger than this may be about to get its name."""
_FLOOR: Final = 256 << 20
"""Bytes of the disk that saved states never take: records come first."""


class Saved(msgspec.Struct, frozen=True):
    """A save under way: what it holds, and when it is named."""

    tokens: int
    named: "Future[bool]"


class Keeper:
    """One runner's saved states. `folder` is the snapshots directory, `limit` the room for all of them in bytes."""

    def __init__(self, folder: Path, writer: Writer, runner: str, limit: int) -> None:
        self._folder = folder
        self._writer = writer
        self._runner = runner
        self._limit = limit
        self._later = ThreadPoolExecutor(1, thread_name_prefix="keeper")
        self._token_bytes = 0.0
        self._not_before = 0.0
        self._last_s: float | None = None
        self.token_s: float | None = None
        """Seconds that saving takes for each token; None: nothing was saved yet. The faster of the last two counts: a
        disk that stalls once is no reason to save less."""

    def newest(self, look: Sees, claim: Claim, kv_format: str) -> tuple[Snapshot | None, str]:
        """The saved state to begin with, or None and the reason why the one that is there is not used."""
        found = snapshots.kept(look, claim.fence.request_id, claim.state.output_epoch)
        if found is None or not kv_format:
            return None, ""
        if found.kv_format != kv_format or found.units > len(claim.done):
            return None, "other-kind"
        path = self._folder / found.name
        trouble = _trouble(path, found)
        if trouble:
            self.reject(claim, found, trouble)
            return None, trouble
        return Snapshot(path, found.tokens), ""

    def reject(self, claim: Claim, bad: Kept, reason: str) -> None:
        """Never to be used again."""
        log.warning("the saved state of %s is not used: %s", claim.fence.request_id, reason)
        with contextlib.suppress(Fenced):  # not ours any more: the first write of the work will say so
            self._writer.run(lambda tx: snapshots.reject(tx, claim.fence, bad, reason))
        _remove(self._folder / bad.name)

    def save(
        self, claim: Claim, loaded: Loaded, sequence: Sequence, units: int, *, flush: bool = False
    ) -> Saved | None:
        """Save the state between two chunks, and name it later; None when that could not be.

        With `flush` it is on the disk before it gets its name.
        """
        if self._limit == 0 or time.monotonic() < self._not_before or not self._room(units + len(claim.spec.tokens)):
            return None
        draft = self._folder / f"{self._runner}~{secrets.token_hex(6)}{DRAFT}"
        began = time.monotonic()
        try:
            tokens = loaded.save(sequence, draft)
            size = draft.stat().st_size
        except (EngineFault, OSError) as error:
            log.warning("cannot save the state of %s: %s", claim.fence.request_id, error)
            _remove(draft)
            self._not_before = time.monotonic() + _AFTER_FAILURE_S
            return None
        took = time.monotonic() - began
        self._learn(took / max(1, tokens))
        evaluated = len(claim.spec.tokens)
        new = Kept(
            request_id=claim.fence.request_id,
            name=draft.with_suffix(KEPT).name,
            epoch=claim.state.output_epoch,
            units=max(0, tokens - evaluated),
            tokens=tokens,
            bytes=size,
            digest="",
            kv_format=loaded.kv_format,
        )
        self._token_bytes = new.bytes / max(1, tokens)
        return Saved(tokens, self._later.submit(self._name, claim, draft, new, took, flush=flush))

    def _learn(self, token_s: float) -> None:
        before, self._last_s = self._last_s, token_s
        self.token_s = token_s if before is None else min(before, token_s)

    def close(self) -> None:
        """Finish what is under way."""
        self._later.shutdown()

    def _name(self, claim: Claim, draft: Path, new: Kept, took_s: float, *, flush: bool) -> bool:
        final = self._folder / new.name
        try:
            digest = _digest(draft, flush=flush)
            draft.rename(final)
            if flush:
                _flush(self._folder)
            whole = msgspec.structs.replace(new, digest=digest)
            outcome = self._writer.run(
                lambda tx: snapshots.keep(tx, claim.fence, whole, took_us=int(took_s * 1e6), limit=self._limit)
            )
        except Fenced:
            outcome = snapshots.Outcome(wanted=False)
        except Exception as error:  # noqa: BLE001 -- a comfort that failed must not end the work
            log.warning("cannot keep a saved state: %s", error)
            _remove(draft)
            return False
        if not outcome.wanted:
            _remove(final)
        elif outcome.before is not None:
            _remove(self._folder / outcome.before)
        return outcome.wanted

    def _room(self, tokens: int) -> bool:
        expected = self._token_bytes * tokens
        if expected > self._limit:
            return False
        try:
            return shutil.disk_usage(self._folder).free > expected + _FLOOR
        except OSError:
            return False


def sweep(folder: Path, named: set[str], runners: set[str], *, older_than_s: float = FRESH_S) -> list[Path]:
    """Remove what belongs to nobody: kept files that no row names, drafts of runners that are gone. Answers them.

    A kept file is left for a while, since it is named only after it got its name on the disk. What cannot be removed is
    told in the log, and stops nothing else.
    """
    gone = []
    for file in folder.iterdir() if folder.is_dir() else ():
        try:
            if file.suffix == DRAFT:
                orphan = file.name.partition("~")[0] not in runners
            else:
                orphan = file.name not in named and time.time() - file.lstat().st_mtime > older_than_s
        except OSError:
            continue
        if orphan and _remove(file):
            gone.append(file)
    return gone


def _remove(file: Path) -> bool:
    """Remove a file of ours, if it is there and can be; whether it is gone."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s cannot be removed (%s); move it away by hand", file, error.strerror)
        return False
    return True


def _trouble(path: Path, found: Kept) -> str:
    """Why the file is not what was saved; empty when it is."""
    try:
        if path.stat().st_size != found.bytes:
            return "damaged"
        return "" if _digest(path) == found.digest else "damaged"
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "damaged"


def _digest(path: Path, *, flush: bool = False) -> str:
    """SHA-256 of the file in hex, its bytes on the disk first if wanted."""
    with path.open("rb") as file:
        if flush:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
