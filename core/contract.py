"""How alike two paths answer: the class of a pair, from what is known of both.

1. `none` unless the contracts agree (same tokenizer, weights, quantization, template).
2. `identical` when both are the same engine build computing on the same kind of processor: a simulated accelerator
   computes on the host, so its pair with the CPU lane is of this class, and so is CPU with CPU.
3. `faithful` needs a stored proof; without one a real accelerator's pair is `none`.
"""

import msgspec

from core.words import PairClass


class PathFacts(msgspec.Struct, frozen=True):
    """One path: an engine build, a contract, and whether it computes on the host's own processor."""

    engine: str
    contract: str
    on_host: bool


def pair_class(source: PathFacts, target: PathFacts) -> PairClass:
    """The class of going on at `target` with what `source` began."""
    if not source.contract or source.contract != target.contract:
        return "none"
    if source.engine == target.engine and source.on_host and target.on_host:
        return "identical"
    return "none"
