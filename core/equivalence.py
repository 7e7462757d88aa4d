"""How alike two paths answered, and what class that makes of their pair.

The source is where a request begins, the target is where it would go on. Both were asked the same prompts, greedily.

1. `none` when the contracts differ: nothing needs to be computed to know that.
2. Fewer than `LEAST` compared tokens prove nothing, neither good nor bad: there is a class, but not one to be kept.
3. `identical` when both are the same engine build on the host's processor, one request at a time, and every answer
   was equal token for token. Equal answers of unlike builds are luck that the next prompt may end.
4. `faithful` when, with the same text before them, the two would say the same next token in at least `AGREEMENT` of
   the places, and their distributions differ by at most `DIVERGENCE` nats on average. Where a path does not tell its
   distribution, the share of equal tokens has to reach `AGREEMENT_ALONE`.
5. Otherwise `none`.

Answers of their own accord go apart at the first near tie and stay apart, so only with the same text before each
token can unlike paths be compared at all. What a class permits is asked of `core.safepoint`, which decides it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, get_args

import msgspec

from core.contract import HOST, RANK, PathFacts
from core.decision import SafepointFacts
from core.house_events import EquivalenceProved
from core.safepoint import CONTINUE, decide
from core.words import Failover, PairClass

AGREEMENT: Final = 0.95
"""Least share of equal next tokens. Measured with a model of 135 million weights, where near ties are common: one build
with other batches 0.98, another engine 0.99, a cache of 8 bits 0.97, one of 4 bits 0.90. The limit lies where chance
decides neither way: of 500 places, a share of 0.95 is off by 0.01 as a rule."""
AGREEMENT_ALONE: Final = 0.97
"""The same where no distributions tell whether what differs was a near tie."""
DIVERGENCE: Final = 0.02
"""Most nats, on average over the places: a reader of 50 tokens learns about 1 nat on which path wrote them. Measured as
above: 0.003 with other batches, another engine or a cache of 8 bits, 0.055 with one of 4 bits."""
LEAST: Final = 200
"""Tokens below which a share says too little: 0.95 of them leaves 10."""
END: Final = -1
"""Stands for the end of an answer, whichever of the model's end tokens it was."""

_TINY: Final = 1e-9


class ContractParts(msgspec.Struct, frozen=True):
    """What a contract digests; digests in hex, empty where there is no such part."""

    tokenizer: str
    weights: str
    template: str
    quantization: str


class Answer(msgspec.Struct, frozen=True):
    """What a path said of its own accord: the units, with `END` behind them when it came to an end by itself."""

    units: tuple[int, ...]


class Place(msgspec.Struct, frozen=True):
    """What a path would say next at one place of a given text."""

    top: int
    """The likeliest token, or `END`."""
    told: dict[int, float] | None = None
    """Logarithms of the probabilities of the likeliest tokens; None where the path does not tell."""


class Probe(msgspec.Struct, frozen=True):
    """One prompt on both paths. The places are those of the source's answer, from its first unit on."""

    name: str
    source: Answer
    target: Answer
    source_places: tuple[Place | None, ...]
    target_places: tuple[Place | None, ...]
    """None where a path cannot say, such as one that goes on from text, inside a character."""


class Compared(msgspec.Struct, frozen=True):
    """One prompt, compared."""

    name: str
    first_difference: int | None
    """The first unit that differs of the two answers; None: they are equal."""
    tokens: int
    """Places compared."""
    agreed: int
    """Of these, where the target's likeliest token is what the source said."""
    measured: int = 0
    """Places where both told of enough to measure how far their distributions are apart."""
    divergence: float = 0.0
    """Their sum over those places, in nats."""


class Verdict(msgspec.Struct, frozen=True):
    """The class, why, and whether enough was compared to keep it as a proof."""

    pair: PairClass
    reasons: tuple[str, ...]
    proves: bool = True


def parts_that_differ(source: ContractParts, target: ContractParts) -> tuple[str, ...]:
    """The names of the parts in which two contracts differ; empty for equal ones."""
    return tuple(name for name in ContractParts.__struct_fields__ if getattr(source, name) != getattr(target, name))


def divergence(source: Mapping[int, float], target: Mapping[int, float]) -> float | None:
    """Kullback-Leibler divergence in nats from `source` to `target`, over the tokens that both tell of.

    All other tokens count as one more that both know, so the result is never above the true value. None when there
    is no token that both tell of.
    """
    common = source.keys() & target.keys()
    if not common:
        return None
    total, rest_p, rest_q = 0.0, 1.0, 1.0
    for token in common:
        p = math.exp(source[token])
        rest_p -= p
        rest_q -= math.exp(target[token])
        total += p * (source[token] - target[token])
    if rest_p > _TINY:
        total += rest_p * math.log(rest_p / max(rest_q, _TINY))
    return max(0.0, total)


