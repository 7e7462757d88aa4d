"""Tries a prepared model in a process of its own, since native code may crash on it.

As a program (`python -m store.models.trial FILE`) it loads the file with the embedded engine, computes one token and
says so. `trial_load` runs that program and tells how it ended. Only the child ever imports the engine.
"""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from core.errors import ModelFileError

_SAID = "one token computed"
_CONTEXT = 64
_TAIL = 600


def trial_load(path: Path, timeout: float) -> None:
    """Load `path` and compute one token in a child process, for at most `timeout` seconds.

    Raises `ModelFileError` with the signal or exit code and the end of what the engine printed.
    """
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "store.models.trial", str(path)]
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        try:
            said, _ = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise _failed(path, f"gave no token within {timeout:g} s", errors) from None
        if child.returncode == 0 and _SAID.encode() in said:
            return
        if child.returncode < 0:
            raise _failed(path, f"was killed by {_signal_name(-child.returncode)}", errors)
        raise _failed(path, f"ended with exit code {child.returncode}", errors)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failed(path: Path, how: str, errors: IO[bytes]) -> ModelFileError:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _TAIL))
    tail = errors.read().decode("utf-8", "replace").strip().rstrip(".")
    return ModelFileError(
        f"{path.name}: the embedded engine cannot use this file; a trial of it {how}. "
        f"It last printed: {tail or 'nothing'}. Prepare the file again, or serve it with the llama.cpp engine."
    )


def main() -> None:
    """The child: load, compute one token, say so."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _compute_one(sys.argv[1])
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.write(_SAID + "\n")


def _compute_one(path: str) -> None:
    from ctransformers import LLM
    from ctransformers.llm import Config

    config = Config(context_length=_CONTEXT, threads=1, gpu_layers=0)
    model = LLM(path, model_type="gguf", config=config)
    model.eval([model.bos_token_id], batch_size=1, threads=1)
    token = model.sample(top_k=1, temperature=0.0, seed=1)
    if not 0 <= token < model.vocab_size:
        msg = f"token {token} is not in the vocabulary"
        raise ValueError(msg)


if __name__ == "__main__":
    main()
