import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import ModelFileError
from store.models.gguf import read_header
from store.models.gguf_write import U32, write_gguf
from store.models.prompt_side import file_side
from store.models.suitability import suitability

U64 = struct.Struct("<Q")


def text(raw: bytes) -> bytes:
    return U64.pack(len(raw)) + raw


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    head = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + head + struct.pack("<IQ", kind, offset)


def whole(
    *, entries: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), data: int = 0, version: int = 3
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


def test_what_was_written_is_read_back(tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]) -> None:
    parts["metadata"]["some.bools"] = (7, (True, False, True))
    parts["metadata"]["some.flag"] = (7, True)
    parts["metadata"]["some.big"] = (10, 2**63)
    parts["metadata"]["some.raw"] = (8, ("caf\udcc3", "é"))
    header = read_header(write(tmp_path / "a.gguf", parts))
    assert header.version == 3
    assert header.metadata == {key: value for key, (_, value) in parts["metadata"].items()}
    assert header.types == {key: kind for key, (kind, _) in parts["metadata"].items()}
    found = {one.name: (one.shape, one.type.number) for one in header.tensors}
    assert found == parts["tensors"]
    assert header.data_offset % header.alignment == 0
    last = header.tensors[-1]
    assert header.data_offset + last.offset + last.nbytes == header.file_size


