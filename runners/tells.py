"""Which token would a path say next, and how sure is it? Beside the engine protocol, for those engines that can tell.

1. What is told is the model's own distribution, before any sampling: logarithms of probabilities.
2. A text that goes on from the one before is evaluated as an answer is: the prompt in the engine's batches, each token
   behind it alone. Other shapes would measure another path than requests take.
3. An engine that cannot tell is asked for an answer of one token instead; that gives the likeliest one.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from core.equivalence import END, Place
from core.errors import CannotContinue, EngineFault
from runners.engines.base import GenerateWork, Host, Loaded, Said, Sampling
from runners.engines.base import Sequence as Working
from runners.engines.ctransformers import PROMPT_BATCH
from runners.engines.llamahttp import Address

TOLD: Final = 64
"""Tokens told of at each place."""


@runtime_checkable
class Tells(Protocol):
    """A loaded model that can say how likely each next token is."""

    def next_distribution(self, prompt_ids: Sequence[int]) -> dict[int, float]:
        """Logarithms of the probabilities of the likeliest next tokens; raises `EngineFault`."""


class NativeTells:
    """The embedded engine's own logits. Not beside a sequence: it is one native instance."""

    def __init__(self, loaded: Any, host: Host) -> None:
        # The engine hands out no logits, so this is the one look behind its protocol.
        self._native = loaded._native  # noqa: SLF001 -- see above
        self._host = host
        self._evaluated: list[int] = []

    def next_distribution(self, prompt_ids: Sequence[int]) -> dict[int, float]:
        """Evaluates only what is new when `prompt_ids` go on from those of the call before."""
        ids = list(prompt_ids)
        if not self._evaluated or ids[:-1] != self._evaluated:
            self._native.prepare_inputs_for_generation([0], reset=True)
            self._evaluated = []
        fresh = ids[len(self._evaluated) :]
        threads = self._host.threads()
        for start in range(0, len(fresh), PROMPT_BATCH):
            self._native.eval(fresh[start : start + PROMPT_BATCH], batch_size=PROMPT_BATCH, threads=threads)
        self._evaluated = ids
        return likeliest(list(self._native.logits))


class _Top(msgspec.Struct, frozen=True):
    id: int
    logprob: float


class _Drawn(msgspec.Struct, frozen=True):
    top_logprobs: tuple[_Top, ...]


class _Answer(msgspec.Struct, frozen=True):
    completion_probabilities: tuple[_Drawn, ...] = ()


class ServerTells:
    """A llama.cpp server: an answer of one token with its probabilities. The prefix stays in the server's cache."""

    def __init__(self, at: Address, slot: int) -> None:
        self._at = at
        self._slot = slot

    def next_distribution(self, prompt_ids: Sequence[int]) -> dict[int, float]:
        """Raises `EngineFault` when the server does not answer, or tells no probabilities."""
        body = {
            "prompt": list(prompt_ids),
            "n_predict": 1,
            "n_probs": TOLD,
            "temperature": 0.0,
            "id_slot": self._slot,
            "cache_prompt": True,
        }
        answer = self._at.ask("POST", "/completion", msgspec.json.encode(body), kind=_Answer)
        if not answer.completion_probabilities or not answer.completion_probabilities[0].top_logprobs:
            raise EngineFault(
                f"The server at {self._at.shown} does not tell how likely tokens are. It must be a llama-server of 2025"
                " or later."
            )
        return {one.id: one.logprob for one in answer.completion_probabilities[0].top_logprobs}


def likeliest(logits: Sequence[float]) -> dict[int, float]:
    """The `TOLD` likeliest tokens, the first of equals first. Raises `EngineFault` for what are no logits."""
    most = max(logits)
    if not math.isfinite(most):
        raise EngineFault("The engine computed no usable logits.")
    whole = most + math.log(sum(math.exp(one - most) for one in logits))
    best = heapq.nsmallest(TOLD, range(len(logits)), key=lambda token: -logits[token])
    return {token: logits[token] - whole for token in best}


class OneToken:
    """Any engine that can go on from a given text: its likeliest next token, without how sure it is of it."""

    def __init__(self, loaded: Loaded, host: Host) -> None:
        self._loaded = loaded
        self._host = host

    def place(self, prompt: tuple[int, ...], done: tuple[int, ...], eos: tuple[int, ...], said: Said) -> Place | None:
        """One chunk of one unit; None where the engine cannot go on from there, such as inside a character."""
        work = GenerateWork(prompt, done, len(done) + 1, eos, Sampling(), said=said)
        sequence: Working | None = None
        try:
            sequence = self._loaded.begin(work, self._host)
            chunk = next(sequence)
        except CannotContinue:
            return None
        finally:
            if sequence is not None:
                sequence.close()
        return Place(chunk.units[0] if chunk.units else END)


def told_place(tells: Tells, prompt: tuple[int, ...], done: tuple[int, ...], eos: tuple[int, ...]) -> Place:
    """What the path says next after `done`; every end token is the same end."""
    told = tells.next_distribution((*prompt, *done))
    top = max(told, key=told.__getitem__)
    return Place(END if top in eos else top, told)
