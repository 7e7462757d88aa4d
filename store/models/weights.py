"""Reads tensor data in pieces and digests it.

The digest is of what the weights *are*, not of the file: tensors in order of name, each with shape, type and bytes.
An output matrix that only repeats the embeddings counts as not being there, so that preparing a file, which writes
that repetition out, keeps the digest.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from core.errors import ModelFileError
from store.models.gguf import GGUF, Tensor

_CHUNK = 1024 * 1024
EMBEDDINGS = "token_embd.weight"
OUTPUT = "output.weight"


def tensor_chunks(header: GGUF, tensor: Tensor) -> Iterator[bytes]:
    """The bytes of one tensor, in pieces of at most 1 MiB. Raises `ModelFileError` when the file became shorter."""
    left = tensor.nbytes
    with header.path.open("rb") as file:
        file.seek(header.data_offset + tensor.offset)
        while left:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                msg = f"{header.path.name} became shorter while it was read. Copy it again and prepare it again."
                raise ModelFileError(msg)
            left -= len(chunk)
            yield chunk


def weights_digest(header: GGUF) -> str:
    """Hex SHA-256 of the tensor data, the same before and after preparing."""
    single = {}
    for tensor in header.tensors:
        total = hashlib.sha256(f"{tensor.type.name} {tensor.shape} ".encode())
        for chunk in tensor_chunks(header, tensor):
            total.update(chunk)
        single[tensor.name] = total.hexdigest()
    if OUTPUT in single and single[OUTPUT] == single.get(EMBEDDINGS):
        del single[OUTPUT]
    whole = hashlib.sha256()
    for name in sorted(single):
        whole.update(f"{name}\0{single[name]}\n".encode())
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """Hex SHA-256 of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