def test_bytes_of_a_tensor_are_where_the_header_says(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    one, two = struct.pack("<5f", 1, 2, 3, 4, 5), struct.pack("<3f", 6, 7, 8)
    raw = whole(tensors=(tensor(b"a", (5,), 0, 0), tensor(b"b", (3,), 0, 32))) + one.ljust(32, b"\0") + two
    path.write_bytes(raw)
    header = read_header(path)
    for found, wanted in zip(header.tensors, (one, two), strict=True):
        start = header.data_offset + found.offset
        assert raw[start : start + found.nbytes] == wanted


def test_version_1_has_short_counts(tmp_path: Path) -> None:
    def short(raw: bytes) -> bytes:
        return struct.pack("<I", len(raw)) + raw

    head = b"GGUF" + struct.pack("<III", 1, 1, 2)
    head += short(b"a") + struct.pack("<I", 8) + short(b"b")
    head += short(b"list") + struct.pack("<III", 9, 4, 2) + struct.pack("<II", 7, 9)
    head += short(b"t") + struct.pack("<IIIQ", 1, 8, 0, 0)
    path = tmp_path / "old.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(32))
    header = read_header(path)
    assert header.metadata == {"a": "b", "list": (7, 9)}
    assert [(one.name, one.shape, one.nbytes) for one in header.tensors] == [("t", (8,), 32)]


HOSTILE = {
    "empty": (b"", "ends inside"),
    "other format": (b"ggml" + bytes(100), "not a GGUF file"),
    "version 4": (whole(version=4), "version 4 is not known"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "more keys than bytes": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "claims"),
    "more tensors than bytes": (b"GGUF" + struct.pack("<IQQ", 3, 2**64 - 1, 0), "claims"),
    "string longer than file": (whole(entries=(text(b"k") + struct.pack("<IQ", 8, 2**62),)), "ends inside k"),
    "key longer than allowed": (whole(entries=(entry(b"k" * 70_000, 4, bytes(4)),)), "70000 bytes long"),
    "empty key": (whole(entries=(entry(b"", 4, bytes(4)),)), "a key is empty"),
    "key that is no text": (whole(entries=(entry(b"\xff\xfe", 4, bytes(4)),)), "not text"),
    "key twice": (whole(entries=(entry(b"k", 4, bytes(4)), entry(b"k", 4, bytes(4)))), "appears twice"),
    "unknown value type": (whole(entries=(entry(b"k", 13, bytes(8)),)), "unknown value type 13"),
    "unknown element type": (whole(entries=(entry(b"k", 9, struct.pack("<IQ", 99, 0)),)), "unknown value type 99"),
    "array longer than file": (whole(entries=(entry(b"k", 9, struct.pack("<IQ", 10, 2**61)),)), "claims"),
    "strings more than file": (whole(entries=(entry(b"k", 9, struct.pack("<IQ", 8, 2**40)),)), "claims"),
    "arrays in arrays": (whole(entries=(entry(b"k", 9, struct.pack("<IQ", 9, 1) * 50),)), "nested"),
    "boolean of 2": (whole(entries=(entry(b"k", 7, b"\x02"),)), "neither true nor false"),
    "alignment 0": (whole(entries=(entry(b"general.alignment", 4, bytes(4)),)), "power of two"),
    "alignment 24": (whole(entries=(entry(b"general.alignment", 4, struct.pack("<I", 24)),)), "power of two"),
    "alignment text": (whole(entries=(entry(b"general.alignment", 8, text(b"32")),)), "power of two"),
    "no dimensions": (whole(tensors=(tensor(b"t", (), 0, 0),), data=64), "0 dimensions"),
    "five dimensions": (whole(tensors=(tensor(b"t", (1,) * 5, 0, 0),), data=64), "5 dimensions"),
    "dimension 0": (whole(tensors=(tensor(b"t", (4, 0), 0, 0),), data=64), "impossible shape"),
    "product over 64 bits": (whole(tensors=(tensor(b"t", (2**32, 2**32), 0, 0),), data=64), "impossible shape"),
    "unknown tensor type": (whole(tensors=(tensor(b"t", (32,), 4, 0),), data=64), "unknown type 4"),
    "row not whole blocks": (whole(tensors=(tensor(b"t", (33,), 3, 0),), data=64), "do not fit Q4_1 blocks"),
    "tensor beyond file": (whole(tensors=(tensor(b"t", (8,), 0, 64),), data=64), "cut short"),
    "offset near 2**64": (whole(tensors=(tensor(b"t", (8,), 0, 2**64 - 32),), data=64), "cut short"),
    "offset not aligned": (whole(tensors=(tensor(b"t", (8,), 0, 4),), data=64), "not aligned"),
    "tensors overlap": (whole(tensors=(tensor(b"a", (16,), 0, 0), tensor(b"b", (8,), 0, 32)), data=64), "overlap"),
    "tensor twice": (whole(tensors=(tensor(b"a", (8,), 0, 0), tensor(b"a", (8,), 0, 32)), data=64), "appears twice"),
    "tensor without name": (whole(tensors=(tensor(b"", (8,), 0, 0),), data=64), "name is empty"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_with_cause_and_remedy(case: str, tmp_path: Path) -> None:
    raw, cause = HOSTILE[case]
    path = tmp_path / "evil.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError, match=cause) as caught:
        read_header(path)
    assert caught.value.detail.startswith("evil.gguf: ")
    assert caught.value.detail.count(".") >= 2, "cause and remedy are two sentences"


def test_a_small_file_cannot_ask_for_many_entries(tmp_path: Path) -> None:
    path = tmp_path / "bytes.gguf"
    count = 5_000_000
    path.write_bytes(whole(entries=(entry(b"k", 9, struct.pack("<IQ", 0, count) + bytes(count)),)))
    with pytest.raises(ModelFileError, match="more than 4000000 entries"):
        read_header(path)


@pytest.mark.parametrize("there", ["nothing", "directory"])
def test_a_path_that_is_no_file_is_told(there: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    if there == "directory":
        path.mkdir()
    with pytest.raises(ModelFileError, match=r"cannot be read: .*Check the path"):
        read_header(path)


def test_every_truncation_is_noticed(tiny: Path, tmp_path: Path) -> None:
    raw = tiny.read_bytes()
    path = tmp_path / "cut.gguf"
    header_end = read_header(tiny).data_offset
    lengths = [*range(200), *range(200, header_end, 97), *range(header_end, len(raw), 4_001), len(raw) - 1]
    for length in lengths:
        path.write_bytes(raw[:length])
        with pytest.raises(ModelFileError, match=r"ends inside|claims|cut short"):
            read_header(path)


def test_values_of_the_wrong_kind_are_told_by_key(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(whole(entries=(entry(b"a", 4, struct.pack("<I", 7)), entry(b"b", 7, b"\x01"))))
    header = read_header(path)
    assert header.value("a", int) == 7
    assert header.value("missing", int, default=3) == 3
    for key, kind in (("a", str), ("b", int), ("a", bool)):
        with pytest.raises(ModelFileError, match=f"{key} should be a {kind.__name__}"):
            header.value(key, kind)
    with pytest.raises(ModelFileError, match="not a list of strings"):
        header.texts("missing")


def test_the_writer_refuses_data_of_another_length(tmp_path: Path, parts: dict[str, Any]) -> None:
    from store.models.ggml_types import GGML_TYPES
    from store.models.gguf_write import NewTensor

    short = NewTensor("t", (8,), GGML_TYPES[0], lambda: [bytes(28)])
    with (tmp_path / "x").open("wb") as file, pytest.raises(ValueError, match="28 bytes given, 32 expected"):
        write_gguf(file, version=3, metadata={"a": 1}, types={"a": U32}, tensors=[short])


@settings(max_examples=300, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_lets_another_error_out(tiny: Path, tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(tiny.read_bytes())
    header_end = 8_000
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header_end))
        width = data.draw(st.sampled_from([1, 4, 8]))
        value = data.draw(st.one_of(st.binary(min_size=width, max_size=width), st.just(b"\xff" * width)))
        raw[at : at + width] = value
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw)
    # Whatever is neither a header nor this error fails the test.
    with contextlib.suppress(ModelFileError):
        header = read_header(path)
        assert all(isinstance(problem, str) for problem in suitability(header))
        file_side("damaged", path)
