"""The reference for generation with llama.cpp: its own server in a process of its own, one call for each answer.

    {"prompt": [...], "units": N, "temperature": T, "seed": S}   ->   {"seconds": X, "tokens": [...]}

The same thread count and prompt batches as the service uses; nothing is recorded, saved or handed to anybody, and what
is sampled is drawn with one seed for the whole answer.
"""

import http.client
import json
import os
import sys
import time
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("GGML_NO_BACKTRACE", "1")

from runners.engines.llamaserver import PROMPT_BATCH


def start(model: str) -> Any:
    """A server with one slot and one thread."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel = 4096, 1
    params.n_batch = params.n_ubatch = PROMPT_BATCH
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = params.fit_params = params.ui = False
    params.cache_ram_mib, params.n_ctx_checkpoints, params.cache_idle_slots = 0, 0, False
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.verbosity = 1
    return xllamacpp.Server(params)


def generate(address: str, order: dict[str, Any]) -> dict[str, Any]:
    """One answer, as fast as the server can."""
    where = urlsplit(address)
    body = {
        "prompt": order["prompt"],
        "n_predict": order["units"],
        "temperature": order["temperature"],
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.0,
        "seed": order["seed"],
        "samplers": ["top_k", "top_p", "temperature"],
        "cache_prompt": False,
        "return_tokens": True,
        "response_fields": ["tokens"],
    }
    began = time.perf_counter()
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    tokens = json.loads(connection.getresponse().read())["tokens"]
    seconds = time.perf_counter() - began
    connection.close()
    if tokens and tokens[-1] in order["eos"]:
        tokens.pop()
    return {"seconds": seconds, "tokens": tokens}


def main() -> None:
    """Orders from the standard input, answers to the standard output."""
    server = start(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(generate(server.listening_address, json.loads(line))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
