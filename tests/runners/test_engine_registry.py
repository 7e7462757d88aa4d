import subprocess
import sys
from importlib import metadata

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


def test_an_engine_whose_servers_may_be_elsewhere_needs_no_package_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert engine_named("llamacpp").version == "elsewhere"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(EngineFault, match="'unheard-of'") as raised:
        engine_named("unheard-of")
    assert raised.value.detail.endswith(f"Choose one of: {', '.join(ENGINE_NAMES)}.")
    assert {"ctransformers", "llamacpp", "null"} <= set(ENGINE_NAMES)


@pytest.mark.parametrize("name", ["null", "llamacpp"])
def test_asking_for_an_engine_that_can_do_without_brings_no_native_code_into_the_process(name: str) -> None:
    script = (
        f"import sys; from runners.engines.registry import engine_named; engine_named({name!r});"
        "print(any(name.split('.')[0] in {'ctransformers', 'xllamacpp', 'numpy'} for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
