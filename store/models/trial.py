"""Tries a model file in a process of its own, since native code may crash on it.

As a program (`python -m store.models.trial ENGINE FILE`) it loads the file with that engine, computes one token and
says so. `trial_load` runs that program and tells how it ended. Only the child ever imports the engine.
"""

import http.client
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from core.errors import ModelFileError

_SAID = "one token computed"
_CONTEXT = 64
_TAIL = 600
_NAMES = {"ctransformers": "embedded", "llamacpp": "llama.cpp"}
_REMEDIES = {
    "ctransformers": "Prepare the file again, or serve it with the llama.cpp engine.",
    "llamacpp": "Choose another file of the model, or another model.",
}


def trial_load(path: Path, timeout: float, engine: str = "ctransformers") -> None:
    """Load `path` and compute one token in a child process, for at most `timeout` seconds.

    Raises `ModelFileError` with the signal or exit code and the end of what the engine printed.
    """
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "store.models.trial", engine, str(path)]
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            # The engine would start a debugger on itself when it aborts.
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        )
        try:
            said, _ = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise _failed(engine, path, f"gave no token within {timeout:g} s", errors) from None
        if child.returncode == 0 and _SAID.encode() in said:
            return
        if child.returncode < 0:
            raise _failed(engine, path, f"was killed by {_signal_name(-child.returncode)}", errors)
        raise _failed(engine, path, f"ended with exit code {child.returncode}", errors)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failed(engine: str, path: Path, how: str, errors: IO[bytes]) -> ModelFileError:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _TAIL))
    tail = errors.read().decode("utf-8", "replace").strip().rstrip(".")
    return ModelFileError(
        f"{path.name}: the {_NAMES[engine]} engine cannot use this file; a trial of it {how}. "
        f"It last printed: {tail or 'nothing'}. {_REMEDIES[engine]}"
    )


def main() -> None:
    """The child: load, compute one token, say so."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _TRIALS[sys.argv[1]](sys.argv[2])
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.write(_SAID + "\n")
    sys.stdout.flush()
    # Native threads need not be waited for.
    os._exit(0)


def _embedded(path: str) -> None:
    from ctransformers import LLM
    from ctransformers.llm import Config

    config = Config(context_length=_CONTEXT, threads=1, gpu_layers=0)
    model = LLM(path, model_type="gguf", config=config)
    model.eval([model.bos_token_id], batch_size=1, threads=1)
    token = model.sample(top_k=1, temperature=0.0, seed=1)
    if not 0 <= token < model.vocab_size:
        msg = f"token {token} is not in the vocabulary"
        raise ValueError(msg)


def _llamacpp(path: str) -> None:
    # Without types of its own.
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.n_gpu_layers = _CONTEXT, 1, 0
    params.n_batch = params.n_ubatch = _CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = params.fit_params = params.ui = False
    params.cache_ram_mib, params.n_threads_http, params.verbosity = 0, 1, 1
    # It ends when the last name for it goes.
    server = xllamacpp.Server(params)
    address = urlsplit(server.listening_address)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    body = json.dumps({"prompt": [0], "n_predict": 1, "return_tokens": True, "temperature": 0, "cache_prompt": False})
    connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    said = json.loads(answer.read())
    if answer.status != http.HTTPStatus.OK or len(said.get("tokens", ())) != 1:
        msg = f"it answered {answer.status}: {str(said)[:200]}"
        raise ValueError(msg)


_TRIALS = {"ctransformers": _embedded, "llamacpp": _llamacpp}


if __name__ == "__main__":
    main()
