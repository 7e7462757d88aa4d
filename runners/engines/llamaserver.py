"""Where a llama-server comes from: inside this process, a command of the operator's, or an address.

1. Every setting that could change an answer, or the time between two pulses, is set here and left to no default.
2. Whatever is served from here listens on the loopback address only, and answers nobody who lacks its key. The key is
   made anew each time and never leaves this process and its child.
3. A server that was not started with this plan is asked what it is, and refused when it is less than the plan says or
   holds another model. Its first slots must be this engine's alone: what others put there is noticed, as a fault.
4. Environment variables that native code reads when it is loaded are set before it is.
"""

import http.client
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from core.errors import EngineFault, ModelFileError
from runners.engines.base import LoadPlan
from runners.engines.llamahttp import Address
from store.models.gguf import GGUF

PACKAGE: Final = "xllamacpp"
INSTALL: Final = "pip install 'failsoft[llamacpp]'"
PROMPT_BATCH: Final = 64
"""Tokens per prompt batch. One thread of a small x86-64 machine, SmolLM2-135M: 32 makes 200 tokens a second with a
pulse every 0.2 s, 64 makes 250 with 0.28 s, 128 makes 245 with 0.56 s. Changing it changes answers, so that records
made before no longer resume identically."""

_LOAD_S: Final = 600.0
_NOBODY_S: Final = 10.0
_LOOK_S: Final = 0.1


class Server:
    """A server that is ready, and what it said about itself."""

    def __init__(self, at: Address, *, build: str, pictures: bool, ours: "Ours") -> None:
        self.at = at
        self.build = build
        self.pictures = pictures
        """It also takes pictures or sound; its slots cannot be saved then."""
        self.context = 0
        """Tokens one sequence may hold."""
        self.vocabulary = 0
        self.close = ours.close
        self.check = ours.check


class Ours(msgspec.Struct, frozen=True):
    """What we can do about a server, by where it comes from."""

    close: Callable[[], object]
    """Ends it, if it is ours."""
    check: Callable[[], None]
    """Raises `EngineFault` when it has ended by itself, as far as that can be seen."""


class _Settings(msgspec.Struct, frozen=True):
    n_ctx: int


class _Props(msgspec.Struct, frozen=True):
    default_generation_settings: _Settings
    total_slots: int
    build_info: str = "unknown"
    modalities: dict[str, Any] = {}


class _Meta(msgspec.Struct, frozen=True):
    n_vocab: int
    n_ctx_train: int = 0
    n_embd: int = 0
    n_params: int = 0


class _Model(msgspec.Struct, frozen=True):
    meta: _Meta | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]


def serve(model: Path, header: GGUF | None, plan: LoadPlan) -> Server:
    """A server for this model and plan, ready. Raises `EngineFault` with the remedy when there is none to be had."""
    if not plan.server:
        at, ours = _inside(model, plan)
    elif plan.server.startswith(("http://", "https://")):
        at, ours = Address(plan.server), Ours(_nothing, _nothing)
    else:
        at, ours = _command(model, plan)
    try:
        _await(at)
        return _known(at, ours, header, plan)
    except ModelFileError as cause:
        ours.close()
        raise EngineFault(str(cause)) from cause
    except BaseException:
        ours.close()
        raise


def _inside(model: Path, plan: LoadPlan) -> tuple[Address, Ours]:
    # When native code gives up, it would attach a debugger to this process, which can take a minute.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        import xllamacpp
    except ImportError as cause:
        raise EngineFault(f"The engine llamacpp needs the package {PACKAGE}. Install it with: {INSTALL}") from cause
    key = secrets.token_urlsafe(32)
    try:
        held = [xllamacpp.Server(_parameters(xllamacpp, model, plan, key))]
    except (RuntimeError, ValueError) as cause:
        raise EngineFault(
            f"llama.cpp does not load {model} ({str(cause).rstrip('.')}). Its own message is in this process's log;"
            " check that the file is whole, and that the device has the memory."
        ) from cause
    return Address(held[0].listening_address, key), Ours(held.clear, _nothing)


