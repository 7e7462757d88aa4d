"""What a llama-server is asked to compute, as the body of one call.

1. Everything that changes a draw is said each time; a server's own defaults decide nothing.
2. The filters run in the order of the embedded engine: the likeliest `top_k`, of them `top_p`, then the temperature.
3. A drawn call has the seed of the first unit it draws.
"""

from typing import Any, Final

import msgspec

from core.seeds import seed_at
from runners.engines.base import Constraint, GenerateWork, Sampling

_GREEDY_BELOW: Final = 1e-4
"""Temperatures under this are greedy, as in the other engines."""

_FIXED: Final[dict[str, Any]] = {
    "return_tokens": True,
    "samplers": ["top_k", "top_p", "temperature"],
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "mirostat": 0,
    "ignore_eos": False,
    # The prompt and all settings would come back otherwise, at every call.
    "response_fields": [
        *("stop", "content", "tokens", "tokens_predicted", "stop_type", "timings", "id_slot", "truncated")
    ],
}
_GREEDY: Final[dict[str, Any]] = {"temperature": 0.0, "top_k": 1}


def is_greedy(sampling: Sampling) -> bool:
    """Nothing is drawn: the likeliest token follows."""
    return sampling.temperature < _GREEDY_BELOW


def answer_body(work: GenerateWork, units: list[int], count: int, *, slot: int, cached: int, streamed: bool) -> bytes:
    """Go on with `count` units after `units`; `cached` tokens are in the slot already."""
    how = _GREEDY if is_greedy(work.sampling) else _drawn(work.sampling, len(units))
    held = {} if work.constraint is None else _held(work.constraint)
    return _body(work.prompt, units, count, slot=slot, cached=cached, streamed=streamed, **how, **held)


def replay_body(work: GenerateWork, units: list[int], *, slot: int, cached: int, streamed: bool) -> bytes:
    """Evaluate the prompt and `units`. A server draws at least one token, which is evaluated by nobody."""
    return _body(work.prompt, units, 1, slot=slot, cached=cached, streamed=streamed, **_GREEDY)


def _body(
    prompt: tuple[int, ...], units: list[int], count: int, *, slot: int, cached: int, streamed: bool, **how: Any
) -> bytes:
    return msgspec.json.encode(
        {
            **_FIXED,
            **how,
            "prompt": [*prompt, *units],
            "n_predict": count,
            "id_slot": slot,
            "cache_prompt": cached > 0,
            "stream": streamed,
            "return_progress": streamed,
        }
    )


def _drawn(sampling: Sampling, position: int) -> dict[str, Any]:
    return {
        "temperature": sampling.temperature,
        "top_k": max(sampling.top_k, 0),
        "top_p": sampling.top_p,
        "seed": seed_at(sampling.seed, position),
    }


def _held(constraint: Constraint) -> dict[str, Any]:
    if constraint.grammar is not None:
        return {"grammar": constraint.grammar}
    return {"json_schema": constraint.json_schema}
