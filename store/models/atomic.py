"""Replaces a file as a whole: after a crash there is the old file or the new one, never a part."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from core.errors import NoSpace


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """An open binary file that becomes `path` when the block ends well, and vanishes when it raises.

    The data reaches the disk before the name does. Raises `core.errors.NoSpace` when the disk is full or read-only.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise _told(path, error) from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise _told(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _told(path: Path, error: OSError) -> Exception:
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}:
        reason = error.strerror or str(error)
        msg = f"{path} cannot be written: {reason}. Free some space or give another data directory."
        return NoSpace(msg)
    return error


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
