"""Writes GGUF files, tensor by tensor, without ever holding a model in memory."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any

import msgspec

from store.models.ggml_types import GgmlType
from store.models.gguf import ARRAY, BOOL, DEFAULT_ALIGNMENT, MAGIC, NUMBERS, STRING

U8, I8, U16, I16, U32, I32, F32, U64, I64, F64 = 0, 1, 2, 3, 4, 5, 6, 10, 11, 12


class NewTensor(msgspec.Struct, frozen=True):
    """A tensor to write. `chunks` is called once and yields exactly the tensor's bytes."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    chunks: Callable[[], Iterable[bytes]]

    @property
    def nbytes(self) -> int:
        """Length of the data in the file."""
        elements = 1
        for size in self.shape:
            elements *= size
        return elements // self.type.block * self.type.block_bytes


def write_gguf(
    file: IO[bytes],
    *,
    version: int,
    metadata: Mapping[str, Any],
    types: Mapping[str, int],
    tensors: Sequence[NewTensor],
    alignment: int = DEFAULT_ALIGNMENT,
) -> None:
    """Write a whole GGUF file (version 2 or 3) to `file`, from its present position 0 on.

    `metadata` and `types` have the form `read_header` gives: a tuple is an array, its type that of its elements.
    Strings may be `bytes` (written as they are) or `str` (`surrogateescape` characters become their bytes again).
    Raises `ValueError` when a tensor's chunks are not as long as its shape says.
    """
    file.write(MAGIC + struct.pack("<IQQ", version, len(tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(_text(key))
        if isinstance(value, tuple):
            file.write(struct.pack("<IIQ", ARRAY, types[key], len(value)))
            file.write(b"".join(_scalar(types[key], item) for item in value))
        else:
            file.write(struct.pack("<I", types[key]) + _scalar(types[key], value))
    offset = 0
    for tensor in tensors:
        file.write(_text(tensor.name))
        file.write(struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape))
        file.write(struct.pack("<IQ", tensor.type.number, offset))
        offset += tensor.nbytes + _padding(tensor.nbytes, alignment)
    file.write(bytes(_padding(file.tell(), alignment)))
    for tensor in tensors:
        written = 0
        for chunk in tensor.chunks():
            file.write(chunk)
            written += len(chunk)
        if written != tensor.nbytes:
            msg = f"tensor {tensor.name}: {written} bytes given, {tensor.nbytes} expected"
            raise ValueError(msg)
        file.write(bytes(_padding(written, alignment)))


def _text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _scalar(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    if kind == BOOL:
        return b"\x01" if value else b"\x00"
    return NUMBERS[kind].pack(value)


def _padding(length: int, alignment: int) -> int:
    return -length % alignment
