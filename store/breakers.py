"""Breakers of devices: what is counted, when one opens, and who moves then; all in the transaction that sees it.

1. The journal holds a breaker's state; the row of its device is a projection of it.
2. Who waits for a device whose breaker opens goes where it can go, by the rules of a takeover. Who is being worked on
   by another worker there goes on, unless the device itself failed.
3. What comes while it is open belongs to the same incident: it is counted under that opening.
4. After the machine has slept each device is tried before it takes work again.
"""

from typing import Final

import msgspec

from core import breaker as rules
from core import events as ev
from core.breaker import Breaker
from core.canary import CONTRADICTS, Verdict
from core.contract import PathFacts
from core.decision import BreakerFacts, Decision
from core.errors import NotFound
from core.policy import Policy
from core.words import FaultClass
from store import canaries, failover, house, laneviews, probation
from store.journal import Sees, Tx

_decode: Final = msgspec.json.Decoder(Breaker).decode


def breaker_of(tx: Sees, device: str) -> Breaker | None:
    """A device's breaker; None for what has none: the host itself, or a device that is not known."""
    row = tx.execute("SELECT breaker_doc FROM devices WHERE id=?", (device,)).fetchone()
    if row is None:
        return None
    return _decode(row[0]) if row[0] else Breaker()


def open_ones(tx: Sees) -> dict[str, Breaker]:
    """Breakers that are open, by device."""
    rows = tx.execute("SELECT id, breaker_doc FROM devices WHERE breaker='open'", ()).fetchall()
    return {device: _decode(doc) for device, doc in rows}


def fault(
    tx: Tx,
    device: str,
    seen: ev.FaultCounted,
    policy: Policy,
    *,
    actor: str,
    cause: int | None = None,
    input_blamed: bool = False,
) -> Decision | None:
    """Count a fault, and open the breaker where that is the rule; the decision, or None where there is no breaker."""
    before = breaker_of(tx, device)
    if before is None:
        return None
    before = rules.calm(before, tx.now_us, _window_us(policy))
    facts = _facts(before, policy, tx.now_us, fault=seen.fault, kind=seen.kind, input_blamed=input_blamed)
    facts = msgspec.structs.replace(facts, probation=probation.on_probation(tx, device, policy))
    decision = rules.decide(facts)
    if decision.action == rules.IGNORE:
        return decision
    if before.state == "open":
        cause = _opening(tx, device)
    counted = tx.append(_stream(device), seen, actor=actor, cause=cause)
    if decision.action == rules.OPEN:
        _open(tx, device, seen.kind, decision, policy, actor=actor, cause=counted.seq)
    return decision


def device_lost(tx: Tx, device: str, policy: Policy, *, reason: str, actor: str) -> bool:
    """A device is gone: new epoch, its lanes out, everything on it moved. False when that was known already."""
    row = tx.execute("SELECT state, epoch FROM devices WHERE id=?", (device,)).fetchone()
    if row is None or row[0] != "ok":
        return False
    told = _said(tx, device)
    lost = tx.append(_stream(device), ev.DeviceLost(reason, row[1] + 1, told), actor=actor)
    for lane, model in tx.execute("SELECT lane, model FROM lanes WHERE device=?", (device,)).fetchall():
        laneviews.set_serving(tx, lane, model, "device-lost", actor=actor, cause=lost.seq)
    fault(tx, device, ev.FaultCounted("device", "device-lost", actor, told), policy, actor=actor, cause=lost.seq)
    return True


def device_says(tx: Tx, device: str, policy: Policy, *, actor: str) -> None:
    """What is told of a device that is out may have changed: then that is one more fault of the same incident."""
    told, before = _said(tx, device), _said_before(tx, device)
    if laneviews.is_lost(tx, device) and told and before and told != before:
        fault(tx, device, ev.FaultCounted("device", "device-lost", actor, told), policy, actor=actor)


def _said_before(tx: Sees, device: str) -> dict[str, str | int | float]:
    sql = "SELECT json_extract(data, '$.evidence') FROM events WHERE stream=? AND type='FaultCounted' ORDER BY seq DESC"
    row = tx.execute(f"{sql} LIMIT 1", (_stream(device),)).fetchone()
    return dict(msgspec.json.decode(row[0])) if row is not None and row[0] else {}


def _said(tx: Sees, device: str) -> dict[str, str | int | float]:
    """What was read last of a device that is not well: the driver's code, why, and what a person can do."""
    found = house.reading_of(tx, device)
    reading = {} if found is None else msgspec.json.decode(found[1])
    if reading.get("state", "ok") == "ok":
        return {}
    return {key: reading[key] for key in ("code", "reason", "advice") if reading.get(key) is not None}


def answered(
    tx: Tx, device: str, path: PathFacts, units: tuple[int, ...], policy: Policy, *, runner: str, took_us: int
) -> Verdict:
    """Judge a canary's answer, and let follow what follows. `units` is empty where none came."""
    before = breaker_of(tx, device)
    trying = before is not None and before.state == "half-open"
    verdict, note = canaries.verdict(tx, device, path, units, took_us, policy.slow_factor if trying else 0.0)
    if verdict == "right" and not trying:
        return verdict
    told = ev.CanaryAnswered(verdict, canaries.known_as(path, device), units, took_us, runner, note)
    said = tx.append(_stream(device), told, actor=runner)
    if device == canaries.CPU and verdict == "recorded":
        _contradict(tx, path.contract, units, policy, runner=runner, cause=said.seq)
    if before is not None and (verdict == "wrong" or trying):
        _follow(tx, device, before, verdict, policy, runner=runner, cause=said.seq)
    return verdict


