"""A takeover begins with the saved state where there is one that can be trusted, and computes anew where there is none.

The built-in model's prompts take time here, as a real model's do, so that its state is worth saving. What its answer
must be is arithmetic, done again for the tests.
"""

import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from house import House, house, kept, until
from null_answer import answer_to

PREFILL = {"FAILSOFT_NULL_PREFILL_TPS": "1500"}
"""Tokens a second: 1,500 tokens take a second, twice the budget of what may be lost."""
TEXT = "[[tps=25]] " + "word " * 300
CONFIG = """
[policy]
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
return_to_gpu = false
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with kept(House(tmp_path_factory.mktemp("saved") / "data", config=CONFIG)) as made:
        yield made.start(PREFILL)


@pytest.fixture
def home(shared: House) -> House:
    return shared.well()


def event(home: House, request_id: str, type_: str) -> dict[str, Any]:
    return next(found for found in home.events(request_id) if found["type"] == type_)


def saved_file(home: House, request_id: str) -> Path:
    until(lambda: "SnapshotSaved" in home.types(request_id), "a saved state")
    ((name,),) = home.rows("SELECT name FROM snapshots WHERE request_id=?", request_id)
    return home.paths.snapshots / str(name)


def test_the_cpu_lane_goes_on_from_the_saved_state(home: House) -> None:
    request_id = home.submit("", prompt=TEXT, max_tokens=100)
    saved_file(home, request_id)
    until(lambda: home.units(request_id) >= 20, "twenty units")
    home.send(home.runner("gpu"), signal.SIGKILL)
    view = home.settled(request_id)
    assert view["state"] == "completed"
    assert view["output"]["text"] == answer_to(TEXT, 100)
    ready = event(home, request_id, "PrefixReady")
    assert ready["data"]["way"] == "snapshot"
    assert ready["data"]["restored"] >= len(TEXT)
    assert ready["data"]["computed"] < 100
    assert "came out of a saved state" in ready["because"]
    assert home.types(request_id).index("SnapshotSaved") < home.types(request_id).index("Rerouted")
    assert home.verify().ok


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)


def of_another_prompt(file: Path) -> None:
    """As long, and of the same engine."""
    file.write_bytes(struct.pack("<I", 7) * (file.stat().st_size // 4))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [(empty, "damaged"), (cut, "damaged"), (flip, "damaged"), (of_another_prompt, "damaged"), (Path.unlink, "missing")],
)
def test_what_was_harmed_is_not_used_and_the_answer_is_the_same(home: House, harm: Any, reason: str) -> None:
    helper = home.runner("cpu")
    request_id = home.submit("", prompt=TEXT, max_tokens=60)
    saved_file(home, request_id)
    gpu = home.runner("gpu")
    home.send(gpu, signal.SIGSTOP)  # nothing newer is saved
    harm(saved_file(home, request_id))
    home.send(gpu, signal.SIGKILL)
    view = home.settled(request_id)
    assert view["state"] == "completed"
    assert view["output"]["text"] == answer_to(TEXT, 60)
    assert event(home, request_id, "SnapshotRejected")["data"]["reason"] == reason
    assert event(home, request_id, "PrefixReady")["data"]["way"] == "recomputed"
    # The next one is not harmed by it.
    after = home.settled(home.submit("after", max_tokens=8))
    assert after["state"] == "completed"
    assert home.runner("cpu") == helper, "the CPU runner was not harmed by it either"


def test_one_of_another_kind_is_left_alone(home: House) -> None:
    """Of another engine build, model, quantization or context: told apart by what it agrees to."""
    request_id = home.submit("", prompt=TEXT, max_tokens=60)
    saved_file(home, request_id)
    with_kind(home, request_id, "null/0")
    home.send(home.runner("gpu"), signal.SIGKILL)
    view = home.settled(request_id)
    assert view["output"]["text"] == answer_to(TEXT, 60)
    ready = event(home, request_id, "PrefixReady")
    assert (ready["data"]["way"], ready["data"]["note"]) == ("recomputed", "other-kind")
    assert "SnapshotRejected" not in home.types(request_id)


def with_kind(home: House, request_id: str, kind: str) -> None:
    from store.writer import Writer

    writer = Writer(home.paths)
    writer.run(lambda tx: tx.execute("UPDATE snapshots SET kv_format=? WHERE request_id=?", (kind, request_id)))
    writer.close()


def test_one_that_lies_about_what_it_holds_ends_the_worker_and_is_never_used_again(home: House) -> None:
    """The file is what was saved, and the engine finds something else in it: its memory is not to be trusted."""
    request_id = home.submit("", prompt=TEXT, max_tokens=60)
    file = saved_file(home, request_id)
    lie(home, request_id, file)
    home.send(home.runner("gpu"), signal.SIGKILL)
    view = home.settled(request_id)
    assert view["state"] == "completed"
    assert view["output"]["text"] == answer_to(TEXT, 60)
    assert event(home, request_id, "SnapshotRejected")["data"]["reason"] == "not-restored"
    kinds = [found["data"]["kind"] for found in home.events(request_id) if found["type"] == "FaultSeen"]
    assert kinds == ["killed", "restore-failed"]
    ready = [found["data"]["way"] for found in home.events(request_id) if found["type"] == "PrefixReady"]
    assert ready == ["recomputed"]


def lie(home: House, request_id: str, file: Path) -> None:
    """Another content under a digest that fits it."""
    import hashlib

    from store.writer import Writer

    of_another_prompt(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    writer = Writer(home.paths)
    writer.run(lambda tx: tx.execute("UPDATE snapshots SET digest=? WHERE request_id=?", (digest, request_id)))
    writer.close()


def test_an_orderly_stop_saves_and_the_next_run_begins_there(home: House) -> None:
    request_id = home.submit("", prompt=TEXT, max_tokens=200)
    until(lambda: home.units(request_id) >= 30, "thirty units")
    assert home.stop() == 0
    home.start(PREFILL)
    view = home.settled(request_id)
    assert view["output"]["text"] == answer_to(TEXT, 200)
    assert event(home, request_id, "PrefixReady")["data"]["way"] == "snapshot"


def test_nothing_is_left_on_the_disk_when_it_is_over(home: House) -> None:
    """One file at most while it runs; none a sweep later. Erased with the rest of what it said."""
    request_id = home.submit("", prompt=TEXT, max_tokens=150)
    saved_file(home, request_id)
    until(lambda: home.types(request_id).count("SnapshotSaved") >= 2, "a second saved state")
    files = [file for file in home.paths.snapshots.iterdir() if file.suffix == ".kv"]
    assert len(files) <= 2
    home.settled(request_id)
    assert home.rows("SELECT count(*) FROM snapshots") == [(0,)]


def test_no_room_for_it_means_going_on_without(tmp_path: Path) -> None:
    with house(tmp_path / "data", config=CONFIG + "snapshot_bytes = 0\n") as home:
        request_id = home.submit("", prompt="[[tps=50]] none", max_tokens=30)
        until(lambda: home.units(request_id) >= 6, "six units")
        home.send(home.runner("gpu"), signal.SIGKILL)
        assert home.settled(request_id)["output"]["text"] == answer_to("[[tps=50]] none", 30)
        assert "SnapshotSaved" not in home.types(request_id)
