"""Breakers of devices: what is counted, when one opens, and who moves then; all in the transaction that sees it.

1. The journal holds a breaker's state; the row of its device is a projection of it.
2. Who waits for a device whose breaker opens goes where it can go, by the rules of a takeover. Who is being worked on
   by another worker there goes on, unless the device itself failed.
3. A canary's first answer on a path is kept, and every later one is compared with it.
"""

from typing import Final, Literal

import msgspec

from core import breaker as rules
from core import events as ev
from core.breaker import Breaker
from core.contract import HOST, PathFacts
from core.decision import BreakerFacts, Decision
from core.errors import NotFound
from core.policy import Policy
from core.words import FaultClass
from store import failover, laneviews
from store.journal import Sees, Tx

Verdict = Literal["recorded", "right", "wrong"]

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
    decision = rules.decide(facts)
    if decision.action == rules.IGNORE:
        return decision
    counted = tx.append(_stream(device), seen, actor=actor, cause=cause)
    if decision.action == rules.OPEN:
        _open(tx, device, seen.kind, decision, policy, held=seen.fault == "device", actor=actor, cause=counted.seq)
    return decision


def device_lost(tx: Tx, device: str, policy: Policy, *, reason: str, actor: str) -> bool:
    """A device is gone: new epoch, its lanes out, everything on it moved. False when that was known already."""
    row = tx.execute("SELECT state, epoch FROM devices WHERE id=?", (device,)).fetchone()
    if row is None or row[0] != "ok":
        return False
    lost = tx.append(_stream(device), ev.DeviceLost(reason, row[1] + 1), actor=actor)
    for lane, model in tx.execute("SELECT lane, model FROM lanes WHERE device=?", (device,)).fetchall():
        laneviews.set_serving(tx, lane, model, "device-lost", actor=actor, cause=lost.seq)
    fault(tx, device, ev.FaultCounted("device", "device-lost", actor), policy, actor=actor, cause=lost.seq)
    return True


def answered(
    tx: Tx, device: str, path: PathFacts, units: tuple[int, ...], policy: Policy, *, runner: str, took_us: int
) -> Verdict:
    """Judge a canary's answer, and let follow what follows. `units` is empty where none came."""
    verdict, note = judge(path, units, reference(tx, path))
    before = breaker_of(tx, device)
    trying = before is not None and before.state == "half-open"
    if verdict == "right" and not trying:
        return verdict
    told = ev.CanaryAnswered(verdict, known_as(path), units, took_us, runner, note)
    said = tx.append(_stream(device), told, actor=runner)
    if before is None or (verdict != "wrong" and not trying):
        return verdict
    right = 0 if verdict == "wrong" else before.right + 1
    decision = rules.decide(_facts(rules.calm(before, tx.now_us, _window_us(policy)), policy, tx.now_us, right=right))
    if decision.action == rules.OPEN:
        _open(tx, device, "canary-wrong", decision, policy, held=False, actor=runner, cause=said.seq)
    elif decision.action == rules.CLOSE:
        tx.append(_stream(device), ev.BreakerClosed("canaries", decision), actor=runner, cause=said.seq)
    return verdict


def half_open(tx: Tx, device: str, reason: str, *, actor: str, cause: int | None = None) -> bool:
    """Try the device with canaries from here on; False when its breaker is not open."""
    before = breaker_of(tx, device)
    if before is None or before.state != "open":
        return False
    tx.append(_stream(device), ev.BreakerHalfOpened(reason), actor=actor, cause=cause)
    return True


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


def reference(tx: Sees, path: PathFacts) -> tuple[int, ...] | None:
    """What the path answered to the canary in good days; None: nothing is recorded yet."""
    row = tx.execute(_REFERENCE, (known_as(path),)).fetchone()
    return None if row is None else tuple(msgspec.json.decode(row[0]))


def judge(path: PathFacts, units: tuple[int, ...], known: tuple[int, ...] | None) -> tuple[Verdict, str]:
    """The verdict on an answer, and what was wrong with it.

    The host computes the same to the last bit; elsewhere a batch may tip a word, and half of the answer must agree.
    """
    if not units:
        return "wrong", "there was no answer"
    if known is None:
        return "recorded", ""
    alike = next((n for n, (a, b) in enumerate(zip(units, known, strict=False)) if a != b), min(len(units), len(known)))
    needed = len(known) if path.kind == HOST and path.slots == 1 else (len(known) + 1) // 2
    if alike < needed or (needed == len(known) and len(units) != len(known)):
        return "wrong", f"{alike} of {len(known)} units are those of the recorded answer; {needed} must be"
    return "right", ""


def known_as(path: PathFacts) -> str:
    """The name under which a path's canary is kept: another build, kind, model or number of slots has its own."""
    return f"{path.name}/{path.contract}/{path.slots}"


_REFERENCE: Final = (
    "SELECT json_extract(data, '$.units') FROM events WHERE type='CanaryAnswered' "
    "AND json_extract(data, '$.verdict')='recorded' AND json_extract(data, '$.path')=? ORDER BY seq DESC LIMIT 1"
)


def _open(
    tx: Tx, device: str, reason: str, decision: Decision, policy: Policy, *, held: bool, actor: str, cause: int
) -> None:
    assert isinstance(decision.facts, BreakerFacts)
    cooldown_us = int(rules.cooldown_s(decision.facts) * 1e6)
    opened = tx.append(_stream(device), ev.BreakerOpened(reason, decision, cooldown_us, held), actor=actor, cause=cause)
    fault_class: FaultClass = "device" if held else "worker"
    kind = "device-lost" if held else "breaker-open"
    failover.leave_device(
        tx, device, policy, kind=kind, fault_class=fault_class, actor=actor, cause=opened.seq, running=held
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
