"""What a run of the service stands on: a data directory that is its own, and an address that is free."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from core.errors import Malformed, NoSpace, Reduced
from core.loopback import is_loopback
from store.database import Paths


@contextlib.contextmanager
def usable(root: Path) -> Iterator[None]:
    """Errors of the disk while the data directory is taken into use, in words. Raises `NoSpace`."""
    try:
        yield
    except OSError as error:
        raise NoSpace(
            f"cannot use {root} as the data directory: {error.strerror or error}; "
            "make it writable and free space on its disk, or name another with --data"
        ) from error
    except DBAPIError as error:
        raise NoSpace(
            f"the store in {root} cannot be opened: {error.orig}; "
            "free space on its disk, restore a copy of it, or name another directory with --data"
        ) from error


def lock_directory(paths: Paths) -> int:
    """Hold the directory for this run; the descriptor is the hold. Raises `Reduced` with the pid of who has it."""
    descriptor = os.open(paths.service_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
        raise Reduced(
            f"failsoft already runs on {paths.root} with pid {pid}; stop it, or choose another --data",
            code="already_running",
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def require_loopback(host: str) -> None:
    """Refuse to be reachable from elsewhere without keys, before anything is started. Raises `Malformed`."""
    if not is_loopback(host):
        raise Malformed(
            f"host {host} is reachable from other machines, and there are no API keys yet; "
            "use 127.0.0.1, and a tunnel or a proxy with a login for access from elsewhere"
        )


def bind(host: str, port: int) -> socket.socket:
    """The address is taken before anything is prepared or written, and listened on once somebody will answer."""
    host = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _unbound(host, port, error) from error
    return listener


def listen(listener: socket.socket, host: str, paths: Paths) -> None:
    """Begin to listen, and write down where."""
    try:
        listener.listen(1024)
    except OSError as error:  # another has bound it as well, and was first to listen
        raise _unbound(host, listener.getsockname()[1], error) from error
    (paths.run / "address").write_text(address_of(host, listener))


def address_of(host: str, listener: socket.socket) -> str:
    """The URL of a listening socket, under the name it was asked for."""
    bare = host.strip("[]")
    return f"http://{f'[{bare}]' if ':' in bare else bare}:{listener.getsockname()[1]}"


def _unbound(host: str, port: int, error: OSError) -> Malformed:
    return Malformed(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port")
