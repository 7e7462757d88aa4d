"""How alike two paths answer: the class of a pair, from what is known of both.

1. `none` unless the contracts agree (same tokenizer, weights, quantization, template).
2. `identical` when both are the same engine build computing on the host's processor, one request at a time: a
   simulated accelerator computes on the host, so its pair with the CPU lane is of this class, and so is CPU with CPU.
3. `faithful` when only the number of requests at once differs: other batches change the last bits of a result.
4. Any other pair is what a stored proof says; without one it is `none`.
5. A proof never lifts a pair of rule 2 or 3, and it lowers one that was measured to fall short of its own class.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from core.words import PairClass

HOST = "host"
"""The kind of device of everything that computes on the host's own processor."""


RANK: Final[Mapping[PairClass, int]] = {"none": 0, "faithful": 1, "identical": 2}
"""The classes by what they permit."""


def kind_of(name: str) -> str:
    """The kind of a real accelerator, from the name its driver gives it: a card of the same type is of the same kind.

    `NVIDIA GeForce RTX 4090` is `nvidia-geforce-rtx-4090`.
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") or "unnamed"


class PathFacts(msgspec.Struct, frozen=True):
    """One path: an engine build on a kind of device, with a contract, working on so many requests at once."""

    engine: str
    contract: str
    kind: str
    """`host`, the kind of a real accelerator, or `upstream:<name>`."""
    slots: int = 1

    @property
    def name(self) -> str:
        """What a proof is kept under."""
        return f"{self.engine}@{self.kind}"


def pair_class(source: PathFacts, target: PathFacts, proof: PairClass | None = None) -> PairClass:
    """The class of going on at `target` with what `source` began; `proof` is what was measured of the two."""
    if not source.contract or source.contract != target.contract:
        return "none"
    if source.name == target.name and source.kind == HOST:
        own: PairClass = "identical" if source.slots == target.slots == 1 else "faithful"
        return min(own, proof or own, key=RANK.__getitem__)
    return proof or "none"
