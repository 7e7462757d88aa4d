"""Reads the header of a GGUF model file that nobody has checked yet.

1. A model file is a stranger's file. Whatever is in it, the reader returns a header or raises `ModelFileError`;
   it never runs out of memory, never loops, never lets another exception out.
2. Every count and length is compared with the bytes that are left before anything is read or made for it.
3. The file is read, not mapped: a file cut short by someone else while it is mapped would kill the process.
4. What the header says about tensors is checked against the file: inside it, aligned, not overlapping.
5. Text inside values may be any bytes (a vocabulary of raw bytes is legal). What is not UTF-8 is kept losslessly
   with `surrogateescape`; keys and tensor names must be UTF-8.
6. Nothing about the meaning of keys is decided here; see `suitability`.
"""

import struct
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, TypeVar, overload

import msgspec

from core.errors import ModelFileError
from store.models.ggml_types import GGML_TYPES, GgmlType

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_HEADER_BYTES = 128 * 1024 * 1024
"""The largest vocabularies in use make headers of about 20 MiB."""
MAX_ELEMENTS = 4_000_000
"""Array elements, keys and tensors together."""
MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 1_024
MAX_DEPTH = 3
"""Arrays in arrays; no known model uses any."""
_CHUNK = 1024 * 1024
_BAD_COPY = "Download the file again, or copy it again and compare sizes."

STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
"""Value types of fixed length, by number."""

_T = TypeVar("_T")


class Tensor(msgspec.Struct, frozen=True):
    """One tensor: where its bytes are, not the bytes. `offset` counts from the header's `data_offset`."""

    name: str
    shape: tuple[int, ...]
    """Fastest dimension first, as in the file."""
    type: GgmlType
    offset: int
    nbytes: int

    @property
    def elements(self) -> int:
        """Number of weights."""
        total = 1
        for size in self.shape:
            total *= size
        return total


class GGUF(msgspec.Struct, frozen=True):
    """The header of a model file, checked against the file's size."""

    path: Path
    version: int
    metadata: dict[str, Any]
    """Arrays are tuples. Text that is not UTF-8 carries `surrogateescape` characters."""
    types: dict[str, int]
    """The stored type number of each metadata value; for an array, of its elements."""
    tensors: tuple[Tensor, ...]
    """In file order."""
    data_offset: int
    alignment: int
    file_size: int

    @overload
    def value(self, key: str, kind: type[_T]) -> _T | None: ...

    @overload
    def value(self, key: str, kind: type[_T], default: _T) -> _T: ...

    def value(self, key: str, kind: type[_T], default: _T | None = None) -> _T | None:
        """The metadata value under `key`, or `default` when absent.

        Raises `ModelFileError` when the value is of another kind than asked for.
        """
        if key not in self.metadata:
            return default
        found = self.metadata[key]
        if not isinstance(found, kind) or (kind is not bool and isinstance(found, bool)):
            msg = (
                f"{self.path.name}: {key} should be a {kind.__name__} and is a {type(found).__name__}. "
                "Use a file made by a current converter."
            )
            raise ModelFileError(msg)
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """The array of strings under `key`; raises `ModelFileError` when absent or of another kind."""
        found = self.value(key, tuple)
        if found is None or self.types[key] != STRING or any(not isinstance(item, str) for item in found):
            msg = f"{self.path.name}: {key} is not a list of strings. Use a file made by a current converter."
            raise ModelFileError(msg)
        return found

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """The array of integers under `key`, None when absent."""
        found = self.value(key, tuple)
        if found is not None and any(type(item) is not int for item in found):
            msg = f"{self.path.name}: {key} is not a list of integers. Use a file made by a current converter."
            raise ModelFileError(msg)
        return found


def read_header(path: Path) -> GGUF:
    """The checked header of the GGUF file at `path`.

    Versions 1 to 3, little-endian. Raises `ModelFileError`, whose text names cause and remedy, for anything that
    is not a whole and consistent model file, and for a file that cannot be opened.
    """
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            size = file.tell()
            file.seek(0)
            return _Parser(file, size, path).header()
    except OSError as error:
        reason = error.strerror or str(error)
        msg = f"{path} cannot be read: {reason}. Check the path, the rights and the disk."
        raise ModelFileError(msg) from error


