"""Engines by name. Each one's module is imported only when it is asked for, in the process that needs it."""

from core.errors import EngineFault
from runners.engines.base import Engine

ENGINE_NAMES = ("ctransformers", "llamacpp", "null")


def engine_named(name: str) -> Engine:
    """A new engine of that name, with nothing loaded.

    Raises `EngineFault` when there is none of that name, or when the package it needs is not installed.
    """
    match name:
        case "ctransformers":
            from runners.engines.ctransformers import CTransformersEngine

            return CTransformersEngine()
        case "llamacpp":
            from runners.engines.llamacpp import LlamaCppEngine

            return LlamaCppEngine()
        case "null":
            from runners.engines.null import NullEngine

            return NullEngine()
        case _:
            raise EngineFault(f"There is no engine named {name!r}. Choose one of: {', '.join(ENGINE_NAMES)}.")