def _parameters(native: Any, model: Path, plan: LoadPlan, key: str) -> Any:
    settings = native.CommonParams()
    settings.model.path = str(model)
    settings.n_ctx = plan.cells or plan.context * plan.slots
    settings.n_parallel = plan.slots
    settings.kv_unified = True
    settings.flash_attn_type = native.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    settings.n_batch = settings.n_ubatch = PROMPT_BATCH
    # Threads spin while they wait for each other. On two cores, SmolLM2-135M: two threads alone make 184 tokens a
    # second, 10 beside any other busy process, and 4 + 4 beside each other. With GOMP_SPINCOUNT=0 it is 70 to
    # 100, 20 to 100 and 100 + 100; one thread makes 120 either way. So the planner must not give out more threads than
    # there are idle cores; whoever runs other work on them sets that variable.
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = max(plan.threads, 1)
    settings.n_gpu_layers = plan.gpu_layers
    settings.cont_batching = True
    # Nothing is fitted, shifted, kept aside or guessed: the caller plans memory and slots.
    settings.fit_params = False
    settings.warmup = False
    settings.ctx_shift = False
    settings.cache_ram_mib = 0
    settings.n_ctx_checkpoints = 0
    settings.cache_idle_slots = False
    settings.slot_prompt_similarity = 0.0
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0
    settings.api_keys = [key]
    settings.ui = False
    settings.endpoint_slots = True
    # A thread for each sequence, one to ask how it goes, one to tell about slots.
    settings.n_threads_http = 2 * plan.slots + 2
    settings.sse_ping_interval = -1
    settings.verbosity = 1
    # Without a directory the server would not even empty a slot; one that cannot be is enough for that.
    settings.slot_save_path = f"{plan.snapshots or os.devnull}{os.sep}"
    return settings


def _command(model: Path, plan: LoadPlan) -> tuple[Address, Ours]:
    from runners.managed import Managed

    key = secrets.token_urlsafe(32)
    managed = Managed.start(
        plan.server,
        start_s=_LOAD_S,
        values={"MODEL": str(model), "SLOTS": str(plan.snapshots or tempfile.gettempdir())},
        environment={"LLAMA_API_KEY": key, "GGML_NO_BACKTRACE": "1"},
        health=("/health",),
    )

    def check() -> None:
        if (how := managed.ended()) is not None:
            raise EngineFault(f"The command {managed.name} {how}. Look at what it said in this process's log.")

    return Address(managed.url, key), Ours(managed.close, check)


def _await(at: Address) -> None:
    """Wait until the model is loaded. A server that refuses connections is given a few seconds, one that loads more."""
    began = heard = time.monotonic()
    while True:
        now = time.monotonic()
        try:
            status = at.status("/health")
            heard = now
        except (OSError, http.client.HTTPException) as cause:
            if now - heard > _NOBODY_S:
                raise EngineFault(
                    f"Nothing answers at {at.shown} ({cause}). Start the server there, or correct the address."
                ) from cause
        else:
            if status == 200:
                return
            if status != 503 or now - began > _LOAD_S:
                raise EngineFault(
                    f"The server at {at.shown} is not ready (it answers {status} to /health). Look at its log; it must"
                    " be a llama-server."
                )
        time.sleep(_LOOK_S)


def _known(at: Address, ours: Ours, header: GGUF | None, plan: LoadPlan) -> Server:
    props = at.ask("GET", "/props", kind=_Props)
    meta = next((model.meta for model in at.ask("GET", "/v1/models", kind=_Models).data), None)
    server = Server(at, build=props.build_info, pictures=any(props.modalities.values()), ours=ours)
    server.context = props.default_generation_settings.n_ctx
    if plan.server and props.total_slots < plan.slots:
        raise EngineFault(
            f"The server at {at.shown} has {props.total_slots} slot(s) and {plan.slots} are planned. Start it with"
            f" --parallel {plan.slots}, or plan fewer."
        )
    needed = plan.context if not plan.cells else min(plan.context, plan.cells)
    if server.context < needed:
        raise EngineFault(
            f"The server at {at.shown} has a context of {server.context} tokens and {needed} are planned. Start it with"
            f" --ctx-size {needed * plan.slots}, or plan a smaller context."
        )
    if plan.server and header is not None and meta is not None:
        _compare(at, header, meta)
    if meta is not None:
        server.vocabulary = meta.n_vocab
    elif header is not None:
        server.vocabulary = len(header.texts("tokenizer.ggml.tokens"))
    else:
        raise EngineFault(f"The server at {at.shown} does not say what model it holds. It must be a llama-server.")
    return server


def _compare(at: Address, header: GGUF, meta: _Meta) -> None:
    architecture = header.value("general.architecture", str, default="")
    for name, ours, theirs in (
        ("words in its vocabulary", len(header.value("tokenizer.ggml.tokens", tuple, default=())), meta.n_vocab),
        ("weights", sum(tensor.elements for tensor in header.tensors), meta.n_params),
        ("numbers for each token", header.value(f"{architecture}.embedding_length", int, default=0), meta.n_embd),
    ):
        if ours and theirs and ours != theirs:
            raise EngineFault(
                f"The server at {at.shown} holds another model: it has {theirs} {name}, {header.path.name} has {ours}."
                " Start it with that file."
            )


def _nothing() -> None:
    """A server that others started is theirs to stop."""
