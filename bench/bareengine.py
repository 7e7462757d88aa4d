"""The reference for generation: the native engine's own loop, in a process of its own, orders in and times out.

    {"prompt": [...], "units": N, "temperature": T, "seed": S}   ->   {"seconds": X, "tokens": [...]}

The same shapes, draws and thread count as the service uses; nothing is checked, recorded or handed to anybody.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from core.seeds import seed_at
from runners.engines.base import LoadPlan
from runners.engines.ctransformers import PROMPT_BATCH, CTransformersEngine


def generate(native: Any, order: dict[str, Any]) -> dict[str, Any]:
    """One answer, as fast as the engine can."""
    prompt, units, temperature = order["prompt"], order["units"], order["temperature"]
    greedy = temperature == 0
    began = time.perf_counter()
    native.prepare_inputs_for_generation([0], reset=True)
    for start in range(0, len(prompt), PROMPT_BATCH):
        native.eval(prompt[start : start + PROMPT_BATCH], batch_size=PROMPT_BATCH, threads=1)
    tokens: list[int] = []
    while len(tokens) < units:
        if tokens:
            native.eval([tokens[-1]], batch_size=PROMPT_BATCH, threads=1)
        token = native.sample(
            top_k=1 if greedy else 40,
            top_p=1.0 if greedy else 0.95,
            temperature=1.0 if greedy else temperature,
            repetition_penalty=1.0,
            last_n_tokens=1,
            seed=seed_at(order["seed"], len(tokens)),
        )
        if token in order["eos"]:
            break
        tokens.append(token)
    return {"seconds": time.perf_counter() - began, "tokens": tokens}


def main() -> None:
    loaded: Any = CTransformersEngine().load(Path(sys.argv[1]), LoadPlan(context=4096))
    for line in sys.stdin:
        print(json.dumps(generate(loaded._native, json.loads(line))), flush=True)  # noqa: SLF001 -- the bare loop


if __name__ == "__main__":
    main()
