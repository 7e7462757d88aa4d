"""What a model file needs by context length, as the engine that serves it is asked to load it. Formula alone."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from core.memory import Era, ModelShape, Setting, shape_of

CONTEXTS: Final = (2_048, 4_096, 8_192, 16_384, 32_768)
_ERA_OF: Final[Mapping[str | None, Era]] = {
    "llamacpp": Era.LLAMACPP_2026,
    "ctransformers": Era.CTRANSFORMERS_2023,
    None: Era.LLAMACPP_2026,
}
"""By engine; a file that none serves here is asked about as for the current one."""


def setting_of(engine: str | None, era: Era | None = None, **given: Any) -> Setting:
    """As that engine's runners ask it; with an era nothing is assumed. Raises `Malformed` for impossible numbers."""
    setting = Setting(context=CONTEXTS[0], era=era or _ERA_OF[engine], **given)
    if engine == "llamacpp" and era is None:
        return msgspec.structs.replace(setting, n_batch=64, n_ubatch=64, unified=True, flash_attention=True)
    return setting


def shape_of_file(file: Path) -> ModelShape:
    """The numbers of a GGUF file that decide its memory; kept while the file is the same. Blocks.

    Raises `ModelFileError`, `OSError`.
    """
    stat = file.stat()
    return _shape(file, stat.st_size, stat.st_mtime_ns)


def engines_of_file(file: Path) -> tuple[str, ...]:
    """The engines that can serve a GGUF file here, the preferred one first; kept while the file is the same. Blocks.

    Raises `ModelFileError`, `OSError`.
    """
    stat = file.stat()
    return _engines(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=16)
def _engines(file: Path, _size: int, _changed_ns: int) -> tuple[str, ...]:
    from store.models.choice import why_not
    from store.models.gguf import read_header

    return tuple(name for name, reasons in why_not(read_header(file)).items() if not reasons)


@lru_cache(maxsize=16)
def _shape(file: Path, _size: int, _changed_ns: int) -> ModelShape:
    from store.models.gguf import read_header

    header = read_header(file)
    return shape_of(header.metadata, [(tensor.name, tensor.nbytes) for tensor in header.tensors])
