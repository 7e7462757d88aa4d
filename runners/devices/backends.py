"""Whether an engine can compute on a card: `python -m runners.devices.backends ENGINE`, with the card shown to it.

1. A process of its own: the engine's native code is loaded, and asks CUDA, which may hang, end the process, or take
   memory on the card until it ends.
2. It answers JSON: `usable`, and if not, `why` and `remedy`.
3. That an engine can is not that it does: after a model is loaded, the card is looked at (`runners.onboard`).
"""

import importlib
import os
import sys
from typing import Any, Final

import msgspec

_LLAMACPP: Final = (
    "Install a CUDA build of the package xllamacpp in place of the one that is there (it is published for CUDA beside "
    "the one for CPUs), or name a llama-server with CUDA in llama_server"
)
_CTRANSFORMERS: Final = "Install the package ctransformers with its extra: pip install 'ctransformers[cuda]==0.2.27'"


class Ability(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether an engine can compute on the cards that its process sees."""

    usable: bool
    why: str = ""
    remedy: str = ""


def ability(engine: str) -> Ability:
    """Ask the engine's native code, in this process."""
    match engine:
        case "null":
            return Ability(True)
        case "llamacpp":
            return _llamacpp()
        case "ctransformers":
            return _ctransformers()
        case _:
            return Ability(False, f"the engine {engine} computes on the CPU only", "Serve another model there")


def cuda_devices(devices: list[dict[str, Any]]) -> list[str]:
    """Names of the CUDA devices in what llama.cpp lists; those of other kinds are not chosen by a UUID."""
    return [str(device["name"]) for device in devices if str(device["name"]).upper().startswith("CUDA")]


def _llamacpp() -> Ability:
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        native = importlib.import_module("xllamacpp")
    except ImportError as error:
        return Ability(False, f"the package xllamacpp cannot be used: {error}", _LLAMACPP)
    devices = native.get_device_info()
    if cuda_devices(devices):
        return Ability(True)
    names = ", ".join(str(device["name"]) for device in devices) or "nothing"
    return Ability(False, f"the package xllamacpp computes on {names}, and sees no CUDA device", _LLAMACPP)


def _ctransformers() -> Ability:
    try:
        llm = importlib.import_module("ctransformers.llm")
        llm.load_library(None, gpu=True)
    except (ImportError, OSError) as error:
        return Ability(False, f"the CUDA library of ctransformers cannot be loaded: {error}", _CTRANSFORMERS)
    return Ability(True)


def main() -> int:
    """Print what the engine answers."""
    found = ability(sys.argv[1])
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
