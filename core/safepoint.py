"""After a fault: may this request go on, where, and from which point?

In this order; the first rule that applies decides:

1.  `cancel-wins`        it was asked to stop: it stops. `model-changed`: the model it was accepted for is gone: stop.
                         `engine-changed`: its shown text is another engine's, and the two are not proved alike: stop.
2.  `poison-limit`       its input has killed workers `poison_limit` times without progress: stop honestly.
    `no-progress`        `loss_limit` workers are gone in a row without progress, whatever ended them: the same.
3.  `effects-pending`    something outside has happened since the checkpoint: never repeat it, on any lane.
4.  `engine-refused`     the engine is sound and refuses the work for good: nobody would do better.
    `cannot-continue`    the engine there cannot go on with shown text, and no other lane may.
    `too-big-for-lane`   a fault of size where no other lane may take it: the same lane would refuse it again.
5.  `asked-first`        what it said last looks like nonsense: it waits on its lane for a canary, from its checkpoint.
    `cpu-worker-lost`    it was on the CPU lane: back into that lane's queue, go on from the checkpoint.
6.  `service-restarted`  the service itself went away, no engine is to blame: same lane, from the checkpoint.
7.  `stay-on-gpu`        the caller forbids the CPU; if the device is sound and (nothing was shown, or only the
                         CPU was forbidden), back into the GPU queue.
8.  `failover-never`, `gpu-only-device-lost`   the caller forbids the move: stop honestly.
9.  `no-cpu-lane`        there is nowhere to go: wait for the GPU if it can come back, else stop.
10. `restart-nothing-shown`   no unit is durable: start from the prompt on the CPU. Nothing can be contradicted.
11. `boundary-passed`    the caller allows a move only before the first unit: stop honestly.
12. `pair-none`, `pair-below-demand`   the CPU path is not proved alike enough: back to the GPU lane where the device is
    sound and its worker can be brought up, else stop honestly.
13. `cpu-lane-full`      it may move, but as many as may wait for the CPU lane wait there: it keeps its place until
    there is room, or the GPU serves again. What the GPU lane would only refuse again is moved all the same.
    `continue-identical`, `continue-faithful`   go on from the checkpoint on the CPU.

Not here: what counts as a fault (the shell gathers that), what the caller is told (explain).
"""

from core.decision import Decision, Rejected, SafepointFacts

CONTINUE = "continue-cpu"
RESTART = "restart-cpu"
REQUEUE = "requeue"
FAIL = "fail"
CANCEL = "cancel"
LANE_FULL = "cpu-lane-full"


def decide(facts: SafepointFacts) -> Decision:
    """One of `continue-cpu`, `restart-cpu`, `requeue`, `fail`, `cancel`, with what was rejected."""
    action, rule, rejected = _rule(facts)
    return Decision(action, rule, facts, tuple(Rejected(a, r) for a, r in rejected))


_Ruling = tuple[str, str, list[tuple[str, str]]]
_LANE_OUT = frozenset({"load-failed", "not-on-device"})
"""Kinds that say the lane's worker cannot be brought up: whoever went back there would wait for nobody knows what."""
IN_DOUBT = "output-in-doubt"
"""The kind of what looks like nonsense: it waits on its lane for a canary."""
_STAYS = frozenset({"never", "gpu-only"})
_CHANGE = "it would change or repeat text that was shown"


def _rule(f: SafepointFacts) -> _Ruling:
    return _ended(f) or _same_lane(f) or _kept_on_gpu(f) or _moved(f)


def _ended(f: SafepointFacts) -> _Ruling | None:  # noqa: PLR0911 -- one return for each rule
    """Rules 1 to 4: it goes on nowhere."""
    if f.cancel_asked:
        return CANCEL, "cancel-wins", [(CONTINUE, "a cancel was asked before the fault")]
    if f.fault_kind == "model-changed":
        why = "its tokens and its text belong to the model it was accepted for"
        return FAIL, "model-changed", [(CONTINUE, why), (RESTART, why), (REQUEUE, why)]
    if f.fault_kind == "engine-changed":
        why = "text was shown by another engine, which is not proved to answer like the one that is there now"
        return FAIL, "engine-changed", [(CONTINUE, why), (RESTART, _CHANGE), (REQUEUE, why)]
    if f.deaths >= f.poison_limit:
        why = f"this input ended {f.deaths} workers without one new checkpoint; the limit is {f.poison_limit}"
        return FAIL, "poison-limit", [(CONTINUE, why), (REQUEUE, why)]
    if f.loss_limit and f.losses >= f.loss_limit:
        why = (
            f"{f.losses} workers are gone without one new checkpoint, whatever ended them; the limit is {f.loss_limit}"
        )
        return FAIL, "no-progress", [(CONTINUE, why), (REQUEUE, why)]
    if f.effects_pending:
        why = "an effect was delivered since the checkpoint and must not happen twice"
        return FAIL, "effects-pending", [(CONTINUE, why), (RESTART, why), (REQUEUE, why)]
    if f.fault == "size" and (f.lane == "cpu" or not f.cpu_serving or f.failover in _STAYS):
        return FAIL, "too-big-for-lane", [(CONTINUE, _elsewhere(f)), (REQUEUE, "the same size would be refused again")]
    if f.fault_kind == "engine-refused":
        why = "the engine cannot do what is asked for, and would refuse it again"
        return FAIL, "engine-refused", [(CONTINUE, why), (RESTART, why), (REQUEUE, why)]
    if f.fault_kind == "cannot-continue" and (f.lane == "cpu" or not f.cpu_serving or f.failover in _STAYS):
        again = "the engine there cannot go on with text that was begun elsewhere"
        return FAIL, "cannot-continue", [(CONTINUE, _elsewhere(f)), (RESTART, _CHANGE), (REQUEUE, again)]
    return None


