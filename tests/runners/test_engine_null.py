import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from core.errors import EngineFault, StopWork
from runners.engines.base import Chunk, GenerateWork, LoadPlan, Sampling
from runners.engines.null import NullEngine

NOWHERE = Path("/nonexistent")

# printf '\x48\0\0\0\x69\0\0\0' | b2sum -l 256, its bytes and b as 8 little-endian bytes | b2sum -l 512, for b = 0, 1
HI_BLOCKS = bytes.fromhex(
    "e336b63a1d7a1b2dc11552874ae674674a512a08f7494f1a85032a889ecd0b6d427b79c34f5f94a4837cbec92d327b81"
    "e4259a489f1af0776c95e67bc8abf170"
    "339ef8be831b1d393ca7c0be417292dc60e6ac6730a998bb3d452b53ffdae6e506560ac5d7912cd39be9f62dfcb348b9"
    "8f66a5a387888503883e64e8c999ff8b"
)


def letter(byte: int) -> int:
    """Letters a-z, A-Z, then twelve spaces, counted round in 64."""
    place = byte % 64
    if place < 26:
        return ord("a") + place
    if place < 52:
        return ord("A") + place - 26
    return ord(" ")


def expected(prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    seed = hashlib.blake2b(b"".join(unit.to_bytes(4, "little") for unit in prompt), digest_size=32).digest()
    units = []
    for position in range(count):
        block = hashlib.blake2b(seed + (position // 64).to_bytes(8, "little"), digest_size=64).digest()
        units.append(letter(block[position % 64]))
    return tuple(units)


def work(prompt: str | bytes | tuple[int, ...], units: int, done: tuple[int, ...] = ()) -> GenerateWork:
    ids = tuple(prompt.encode() if isinstance(prompt, str) else prompt)
    return GenerateWork(prompt=ids, done=done, max_units=units, eos=(256,), sampling=Sampling(seed=5))


def chunks(given: GenerateWork, host: Any, context: int = 4096) -> list[Chunk]:
    return list(NullEngine().load(NOWHERE, LoadPlan(context)).begin(given, host))


def units_of(found: list[Chunk]) -> tuple[int, ...]:
    return tuple(unit for chunk in found for unit in chunk.units)


def test_the_answer_is_the_one_another_program_computes(make_host: Any) -> None:
    answer = units_of(chunks(work("Hi", 128), make_host()))
    assert answer == tuple(letter(byte) for byte in HI_BLOCKS)


@pytest.mark.parametrize("size", [1, 7, 64, 65, 200])
def test_the_answer_hangs_on_the_prompt_and_not_on_the_chunks(make_host: Any, size: int) -> None:
    prompt = (72, 300, 49151, 0)
    found = chunks(work(prompt, 200), make_host(sizes=(size,)))
    assert units_of(found) == expected(prompt, 200)
    assert units_of(found) != expected((72, 300, 49151, 1), 200)
    assert [len(chunk.units) for chunk in found[:-1]] == [size] * (len(found) - 1)
    assert [chunk.end for chunk in found] == [None] * (len(found) - 1) + ["length"]


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 99, 100])
def test_a_resume_goes_on_with_what_was_missing(make_host: Any, cut: int) -> None:
    whole = expected(tuple(b"go on"), 100)
    found = chunks(work("go on", 100, done=whole[:cut]), make_host(sizes=(9,)))
    assert units_of(found) == whole[cut:]
    assert found[-1].end == "length"


@pytest.mark.parametrize("size", range(1, 12))
def test_a_script_is_answered_byte_for_byte_at_every_chunk_boundary(make_host: Any, size: int) -> None:
    found = chunks(work(r"x [[emit=a\xf0\x9f\xa6\x9c ]STOP]] y", 50), make_host(sizes=(size,)))
    assert bytes(units_of(found)) == b"a\xf0\x9f\xa6\x9c ]STOP"
    assert [chunk.end for chunk in found] == [None] * (len(found) - 1) + ["eos"]


def test_a_script_is_cut_where_the_request_wants_no_more_and_resumes_after_it(make_host: Any) -> None:
    assert chunks(work("[[emit=hello]]", 3), make_host()) == [Chunk(tuple(b"hel"), "length")]
    assert chunks(work("[[emit=hello]]", 9, done=tuple(b"hell")), make_host()) == [Chunk(tuple(b"o"), "eos")]
    assert chunks(work("[[emit=hello]]", 9, done=tuple(b"hello")), make_host()) == [Chunk((), "eos")]
    assert chunks(work("[[emit=]]", 9), make_host()) == [Chunk((), "eos")]


def test_the_newest_order_counts_and_other_brackets_are_text(make_host: Any) -> None:
    assert bytes(units_of(chunks(work("[[emit=old]] and [[emit=new]]", 9), make_host()))) == b"new"
    plain = "[[tps=fast]] [[crash=now]] [[exit@3]] [[emit"
    assert units_of(chunks(work(plain, 9), make_host())) == expected(tuple(plain.encode()), 9)


def test_an_id_of_the_request_that_ends_answers_ends_this_one(make_host: Any) -> None:
    given = GenerateWork(tuple(b"[[emit=ab.cd]]"), (), 9, (ord("."),), Sampling())
    assert chunks(given, make_host()) == [Chunk(tuple(b"ab"), "eos")]


def test_all_units_are_pulsed_for_and_questions_come_at_the_start_of_chunks(make_host: Any) -> None:
    host = make_host(sizes=(2, 70))
    chunks(work("abc", 72), host)
    assert host.calls == [
        ("threads", 1),
        ("pulse", 3),
        ("ready", 3),
        ("threads", 1),
        ("chunk_size", 0),
        ("pulse", 2),
        ("threads", 1),
        ("chunk_size", 2),
        ("pulse", 64),
        ("pulse", 6),
    ]


def test_at_an_ordered_speed_every_unit_takes_its_time_and_pulses(
    make_host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILSOFT_NULL_TPS", "100000")
    host = make_host()
    begun = time.monotonic()
    assert units_of(chunks(work("[[tps=100]]", 20), host)) == expected(tuple(b"[[tps=100]]"), 20)
    assert time.monotonic() - begun >= 0.2  # never sooner; how much later is the machine's affair
    assert host.pulses == [11] + [1] * 20


def test_the_environment_sets_the_speed_of_all_others(make_host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILSOFT_NULL_TPS", "50")
    host = make_host()
    begun = time.monotonic()
    chunks(work("abc", 5), host)
    assert time.monotonic() - begun >= 0.1
    assert host.pulses == [3, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("given", ["quick", "-1", "nan", "inf"])
def test_a_speed_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("FAILSOFT_NULL_TPS", given)
    with pytest.raises(EngineFault, match="FAILSOFT_NULL_TPS"):
        NullEngine().load(NOWHERE, LoadPlan(10))


def test_work_that_does_not_fit_is_refused_before_it_starts(make_host: Any) -> None:
    loaded = NullEngine().load(NOWHERE, LoadPlan(10))
    host = make_host()
    with pytest.raises(EngineFault, match="context of 10"):
        loaded.begin(work("12345", 6), host)
    with pytest.raises(EngineFault, match="no tokens"):
        loaded.begin(work("", 6), host)
    with pytest.raises(EngineFault, match="2 units are done"):
        loaded.begin(work("1", 1, done=(1, 2)), host)
    assert host.calls == []
    assert units_of(list(loaded.begin(work("12345", 5), host))) == expected(tuple(b"12345"), 5)


def test_a_stop_from_a_pulse_passes_through_and_the_chunk_is_lost(make_host: Any) -> None:
    def stop(count: int) -> None:
        if count == 4:
            raise StopWork("cancelled")

    host = make_host(sizes=(2,))
    host.at_pulse = stop
    got: list[Chunk] = []
    with pytest.raises(StopWork):
        got.extend(NullEngine().load(NOWHERE, LoadPlan(99)).begin(work("[[tps=1000]]", 9), host))
    assert len(host.pulses) == 4
    assert got == [Chunk(expected(tuple(b"[[tps=1000]]"), 2))]


PROGRAM = """
import json, sys
from pathlib import Path
from runners.engines.base import GenerateWork, LoadPlan, Sampling
from runners.engines.null import NullEngine

class Host:
    def pulse(self, units): print(json.dumps(["pulse", units]), flush=True)
    def threads(self): return 1
    def chunk_size(self, done): return 4
    def ready(self, how): pass

prompt, done = sys.argv[1].encode(), tuple(map(int, sys.argv[2:]))
work = GenerateWork(tuple(prompt), done, 12, (256,), Sampling())
for chunk in NullEngine().load(Path("/"), LoadPlan(4096)).begin(work, Host()):
    print(json.dumps(["chunk", list(chunk.units), chunk.end]), flush=True)
"""


def start(prompt: str, *done: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, prompt, *map(str, done)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ("[[crash=11@5]]", -signal.SIGSEGV),
        ("[[crash=6@5]]", -signal.SIGABRT),
        ("[[crash=9@5]]", -signal.SIGKILL),
        ("[[exit=3@5]]", 3),
    ],
)
def test_it_dies_as_ordered_and_its_unfinished_chunk_with_it(order: str, status: int) -> None:
    with start(order) as process:
        output, _ = process.communicate(timeout=60)
    whole = list(expected(tuple(order.encode()), 12))
    assert process.returncode == status
    assert said(output) == [["pulse", len(order)], ["pulse", 4], ["chunk", whole[:4], None], ["pulse", 1]]


def test_it_dies_again_on_an_attempt_that_gets_there_and_not_on_one_that_is_past() -> None:
    order = "[[exit=3@5]]"
    whole = list(expected(tuple(order.encode()), 12))
    with start(order, *whole[:4]) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert said(output) == [["pulse", len(order) + 3], ["pulse", 1]]
    with start(order, *whole[:6]) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [line[1:] for line in said(output) if line[0] == "chunk"] == [[whole[6:10], None], [whole[10:], "length"]]


def test_it_dies_where_its_script_would_have_ended() -> None:
    with start("[[emit=abcd]][[exit=7@4]]") as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 7
    assert said(output)[1:] == [["pulse", 4], ["chunk", list(b"abcd"), None]]


def test_a_hang_says_nothing_more_and_does_not_end() -> None:
    with start("[[hang@5]]") as process:
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline()) for _ in range(4)]
        assert [line[0] for line in first] == ["pulse", "pulse", "chunk", "pulse"]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.kill()
        assert process.stdout.read() == ""
    assert process.returncode == -signal.SIGKILL


def test_a_signal_that_does_not_exist_is_an_engine_fault(make_host: Any) -> None:
    with pytest.raises(EngineFault, match="no signal 99"):
        chunks(work("[[crash=99@0]]", 3), make_host())


def test_growing_takes_memory_from_its_unit_on_and_keeps_it(make_host: Any) -> None:
    """Five units of 16 MiB each, and no other answer than without."""

    def held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

    loaded = NullEngine().load(NOWHERE, LoadPlan(4096))
    before = held()
    prompt = "[[grow=16@3]]"
    assert units_of(list(loaded.begin(work(prompt, 3), make_host()))) == expected(tuple(prompt.encode()), 3)
    assert held() - before < 40
    assert units_of(list(loaded.begin(work(prompt, 8), make_host()))) == expected(tuple(prompt.encode()), 8)
    assert 75 < held() - before < 120
