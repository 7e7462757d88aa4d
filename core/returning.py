"""Work that was moved to the CPU lane: may it go back to the GPU lane now, and does that pay?

In this order; the first rule that applies decides:

1. `gpu-still-out`       the GPU lane does not serve, or none of its runners has the model.
2. `pair-not-alike`      text was shown, and the two lanes are not proved alike enough for this request.
   `gpu-cannot-continue` text was shown, and the GPU lane was seen to be unable to go on with it.
3. `gpu-is-back`         the CPU lane is out: it goes back, whatever the rest would say.
4. `return-off`          policy keeps work where it is.
5. `gpu-under-pressure`  the lane serves, and is short of memory.
6. `gpu-busy`            others wait for that lane already; going back would only wait there.
7. `too-soon`            it was moved only just now; each move doubles the wait, so that a device that comes and goes
                         does not toss work about.
8. `rates-unknown`       how fast the lanes are was not measured yet, so whether it pays is not known.
9. `not-worth-it`        less than the least gain would be saved, the takeover counted.
10. `gpu-is-back`        it goes back.

With a negative least gain rules 8 and 9 ask nothing: the CPU lane is wanted free.
Work that only waits for the CPU lane has nothing to lose there, and does not have to save anything: rule 8 asks
nothing of it, and rule 9 only that it does not lose more than the least gain; nothing at all where no unit is durable.

Whoever stays while the GPU lane serves is told why (`tell_due`): at each full minute, and when the reason changes, but
not within ten seconds of the last word.

Not here: what is told of it (explain), when it is asked (the shell).
"""

from typing import Final

from core.decision import Decision, Rejected, ReturnFacts

RETURN = "return-gpu"
STAY = "stay-cpu"
_TELL_S: Final = 60.0
_CHANGE_S: Final = 10.0


def decide(facts: ReturnFacts) -> Decision:
    """`return-gpu` or `stay-cpu`, with the reason against the other."""
    obstacle = _possible(facts) or (None if facts.cpu_out else _lane(facts) or _worth(facts))
    if obstacle is not None:
        rule, why = obstacle
        return Decision(STAY, rule, facts, (Rejected(RETURN, why),))
    return Decision(RETURN, "gpu-is-back", facts, (Rejected(STAY, _pays(facts)),))


def least_wait_s(facts: ReturnFacts) -> float:
    """How long it stays on the CPU lane at least."""
    return facts.least_s * 2.0 ** min(max(0, facts.moves - 1), 16)


def gain_s(facts: ReturnFacts) -> float | None:
    """Seconds saved by going back, takeover counted; None where a rate is not known."""
    if not facts.cpu_tps or not facts.gpu_tps or facts.takeover_s is None:
        return None
    return facts.units_left / facts.cpu_tps - facts.units_left / facts.gpu_tps - facts.takeover_s


def _possible(f: ReturnFacts) -> tuple[str, str] | None:
    """Rules 1 and 2: what stands in the way however much it is wanted."""
    if not f.gpu_serving:
        return "gpu-still-out", "the GPU lane does not serve"
    if f.units == 0:
        return None
    if f.pair == "none":
        return "pair-not-alike", "text was shown, and the two lanes are not proved to answer alike"
    if f.failover == "identical" and f.pair != "identical":
        return "pair-not-alike", "failover is `identical`, and the lanes are only `faithful`"
    if f.cannot:
        return "gpu-cannot-continue", "the GPU lane cannot go on with text that was begun elsewhere"
    return None


def _lane(f: ReturnFacts) -> tuple[str, str] | None:
    """Rules 4 to 6: is it wanted, and has the lane room?"""
    if not f.wanted:
        return "return-off", "policy keeps work on the lane it was moved to"
    if f.spilling:
        return "gpu-under-pressure", "the device's memory has not been calm for long enough"
    if f.gpu_waiting >= f.gpu_slots:
        return "gpu-busy", f"{f.gpu_waiting} requests wait for the GPU lane already"
    return None


def _worth(f: ReturnFacts) -> tuple[str, str] | None:
    """Rules 7 to 9: does it pay?"""
    least = least_wait_s(f)
    if f.on_cpu_s < least:
        return "too-soon", f"it was moved {f.on_cpu_s:.1f} s ago, and stays {least:.0f} s at least"
    return _gain(f)


def tell_due(on_cpu_s: float, told_s: float, *, same: bool) -> bool:
    """Whether to say why it is still on the CPU lane, `on_cpu_s` after its move there.

    The last word came `told_s` after the move (0: there was none) and gave the `same` reason, or another one.
    """
    if on_cpu_s // _TELL_S > told_s // _TELL_S:
        return True
    return not same and on_cpu_s - told_s >= _CHANGE_S


def _gain(f: ReturnFacts) -> tuple[str, str] | None:
    if f.least_gain_s < 0:
        return None
    gain = gain_s(f)
    if f.waits:
        if f.units == 0 or gain is None or gain >= -f.least_gain_s:
            return None
        return "not-worth-it", f"going back would lose {-gain:.1f} s, and it may lose {f.least_gain_s:.1f} s at most"
    if gain is None:
        return "rates-unknown", "how fast the two lanes are has not been measured yet"
    if gain < f.least_gain_s:
        return "not-worth-it", f"going back would save {gain:.1f} s, and {f.least_gain_s:.1f} s are asked for"
    return None


def _pays(f: ReturnFacts) -> str:
    if f.cpu_out:
        return "the CPU lane cannot work"
    if f.waits:
        return "the GPU lane takes it, and here it only waits"
    gain = gain_s(f)
    if gain is None or f.least_gain_s < 0:
        return "the GPU lane takes it, and the CPU lane is wanted free"
    return f"going back saves {gain:.1f} s"