def _same_lane(f: SafepointFacts) -> _Ruling | None:
    """Rules 5 and 6: the lane it was on is the place to go on."""
    if f.fault_kind == IN_DOUBT:
        return REQUEUE, "asked-first", [(CONTINUE, "nothing is known to be wrong; a canary tells")]
    if f.lane == "cpu":
        return REQUEUE, "cpu-worker-lost", [(RESTART, _restart_reason(f))]
    if f.fault_kind == "service-stopped" and f.fault != "size":
        return REQUEUE, "service-restarted", [(CONTINUE, "the GPU lane is not to blame"), (RESTART, _restart_reason(f))]
    return None


def _restart_reason(f: SafepointFacts) -> str:
    return "nothing is lost by going on from the checkpoint" if f.units == 0 else _CHANGE


def _elsewhere(f: SafepointFacts) -> str:
    """Why no other lane may take it."""
    if f.lane == "cpu":
        return "it was on the CPU lane already"
    return f"failover is `{f.failover}`" if f.failover in _STAYS else "no CPU lane serves this model"


def _kept_on_gpu(f: SafepointFacts) -> _Ruling | None:
    """Rules 7 to 9: the request may not, or cannot, leave the GPU lane."""
    device_sound = f.fault != "device"
    if f.failover in _STAYS:
        forbidden = [(CONTINUE, f"failover is `{f.failover}`"), (RESTART, f"failover is `{f.failover}`")]
        if device_sound and (f.units == 0 or f.failover == "gpu-only"):
            return REQUEUE, "stay-on-gpu", forbidden
        rule = "failover-never" if f.failover == "never" else "gpu-only-device-lost"
        stay = "the device is out" if not device_sound else "text was shown, and a takeover of any kind was forbidden"
        return FAIL, rule, [*forbidden, (REQUEUE, stay)]
    if not f.cpu_serving:
        nowhere = [(CONTINUE, "no CPU lane serves this model"), (RESTART, "no CPU lane serves this model")]
        if device_sound or f.units == 0:
            return REQUEUE, "no-cpu-lane", nowhere
        return FAIL, "no-cpu-lane", [*nowhere, (REQUEUE, "the device is out")]
    return None


def _moved(f: SafepointFacts) -> _Ruling:
    """Rules 10 to 13: there is a CPU lane and the caller lets us use it."""
    wait = (REQUEUE, "the GPU worker just failed; the CPU lane can answer now")
    if f.units == 0:
        return _full(f, RESTART) or (RESTART, "restart-nothing-shown", [(CONTINUE, "no unit is durable yet"), wait])
    if f.failover == "boundary":
        return FAIL, "boundary-passed", [(CONTINUE, "failover is `boundary` and text exists"), (RESTART, _CHANGE), wait]
    unlike = _unlike(f)
    if unlike is not None:
        rule, why = unlike
        rejected = [(CONTINUE, why), (RESTART, _CHANGE)]
        if f.fault in {"worker", "slow"} and f.fault_kind not in _LANE_OUT:
            return REQUEUE, rule, rejected
        return FAIL, rule, [*rejected, (REQUEUE, "the GPU lane cannot take it again")]
    return _full(f, CONTINUE) or (CONTINUE, f"continue-{f.pair}", [(RESTART, _CHANGE), wait])


def _full(f: SafepointFacts, move: str) -> _Ruling | None:
    """Rule 13: a move that is right, and for which there is no room."""
    if f.cpu_limit is None or f.cpu_waiting < f.cpu_limit or f.fault == "size" or f.fault_kind == "cannot-continue":
        return None
    why = f"{f.cpu_waiting} requests wait for the CPU lane already; the limit is {f.cpu_limit}"
    return REQUEUE, LANE_FULL, [(move, why)]


def _unlike(f: SafepointFacts) -> tuple[str, str] | None:
    """Rule 12: why the CPU path may not go on with shown text, or None."""
    if f.pair == "none":
        return "pair-none", "the CPU path is not proved to answer like the one it was on"
    if f.failover == "identical" and f.pair != "identical":
        return "pair-below-demand", "failover is `identical`, and the pair is only `faithful`"
    return None
