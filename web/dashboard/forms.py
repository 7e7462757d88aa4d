"""What a form of ours sends, read and checked."""

from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Final
from urllib.parse import parse_qsl

from litestar import Request

from core.errors import Malformed
from web.api.answers import read_raw
from web.dashboard import csrf

_KIND: Final = "application/x-www-form-urlencoded"
_UPLOAD: Final = "multipart/form-data"
_MAX_FIELDS: Final = 20


async def read_form(request: Request[Any, Any, Any], limit: int) -> dict[str, str]:
    """The fields of a form that is ours, its token left out. Raises `Malformed`, `TooLarge`, `Refusal`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND:
        raise Malformed(f"a page's form comes as {_KIND}; programs use /api with JSON")
    raw = await read_raw(request, limit)
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise Malformed("the form cannot be read; open the page again and repeat the action there") from error
    fields = dict(pairs)
    csrf.require(request, fields.pop(csrf.FIELD, ""))
    return fields


async def read_upload(request: Request[Any, Any, Any], limit: int) -> dict[str, bytes]:
    """The fields of a form of ours that sends a file, its token left out. Raises `Malformed`, `TooLarge`, `Refusal`."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != _UPLOAD:
        raise Malformed(f"a page's form with a file comes as {_UPLOAD}; programs use /api with JSON")
    head = b"content-type: " + kind.encode("latin-1", "replace") + b"\r\n\r\n"
    message = BytesParser(policy=HTTP).parsebytes(head + await read_raw(request, limit))
    fields: dict[str, bytes] = {}
    for part in message.iter_parts() if message.is_multipart() else ():
        name, body = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(body, bytes) and len(fields) < _MAX_FIELDS:
            fields[name] = body
    csrf.require(request, fields.pop(csrf.FIELD, b"").decode("ascii", "replace"))
    return fields


def number(fields: dict[str, str], name: str) -> int:
    """A field as a whole number. Raises `Malformed`."""
    value = fields.get(name, "").strip()
    if not value.isascii() or not value.isdigit() or len(value) > 10:
        raise Malformed(f"{name.replace('_', ' ')} must be a whole number, such as 64", param=name)
    return int(value)
