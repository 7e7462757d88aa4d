"""What canaries answered: kept once for each path, and what later answers are compared with.

1. A path's first answer is recorded, and every later one is compared with it. The host computes the same to the last
   bit; elsewhere a batch may tip a word, and half of the answer must agree.
2. Nothing is recorded that contradicts what the host's processor answers under the same contract: the first unit at
   least must agree, since counting on is what no sound model fails. Whoever was first, the host is believed.
3. While a device is tried, a right answer that takes far longer than the recorded one is slow.
"""

from typing import Final, Literal

import msgspec

from core import slowness
from core.contract import HOST, PathFacts
from store import laneviews
from store.journal import Sees

Verdict = Literal["recorded", "right", "wrong", "slow"]

CPU: Final = "cpu"
"""The host's processor, as a device."""

_RECORDED: Final = (
    "SELECT json_extract(data, '$.units'), json_extract(data, '$.took_us') FROM events WHERE type='CanaryAnswered' "
    "AND json_extract(data, '$.verdict')='recorded' AND json_extract(data, '$.path')=? ORDER BY seq DESC LIMIT 1"
)
_LANES: Final = "SELECT lane, model FROM lanes WHERE contract=?"


class Recorded(msgspec.Struct, frozen=True):
    """An answer that was kept."""

    units: tuple[int, ...]
    took_us: int


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


def recorded(tx: Sees, path: PathFacts, device: str) -> Recorded | None:
    """What the path answered in good days; None: nothing is recorded yet."""
    row = tx.execute(_RECORDED, (known_as(path, device),)).fetchone()
    return None if row is None else Recorded(tuple(msgspec.json.decode(row[0])), row[1])


def verdict(
    tx: Sees, device: str, path: PathFacts, units: tuple[int, ...], took_us: int, slow_factor: float
) -> tuple[Verdict, str]:
    """The verdict on an answer, and what was wrong with it. `slow_factor` 0: it may take as long as it does."""
    if not units:
        return "wrong", "there was no answer"
    known, host = recorded(tx, path, device), _by_host(tx, device, path)
    if host is not None and known is not None and _contradict(known.units, host.units):
        known = None
    if known is None:
        if host is not None and _contradict(units, host.units):
            return "wrong", "its first unit is not the one that the CPU lane answers"
        return "recorded", ""
    wrong = _unlike(path, units, known.units)
    if wrong:
        return "wrong", wrong
    if slowness.canary_slow(took_us, known.took_us, slow_factor):
        return "slow", f"it took {took_us / 1e6:.2f} s, and {known.took_us / 1e6:.2f} s when it was recorded"
    return "right", ""


def contradicted(tx: Sees, contract: str, units: tuple[int, ...]) -> list[Contradicted]:
    """What was recorded of others under a contract before the host's processor answered `units`, and is not that."""
    found = []
    for lane, model in tx.execute(_LANES, (contract,)).fetchall():
        row = laneviews.lane_row(tx, lane, model)
        if row is None or row.device == CPU:
            continue
        path = laneviews.path_of(tx, row)
        known = recorded(tx, path, row.device)
        if known is not None and _contradict(known.units, units):
            found.append(Contradicted(row.device, known_as(path, row.device), known.units))
    return found


def _by_host(tx: Sees, device: str, path: PathFacts) -> Recorded | None:
    """What the host's processor answers under the same contract, for everybody but itself."""
    if device == CPU or not path.contract:
        return None
    for lane, model in tx.execute(_LANES, (path.contract,)).fetchall():
        row = laneviews.lane_row(tx, lane, model)
        if row is not None and row.device == CPU:
            return recorded(tx, laneviews.path_of(tx, row), CPU)
    return None


def _contradict(units: tuple[int, ...], others: tuple[int, ...]) -> bool:
    return units[:1] != others[:1]


def _unlike(path: PathFacts, units: tuple[int, ...], known: tuple[int, ...]) -> str:
    """How an answer falls short of the recorded one; empty when it does not."""
    alike = next((n for n, (a, b) in enumerate(zip(units, known, strict=False)) if a != b), min(len(units), len(known)))
    needed = len(known) if path.kind == HOST and path.slots == 1 else (len(known) + 1) // 2
    if alike < needed or (needed == len(known) and len(units) != len(known)):
        return f"{alike} of {len(known)} units are those of the recorded answer; {needed} must be"
    return ""
