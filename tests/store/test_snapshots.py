"""Saved states as the store keeps them: one for each request, the newest, within the room there is."""

import os
import time
from pathlib import Path

import msgspec
import pytest
from desk import Desk

from core.errors import Fenced
from runners.keeper import sweep
from store import commands, snapshots
from store.claims import Claim
from store.snapshots import Kept

ROOM = 1000


def saved(claim: Claim, *, units: int = 4, size: int = 100, name: str = "a.kv") -> Kept:
    return Kept(claim.fence.request_id, name, claim.state.output_epoch, units, 5 + units, size, "d" * 64, "e/1")


def keep(desk: Desk, claim: Claim, new: Kept, limit: int = ROOM) -> snapshots.Outcome:
    return desk.run(lambda tx: snapshots.keep(tx, claim.fence, new, took_us=1000, limit=limit))


def names(desk: Desk) -> set[str]:
    return desk.run(snapshots.names)


def test_the_newest_takes_the_place_of_the_last_one(desk: Desk) -> None:
    desk.admit()
    claim = desk.take()
    assert keep(desk, claim, saved(claim)) == snapshots.Outcome(wanted=True)
    assert keep(desk, claim, saved(claim, units=8, name="b.kv")) == snapshots.Outcome(wanted=True, before="a.kv")
    found = desk.run(lambda tx: snapshots.kept(tx, claim.fence.request_id, 0))
    assert found == saved(claim, units=8, name="b.kv")
    assert desk.types(claim.fence.request_id).count("SnapshotSaved") == 2
    assert desk.verify().ok


def test_only_its_owner_may_name_one(desk: Desk) -> None:
    request_id = desk.admit()
    claim = desk.take()
    desk.fault(request_id)
    with pytest.raises(Fenced):
        keep(desk, claim, saved(claim))
    assert names(desk) == set()


def test_beyond_the_room_the_oldest_of_others_go_first(desk: Desk) -> None:
    """Three of 400 bytes do not fit into 1,000; the one that is named now is never the one that goes."""
    claims = []
    for name in ("a.kv", "b.kv", "c.kv"):
        desk.admit()
        claims.append(desk.take())
        assert keep(desk, claims[-1], saved(claims[-1], size=400, name=name)).wanted
    assert names(desk) == {"b.kv", "c.kv"}
    assert not keep(desk, claims[0], saved(claims[0], size=ROOM + 1)).wanted
    assert keep(desk, claims[0], saved(claims[0], size=ROOM, name="d.kv")).wanted
    assert names(desk) == {"d.kv"}


def test_what_is_asked_to_stop_needs_none(desk: Desk) -> None:
    request_id = desk.admit()
    claim = desk.take()
    desk.run(lambda tx: commands.cancel(tx, request_id, actor="test"))
    assert not keep(desk, claim, saved(claim)).wanted
    assert "SnapshotSaved" not in desk.types(request_id)


@pytest.mark.parametrize("end", ["completed", "cancelled", "erased"])
def test_with_the_request_it_goes(desk: Desk, end: str) -> None:
    request_id = desk.admit()
    claim = desk.take()
    desk.checkpoint(claim, 4)
    keep(desk, claim, saved(claim))
    if end == "completed":
        desk.complete(claim, 8, 4)
    else:
        desk.fault(request_id, "engine-refused", fault="size")
        assert names(desk) == {"a.kv"}, "a resumable error may go on from it"
        act = commands.cancel if end == "cancelled" else commands.erase
        desk.run(lambda tx: act(tx, request_id, actor="test"))
    assert names(desk) == set()


def test_a_rejected_one_is_gone_and_told(desk: Desk) -> None:
    desk.admit()
    claim = desk.take()
    keep(desk, claim, saved(claim))
    desk.run(lambda tx: snapshots.reject(tx, claim.fence, saved(claim), "damaged"))
    assert names(desk) == set()
    assert desk.types(claim.fence.request_id)[-1] == "SnapshotRejected"


def test_one_of_another_output_is_not_found(desk: Desk) -> None:
    """Resumed from the start, the answer is another one; only its beginning would be the same."""
    desk.admit()
    claim = desk.take()
    keep(desk, claim, saved(claim))
    assert desk.run(lambda tx: snapshots.kept(tx, claim.fence.request_id, 1)) is None
    other = msgspec.structs.replace(saved(claim), epoch=1)
    assert not keep(desk, claim, other).wanted


def test_what_belongs_to_nobody_is_swept(tmp_path: Path) -> None:
    old = time.time() - 3600
    for name in ("named.kv", "orphan.kv", "fresh.kv", "gpu-1~1.draft", "gone-1~1.draft"):
        (tmp_path / name).write_bytes(b"x")
        if name != "fresh.kv":
            os.utime(tmp_path / name, (old, old))
    gone = sweep(tmp_path, {"named.kv"}, {"gpu-1"})
    assert sorted(file.name for file in gone) == ["gone-1~1.draft", "orphan.kv"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fresh.kv", "gpu-1~1.draft", "named.kv"]
