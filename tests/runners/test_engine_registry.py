import subprocess
import sys

import pytest

from core.errors import EngineFault
from runners.engines.registry import ENGINE_NAMES, engine_named


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_every_name_gives_the_engine_that_calls_itself_so(name: str) -> None:
    engine = engine_named(name)
    assert engine.name == name
    assert engine.version
    assert engine.capabilities.workloads == ("generate",)
    assert engine.capabilities.resume == "token"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(EngineFault, match=r"'vllm'.*ctransformers, null"):
        engine_named("vllm")


def test_asking_for_the_null_engine_brings_no_native_code_into_the_process() -> None:
    script = (
        "import sys; from runners.engines.registry import engine_named; engine_named('null');"
        "print(any(name.split('.')[0] == 'ctransformers' for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
