"""Which engine a model file is made ready for."""

from typing import Literal

from core.errors import ModelFileError
from store.models import llamacpp
from store.models.gguf import GGUF
from store.models.suitability import require_suitable, suitability

Engine = Literal["llamacpp", "ctransformers"]
EngineChoice = Literal["auto", "llamacpp", "ctransformers"]
ENGINES: tuple[Engine, ...] = ("llamacpp", "ctransformers")
"""Those that read model files, the one that is chosen first where both can."""
CHOICES: tuple[EngineChoice, ...] = ("auto", *ENGINES)


def why_not(header: GGUF) -> dict[Engine, list[str]]:
    """For each engine the reasons why it cannot serve the file here; none when it can."""
    missing = [] if llamacpp.installed() else [f"it is not installed; run: {llamacpp.INSTALL}"]
    return {"llamacpp": missing or llamacpp.problems(header), "ctransformers": suitability(header)}


def chosen(engine: EngineChoice, header: GGUF, before: str = "") -> Engine:
    """The engine for a file; `auto` keeps the one it had `before`, else takes the first that can serve it.

    Raises `ModelFileError` when the file suits none that may be chosen.
    """
    if engine == "auto":
        engine = next((name for name in ENGINES if name == before), "auto")
    if engine == "llamacpp":
        llamacpp.require_installed()
        llamacpp.require(header)
    if engine == "ctransformers":
        require_suitable(header)
    if engine != "auto":
        return engine
    reasons = why_not(header)
    found = next((name for name in ENGINES if not reasons[name]), None)
    if found is None:
        msg = f"{header.path.name} cannot be served here. {told(reasons)} Choose another file of the model."
        raise ModelFileError(msg)
    return found


def told(reasons: dict[Engine, list[str]]) -> str:
    """Every engine's reasons, as sentences."""
    names = {"llamacpp": "The llama.cpp engine", "ctransformers": "The embedded engine"}
    return " ".join(f"{names[name]}: {'; '.join(found)}." for name, found in reasons.items() if found)
