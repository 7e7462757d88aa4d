"""The secret that notices are signed with, and the signature, as Standard Webhooks has them.

One secret for an installation, made once, in a file that only its owner may read. Whoever needs it first makes it; two
who make it at once agree on one.
"""

import base64
import binascii
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from core.errors import Malformed
from core.webhooks import signed
from store.database import Paths

PREFIX: Final = "whsec_"
_BYTES: Final = 32
_LEAST: Final = 24


def secret_file(paths: Paths) -> Path:
    """Where the secret is kept: `whsec_` and base64."""
    return paths.root / "webhook-secret"


def secret(paths: Paths) -> bytes:
    """The secret, made if there is none yet. Raises `Malformed` when the file holds none, or others may read it."""
    file = secret_file(paths)
    if not file.exists():
        _make(file)
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise Malformed(f"{file} may be read by others; run: chmod 600 {file}, or delete it, and a new one is made")
    text = file.read_text(encoding="ascii", errors="replace").strip()
    try:
        raw = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not text.startswith(PREFIX) or len(raw) < _LEAST:
        raise Malformed(
            f"{file} does not hold {PREFIX} and at least {_LEAST} bytes in base64; put the right one back, or delete "
            "the file: a new secret is made, which receivers must be told"
        )
    return raw


def secret_text(paths: Paths) -> str:
    """The secret as receivers' libraries take it. Raises as `secret` does."""
    return PREFIX + base64.b64encode(secret(paths)).decode()


def _make(file: Path) -> None:
    draft = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(PREFIX.encode() + base64.b64encode(secrets.token_bytes(_BYTES)) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(draft, file)
        except FileExistsError:
            return  # somebody else was first: theirs counts
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        draft.unlink()


def signature(key: bytes, message_id: str, timestamp_s: int, body: str) -> str:
    """The value of a `webhook-signature` header."""
    return "v1," + base64.b64encode(hmac.digest(key, signed(message_id, timestamp_s, body), "sha256")).decode()
