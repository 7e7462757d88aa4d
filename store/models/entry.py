"""One model of the catalog: what is kept of its file."""

import hashlib
from collections import Counter
from pathlib import Path

import msgspec

from store.models.gguf import GGUF
from store.models.llamacpp import most
from store.models.null_model import NULL_CONTEXT, NULL_ID, NullTokenizer
from store.models.tokenizer import Tokenizer
from store.models.weights import EMBEDDINGS, OUTPUT, file_digest


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model. Paths are absolute; all are empty for the built-in model and for an unreadable entry."""

    id: str
    engine: str
    workload: str = "generate"
    name: str = ""
    """The name the file gives itself."""
    source: str = ""
    """The file it was made of; may be gone, unless it is what the engine loads."""
    prepared: str = ""
    """What the engine loads: a copy made for it, or the source itself."""
    prepared_bytes: int = 0
    prepared_changed_ns: int = 0
    """When the source was last written, where the engine loads it; 0 for a copy."""
    prompt: str = ""
    """What admission reads: the source's metadata without weights."""
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
    """Of the layer with most, where layers differ; the same for the next."""
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


def make_entry(model_id: str, engine: str, header: GGUF, *, prepared: Path, prompt: Path, weights: str) -> ModelEntry:
    """The entry of a file whose header was found suitable; `weights` is the digest of its tensor data."""
    tokenizer = Tokenizer.from_gguf(header)
    template = header.value("tokenizer.chat_template", str)
    template_digest = "" if template is None else _digest(template)
    quantization = _quantization(header)
    architecture = header.value("general.architecture", str, default="")
    heads = most(header, f"{architecture}.attention.head_count")
    source = header.path.absolute()
    stat = prepared.stat()
    return ModelEntry(
        id=model_id,
        engine=engine,
        name=_clean(header.value("general.name", str, default="")),
        source=str(source),
        prepared=str(prepared),
        prepared_bytes=stat.st_size,
        prepared_changed_ns=stat.st_mtime_ns if prepared == source else 0,
        prompt=str(prompt),
        prompt_digest=file_digest(prompt),
        weights_digest=weights,
        tokenizer_digest=tokenizer.digest,
        template_digest=template_digest,
        contract=_digest(f"{tokenizer.digest}\n{weights}\n{template_digest}\n{quantization}"),
        quantization=quantization,
        architecture=architecture,
        vocabulary=tokenizer.vocab_size,
        parameters=sum(tensor.elements for tensor in header.tensors),
        context_length=most(header, f"{architecture}.context_length"),
        layers=most(header, f"{architecture}.block_count"),
        width=most(header, f"{architecture}.embedding_length"),
        heads=heads,
        kv_heads=most(header, f"{architecture}.attention.head_count_kv", heads),
        has_template=template is not None,
    )


def _quantization(header: GGUF) -> str:
    """The tensor type most weights of the layers have."""
    weights: Counter[str] = Counter()
    for tensor in header.tensors:
        if tensor.name not in {EMBEDDINGS, OUTPUT}:
            weights[tensor.type.name] += tensor.elements
    return weights.most_common(1)[0][0] if weights else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _clean(text: str) -> str:
    """Text fit to be shown: what is not UTF-8 or not printable is replaced."""
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in shown)[:200]