def compare(probe: Probe) -> Compared:
    """Count what is equal, place by place; a place that the target cannot speak of is not compared."""
    said, other = probe.source.units, probe.target.units
    differs = next((at for at, (a, b) in enumerate(zip(said, other, strict=False)) if a != b), None)
    if differs is None and len(said) != len(other):
        differs = min(len(said), len(other))
    tokens = agreed = measured = 0
    apart = 0.0
    for unit, one, two in zip(said, probe.source_places, probe.target_places, strict=False):
        if two is None:
            continue
        tokens += 1
        agreed += two.top == unit
        if one and one.told and two.told and (found := divergence(one.told, two.told)) is not None:
            measured += 1
            apart += found
    return Compared(probe.name, differs, tokens, agreed, measured, apart)


class Totals(msgspec.Struct, frozen=True):
    """All prompts together."""

    prompts: int
    free_same: int
    tokens: int
    agreed: int
    divergence: float | None
    """Mean in nats; None when it could not be measured."""

    @property
    def agreement(self) -> float:
        """Share of equal next tokens; 0 when nothing was compared."""
        return self.agreed / self.tokens if self.tokens else 0.0


def totals(compared: Sequence[Compared]) -> Totals:
    """The sums over all prompts."""
    measured = sum(one.measured for one in compared)
    return Totals(
        prompts=len(compared),
        free_same=sum(one.first_difference is None for one in compared),
        tokens=sum(one.tokens for one in compared),
        agreed=sum(one.agreed for one in compared),
        divergence=sum(one.divergence for one in compared) / measured if measured else None,
    )


def judge(source: PathFacts, target: PathFacts, found: Totals) -> Verdict:
    """The class by the rules above, with its reasons in words."""
    if not source.contract or source.contract != target.contract:
        return Verdict("none", ("the contracts differ",), proves=False)
    alike = f"{found.free_same} of {found.prompts} answers were equal token for token"
    if found.tokens < LEAST:
        few = f"only {found.tokens} tokens could be compared with the same text before them; {LEAST} are needed"
        return Verdict("none", (few, alike), proves=False)
    same_path = source.name == target.name and source.kind == HOST and source.slots == target.slots == 1
    if same_path and 0 < found.prompts == found.free_same:
        return Verdict("identical", ("the same build computes both on the host, one request at a time", alike))
    close, reasons = _closeness(found)
    if not same_path and found.free_same == found.prompts:
        alike += "; only the same build on the host, one request at a time, is sure to stay so"
    return Verdict("faithful" if close else "none", (*reasons, alike))


def _closeness(found: Totals) -> tuple[bool, tuple[str, ...]]:
    least = AGREEMENT if found.divergence is not None else AGREEMENT_ALONE
    enough = found.agreement >= least
    share = f"{found.agreed} of {found.tokens} next tokens agreed ({found.agreement:.2%}"
    reasons = [f"{share}, {'at least' if enough else 'less than'} {least:.0%})"]
    if found.divergence is None:
        reasons.append("a path does not tell its distributions, so only the tokens were compared")
        return enough, tuple(reasons)
    near = found.divergence <= DIVERGENCE
    told = f"the distributions are {found.divergence:.4f} nats apart on average"
    reasons.append(f"{told}, {'at most' if near else 'more than'} {DIVERGENCE}")
    return enough and near, tuple(reasons)


def proved(source: PathFacts, target: PathFacts, verdict: Verdict, compared: Sequence[Compared]) -> EquivalenceProved:
    """What the record keeps of a measurement."""
    found = totals(compared)
    return EquivalenceProved(
        source=source.name,
        target=target.name,
        contract=source.contract,
        pair=verdict.pair,
        prompts=found.prompts,
        free_same=found.free_same,
        tokens=found.tokens,
        agreed=found.agreed,
        divergence=found.divergence,
        first_difference=tuple(one.first_difference for one in compared if one.first_difference is not None),
    )


def permits(pair: PairClass) -> dict[Failover, bool]:
    """By `failover` setting: whether a request that has shown text goes on at the target when its worker dies."""
    return {choice: decide(_shown(choice, pair)).action == CONTINUE for choice in get_args(Failover)}


def _shown(choice: Failover, pair: PairClass) -> SafepointFacts:
    return SafepointFacts(
        fault="worker",
        fault_kind="killed",
        lane="gpu",
        units=1,
        failover=choice,
        pair=pair,
        cpu_serving=True,
        deaths=0,
        poison_limit=1,
    )


def change(before: PairClass, now: PairClass) -> str:
    """What a proof does to a pair: what falls below its own class loses what that permitted."""
    if before == now:
        return f"the pair was `{before}` before, and still is"
    had, has = permits(before), permits(now)
    moved = ", ".join(f"`{choice}`" for choice in had if had[choice] != has[choice])
    verb = "loses" if RANK[now] < RANK[before] else "gains"
    return f"the pair was `{before}` before, and {verb} permission for failover {moved}"
