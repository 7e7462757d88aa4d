"""Runs `runners.prober` for one path and tells how it ended: its result, or an error with a name and a remedy."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import msgspec

from core.errors import EngineFault
from runners.prober import FAULT, Job, Measured

_SILENT_S: Final = 600.0
"""Longest time without one more prompt done, loading included."""
_TAIL: Final = 600


def measured(job: Job, name: str, tell: Callable[[int], None], silent_s: float = _SILENT_S) -> Measured:
    """Measure a path called `name`; `tell` is given the number of steps done, two for each prompt.

    Raises `EngineFault` when the path fails, whatever way: by an error, a signal, or silence.
    """
    with tempfile.TemporaryDirectory(prefix="failsoft-") as folder, tempfile.TemporaryFile() as errors:
        result = Path(folder) / "measured.json"
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "runners.prober", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
            cwd=Path(__file__).parent.parent,
        )
        try:
            silent = _follow(child, msgspec.structs.replace(job, result=str(result)), tell, silent_s)
        finally:
            child.kill()
            child.wait()
        if silent:
            raise EngineFault(f"the path {name} did nothing for {silent_s:.0f} s and was ended; {_printed(errors)}")
        if child.returncode == 0:
            return msgspec.json.decode(result.read_bytes(), type=Measured)
        raise EngineFault(f"the path {name} {_ending(child.returncode, errors)}")


def _follow(child: "subprocess.Popen[bytes]", job: Job, tell: Callable[[int], None], silent_s: float) -> bool:
    """Hand the job over and read to the end; True when it was silent for too long and had to be killed."""
    assert child.stdin is not None
    assert child.stdout is not None
    silent = threading.Event()

    def give_up() -> None:
        silent.set()
        child.kill()

    timer = threading.Timer(silent_s, give_up)
    timer.start()
    try:
        with child.stdin, child.stdout:
            try:
                child.stdin.write(msgspec.json.encode(job))
                child.stdin.close()
            except BrokenPipeError:
                pass  # it ended before it read its job; how, is told by its exit status
            for line in child.stdout:
                timer.cancel()
                timer = threading.Timer(silent_s, give_up)
                timer.start()
                if line.strip().isdigit():
                    tell(int(line))
        child.wait()
    finally:
        timer.cancel()
    return silent.is_set()


def _ending(status: int, errors: IO[bytes]) -> str:
    if status == FAULT:
        last = _tail(errors).splitlines()[-1:] or ["it gave no reason"]
        return f"failed: {last[0]}"
    how = f"was killed by {_signal(-status)}" if status < 0 else f"ended with exit code {status}"
    return f"{how}; {_printed(errors)}. Try the model by itself: failsoft models prepare; or name another engine"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _printed(errors: IO[bytes]) -> str:
    return f"it last printed: {_tail(errors) or 'nothing'}"


def _tail(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _TAIL))
    return errors.read().decode("utf-8", "replace").strip()