class _Parser:
    """A cursor over the front of the file that knows how much is left."""

    def __init__(self, file: IO[bytes], size: int, path: Path) -> None:
        self._file = file
        self._size = size
        self._path = path
        self._buffer = bytearray()
        self._at = 0
        self._elements = 0
        self._wide = True

    def fail(self, cause: str, remedy: str = _BAD_COPY) -> ModelFileError:
        return ModelFileError(f"{self._path.name}: {cause}. {remedy}")

    # --- bytes ------------------------------------------------------------------------------------------------

    def need(self, count: int, what: str) -> None:
        """Make `count` more bytes available in the buffer, or raise."""
        end = self._at + count
        if end > self._size:
            raise self.fail(f"the file ends inside {what}: {end} bytes wanted, {self._size} there")
        if end > MAX_HEADER_BYTES:
            raise self.fail(f"{what} lies beyond {MAX_HEADER_BYTES} bytes; no real header is so long")
        while len(self._buffer) < end:
            more = self._file.read(max(_CHUNK, end - len(self._buffer)))
            if not more:
                raise self.fail(f"the file became shorter while {what} was read")
            self._buffer += more

    def number(self, layout: struct.Struct, what: str) -> Any:
        self.need(layout.size, what)
        (value,) = layout.unpack_from(self._buffer, self._at)
        self._at += layout.size
        return value

    def count(self, what: str) -> int:
        """A length or count: 64 bits since version 2, 32 before."""
        return int(self.number(NUMBERS[10 if self._wide else 4], what))

    def take_elements(self, count: int, smallest: int, what: str) -> None:
        """Refuse a count that the rest of the file cannot hold, before anything is made for it."""
        left = self._size - self._at
        if count * smallest > left:
            raise self.fail(f"{what} claims {count} entries, which {left} remaining bytes cannot hold")
        self._elements += count
        if self._elements > MAX_ELEMENTS:
            raise self.fail(f"{what}: more than {MAX_ELEMENTS} entries in one header; no real header has so many")

    def raw(self, what: str, limit: int | None = None) -> bytes:
        length = self.count(what)
        if limit is not None and length > limit:
            raise self.fail(f"{what} is {length} bytes long, {limit} are allowed")
        self.need(length, what)
        found = bytes(self._buffer[self._at : self._at + length])
        self._at += length
        return found

    def name(self, what: str, limit: int) -> str:
        raw = self.raw(what, limit)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not text: {raw[:40]!r}") from None
        if not text:
            raise self.fail(f"{what} is empty")
        return text

    # --- values -----------------------------------------------------------------------------------------------

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == STRING:
            return self.raw(what).decode("utf-8", "surrogateescape")
        if kind == ARRAY:
            return self.array(what, depth)
        layout = NUMBERS.get(kind)
        if layout is None:
            raise self.fail(f"{what} has the unknown value type {kind}", "Use a newer Failsoft or an older file.")
        found = self.number(layout, what)
        if kind == BOOL:
            return self.truth(found, what)
        return found

    def truth(self, byte: int, what: str) -> bool:
        if byte > 1:
            raise self.fail(f"{what} is neither true nor false but {byte}")
        return byte == 1

    def array(self, what: str, depth: int) -> tuple[Any, ...]:
        if depth >= MAX_DEPTH:
            raise self.fail(f"{what}: arrays are nested more than {MAX_DEPTH} deep")
        kind = self.number(NUMBERS[4], what)
        count = self.count(what)
        if kind == STRING:
            self.take_elements(count, 8 if self._wide else 4, what)
            return tuple(self.value(STRING, what) for _ in range(count))
        if kind == ARRAY:
            self.take_elements(count, 12 if self._wide else 8, what)
            return tuple(self.array(what, depth + 1) for _ in range(count))
        layout = NUMBERS.get(kind)
        if layout is None:
            raise self.fail(f"{what} has the unknown value type {kind}", "Use a newer Failsoft or an older file.")
        self.take_elements(count, layout.size, what)
        total = count * layout.size
        self.need(total, what)
        found = struct.unpack_from(f"<{count}{layout.format[1:]}", self._buffer, self._at)
        self._at += total
        if kind == BOOL:
            return tuple(self.truth(byte, what) for byte in found)
        return found

    # --- the header -------------------------------------------------------------------------------------------

    def header(self) -> GGUF:
        version = self.version()
        self._wide = version > 1
        tensor_count = self.count("the number of tensors")
        key_count = self.count("the number of keys")
        self.take_elements(key_count, 13 if self._wide else 9, "the list of keys")
        metadata: dict[str, Any] = {}
        types: dict[str, int] = {}
        for _ in range(key_count):
            key = self.name("a key", MAX_KEY_BYTES)
            if key in metadata:
                raise self.fail(f"the key {key} appears twice", "Use a file made by a current converter.")
            kind = self.number(NUMBERS[4], key)
            types[key] = self.peek_element_type() if kind == ARRAY else kind
            metadata[key] = self.value(kind, key)
        alignment = self.alignment(metadata)
        self.take_elements(tensor_count, 32 if self._wide else 24, "the list of tensors")
        raw_tensors = [self.tensor() for _ in range(tensor_count)]
        data_offset = -(-self._at // alignment) * alignment
        self.check_tensors(raw_tensors, data_offset, alignment)
        return GGUF(
            path=self._path,
            version=version,
            metadata=metadata,
            types=types,
            tensors=tuple(raw_tensors),
            data_offset=data_offset,
            alignment=alignment,
            file_size=self._size,
        )

    def version(self) -> int:
        self.need(8, "the first 8 bytes")
        if bytes(self._buffer[:4]) != MAGIC:
            found = bytes(self._buffer[:4])
            raise self.fail(f"this is not a GGUF file; it begins with {found!r}", "Give a model file in GGUF format.")
        self._at = 4
        version = int(self.number(NUMBERS[4], "the version"))
        if version in {1, 2, 3}:
            return version
        if version & 0xFFFF == 0:
            raise self.fail("the file is big-endian", "Use the little-endian file of the same model.")
        raise self.fail(f"GGUF version {version} is not known (1 to 3 are)", "Use a newer Failsoft or an older file.")

    def peek_element_type(self) -> int:
        self.need(4, "an array")
        return int(NUMBERS[4].unpack_from(self._buffer, self._at)[0])

    def alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 8 <= alignment <= 65_536 or alignment & (alignment - 1):
            raise self.fail(f"general.alignment is {alignment!r}, not a power of two from 8 to 65536")
        return alignment

    def tensor(self) -> Tensor:
        name = self.name("a tensor's name", MAX_NAME_BYTES)
        dimensions = self.number(NUMBERS[4], name)
        if not 1 <= dimensions <= 4:
            raise self.fail(f"tensor {name} has {dimensions} dimensions, 1 to 4 are possible")
        shape = tuple(self.count(name) for _ in range(dimensions))
        number = self.number(NUMBERS[4], name)
        offset = self.number(NUMBERS[10], name)
        kind = GGML_TYPES.get(number)
        if kind is None:
            raise self.fail(f"tensor {name} is of unknown type {number}", "Use a file with another quantization.")
        elements = 1
        for size in shape:
            elements *= size
        if not 0 < elements < 1 << 62:
            raise self.fail(f"tensor {name} has the impossible shape {shape}")
        if shape[0] % kind.block:
            raise self.fail(f"tensor {name}: rows of {shape[0]} do not fit {kind.name} blocks of {kind.block}")
        return Tensor(name, shape, kind, offset, elements // kind.block * kind.block_bytes)

    def check_tensors(self, tensors: list[Tensor], data_offset: int, alignment: int) -> None:
        names: set[str] = set()
        for tensor in tensors:
            if tensor.name in names:
                raise self.fail(f"tensor {tensor.name} appears twice", "Use a file made by a current converter.")
            names.add(tensor.name)
            if tensor.offset % alignment:
                raise self.fail(f"tensor {tensor.name} is not aligned to {alignment} bytes")
            end = data_offset + tensor.offset + tensor.nbytes
            if end > self._size:
                raise self.fail(f"the file is cut short: tensor {tensor.name} ends at {end}, the file at {self._size}")
        ordered = sorted(tensors, key=lambda tensor: tensor.offset)
        for before, after in pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                raise self.fail(f"tensors {before.name} and {after.name} overlap")
