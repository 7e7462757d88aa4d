"""What canaries answered: kept once for each path, and looked up for whoever judges a later one (`core.canary`)."""

from typing import Final

import msgspec

from core.canary import Answer, Verdict, contradict, judge
from core.contract import HOST, PathFacts
from store import laneviews
from store.journal import Sees

CPU: Final = "cpu"
"""The host's processor, as a device."""

_RECORDED: Final = (
    "SELECT json_extract(data, '$.units'), json_extract(data, '$.took_us') FROM events WHERE type='CanaryAnswered' "
    "AND json_extract(data, '$.verdict')='recorded' AND json_extract(data, '$.path')=? ORDER BY seq DESC LIMIT 1"
)
_LANES: Final = "SELECT lane, model FROM lanes WHERE contract=?"


class Contradicted(msgspec.Struct, frozen=True):
    """An answer that was kept of a device, and is not what the host's processor says."""

    device: str
    name: str
    units: tuple[int, ...]


def known_as(path: PathFacts, device: str) -> str:
    """The name under which a path's answer is kept: another build, kind, model or number of slots has its own.

    So has a simulated accelerator, though it computes on the host.
    """
    simulated = f"@{device}" if path.kind == HOST and device != CPU else ""
    return f"{path.name}/{path.contract}/{path.slots}{simulated}"


def recorded(tx: Sees, path: PathFacts, device: str) -> Answer | None:
    """What the path answered in good days; None: nothing is recorded yet."""
    row = tx.execute(_RECORDED, (known_as(path, device),)).fetchone()
    return None if row is None else Answer(tuple(msgspec.json.decode(row[0])), row[1])


def verdict(
    tx: Sees, device: str, path: PathFacts, units: tuple[int, ...], took_us: int, slow_factor: float
) -> tuple[Verdict, str]:
    """The verdict on an answer, and what was wrong with it."""
    known, host = recorded(tx, path, device), _by_host(tx, device, path)
    return judge(path, Answer(units, took_us), known, host, slow_factor)


def contradicted(tx: Sees, contract: str, units: tuple[int, ...]) -> list[Contradicted]:
    """What was recorded of others under a contract before the host's processor answered `units`, and is not that."""
    found = []
    for lane, model in tx.execute(_LANES, (contract,)).fetchall():
        row = laneviews.lane_row(tx, lane, model)
        if row is None or row.device == CPU:
            continue
        path = laneviews.path_of(tx, row)
        known = recorded(tx, path, row.device)
        if known is not None and contradict(known.units, units):
            found.append(Contradicted(row.device, known_as(path, row.device), known.units))
    return found


def _by_host(tx: Sees, device: str, path: PathFacts) -> Answer | None:
    """What the host's processor answers under the same contract, for everybody but itself."""
    if device == CPU or not path.contract:
        return None
    for lane, model in tx.execute(_LANES, (path.contract,)).fetchall():
        row = laneviews.lane_row(tx, lane, model)
        if row is not None and row.device == CPU:
            return recorded(tx, laneviews.path_of(tx, row), CPU)
    return None