def _follow(tx: Tx, device: str, before: Breaker, verdict: Verdict, policy: Policy, *, runner: str, cause: int) -> None:
    """Open it or close it after a canary, where that is the rule."""
    right = 0 if verdict in {"wrong", "slow"} else before.right + 1
    calm = rules.calm(before, tx.now_us, _window_us(policy))
    decision = rules.decide(_facts(calm, policy, tx.now_us, kind="slow" if verdict == "slow" else "", right=right))
    if decision.action == rules.OPEN:
        _open(tx, device, decision.rule, decision, policy, actor=runner, cause=cause)
    elif decision.action == rules.CLOSE:
        tx.append(_stream(device), ev.BreakerClosed("canaries", decision), actor=runner, cause=cause)


def _contradict(tx: Tx, contract: str, units: tuple[int, ...], policy: Policy, *, runner: str, cause: int) -> None:
    """The host's processor has answered for the first time: whoever was recorded with something else is wrong."""
    for other in canaries.contradicted(tx, contract, units):
        told = ev.CanaryAnswered("wrong", other.name, other.units, 0, runner, CONTRADICTS)
        said = tx.append(_stream(other.device), told, actor=runner, cause=cause)
        before = breaker_of(tx, other.device)
        if before is not None:
            _follow(tx, other.device, before, "wrong", policy, runner=runner, cause=said.seq)


def half_open(tx: Tx, device: str, reason: str, *, actor: str, cause: int | None = None) -> bool:
    """Try the device with canaries from here on; False when its breaker is not open."""
    before = breaker_of(tx, device)
    if before is None or before.state != "open":
        return False
    tx.append(_stream(device), ev.BreakerHalfOpened(reason), actor=actor, cause=cause)
    return True


def host_resumed(tx: Tx, slept_us: int, *, actor: str) -> None:
    """The machine has slept: no device that takes work now is trusted before it has answered canaries."""
    told = tx.append("service", ev.HostResumed(slept_us), actor=actor)
    rows = tx.execute("SELECT DISTINCT d.id FROM devices d JOIN lanes l ON l.device=d.id WHERE d.breaker<>'open'", ())
    for (device,) in rows.fetchall():
        tx.append(_stream(device), ev.BreakerHalfOpened("host-resumed"), actor=actor, cause=told.seq)


def device_back(tx: Tx, device: str, reason: str, *, actor: str) -> None:
    """A lost device answers again: its next span of trust begins, once canaries have shown what it computes."""
    row = tx.execute("SELECT state, epoch FROM devices WHERE id=?", (device,)).fetchone()
    if row is not None and row[0] == "lost":
        back = tx.append(_stream(device), ev.DeviceBack(reason, row[1]), actor=actor)
        half_open(tx, device, "device-back", actor=actor, cause=back.seq)


def reset(tx: Tx, device: str, reason: str, *, actor: str) -> Breaker:
    """Somebody says that the device is well: it is tried at once, whatever held it. The breaker after that.

    Raises `NotFound` for a device that has no breaker.
    """
    before = breaker_of(tx, device)
    if before is None:
        raise NotFound(f"there is no device {device} with a breaker; GET /api/devices lists them")
    device_back(tx, device, reason, actor=actor)
    half_open(tx, device, reason, actor=actor)
    after = breaker_of(tx, device)
    assert after is not None
    return after


def _opening(tx: Sees, device: str) -> int | None:
    """The seq of the last opening."""
    sql = "SELECT max(seq) FROM events WHERE stream=? AND type='BreakerOpened'"
    (seq,) = tx.execute(sql, (_stream(device),)).fetchone()
    return None if seq is None else int(seq)


def _open(tx: Tx, device: str, reason: str, decision: Decision, policy: Policy, *, actor: str, cause: int) -> None:
    """It is held where the device is known to be gone; what only seems to be is tried again after the cooldown."""
    assert isinstance(decision.facts, BreakerFacts)
    cooldown_us, held = int(rules.cooldown_s(decision.facts) * 1e6), laneviews.is_lost(tx, device)
    opened = tx.append(_stream(device), ev.BreakerOpened(reason, decision, cooldown_us, held), actor=actor, cause=cause)
    failing = decision.facts.fault == "device"
    failover.leave_device(
        tx,
        device,
        policy,
        kind="device-lost" if held else "breaker-open",
        fault_class="device" if failing else "worker",
        actor=actor,
        cause=opened.seq,
        running=failing,
    )


def _facts(
    before: Breaker,
    policy: Policy,
    now_us: int,
    *,
    fault: FaultClass | None = None,
    kind: str = "",
    input_blamed: bool = False,
    right: int = 0,
) -> BreakerFacts:
    return BreakerFacts(
        state=before.state,
        fault=fault,
        fault_kind=kind,
        counted=before.counted(now_us, _window_us(policy)) + (fault is not None),
        limit=policy.breaker_faults,
        window_s=policy.breaker_window_s,
        trips=before.trips,
        cooldown_s=policy.breaker_cooldown_s,
        cooldown_max_s=policy.breaker_cooldown_max_s,
        held=before.held,
        input_blamed=input_blamed,
        right=right,
        wanted=policy.breaker_canaries,
    )


def _window_us(policy: Policy) -> int:
    return int(policy.breaker_window_s * 1e6)


def _stream(device: str) -> str:
    return f"device-{device}"
