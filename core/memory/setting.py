"""How an engine is asked to load a model: everything else that decides its memory."""

from enum import StrEnum

import msgspec

from core.errors import Malformed


class Era(StrEnum):
    """Engine generations that reserve memory by different laws."""

    GGML_2023 = "ggml-2023"
    """llama.cpp before GGUF: scratch buffers from fixed tables."""
    CTRANSFORMERS_2023 = "ctransformers-2023"
    """The embedded engine: llama.cpp of 28 August 2023."""
    LLAMACPP_2023_SEP = "llamacpp-2023-sep"
    """August and September 2023: one scratch buffer by formula."""
    LLAMACPP_2023 = "llamacpp-2023"
    """October to December 2023: the same, with a mask tensor."""
    LLAMACPP_2024 = "llamacpp-2024"
    """Graph allocator; logits reserved for every row of a batch."""
    LLAMACPP_2025 = "llamacpp-2025"
    """The same, with a separate cache for sliding layers and a gated product of its own (until about May 2026)."""
    LLAMACPP_2026 = "llamacpp-2026"
    """Since about June 2026: logits for one row per sequence, f16 masks, copies of a quantised cache in the graph."""
    IK_LLAMA = "ik-llama"
    """The fork: no trimming of sliding layers, no pipeline copies."""


SCRATCH_ERAS = frozenset({Era.GGML_2023, Era.CTRANSFORMERS_2023, Era.LLAMACPP_2023_SEP, Era.LLAMACPP_2023})
"""Scratch buffers; the cache is moved to the device as a whole, counted as two more layers."""

LAWFUL_BACKENDS = frozenset(["cpu", "cuda", "rocm", "metal", "vulkan", "sycl", "opencl"])
"""Where the compute laws were seen to hold; of others the compute buffer is unknown."""

CACHE_BLOCK = {
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
    "iq4_nl": 18,
}
"""Bytes of 32 cached values, by cache type."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One way to load a model. Raises `core.errors.Malformed` for numbers that no engine takes."""

    context: int
    """Cells asked for, of all slots together."""
    era: Era = Era.LLAMACPP_2025
    """The costliest of the current ones, for when the build is not known."""
    n_batch: int = 2048
    n_ubatch: int = 512
    cache_k: str = "f16"
    cache_v: str = "f16"
    slots: int = 1
    """Sequences at once."""
    unified: bool = False
    """All slots share one pool of cells; else each has its own part. Older engines always share."""
    flash_attention: bool = False
    n_gpu_layers: int = 0
    """Counted as the era counts: repeating layers from the end, then the output; up to 2023 then V, then K."""
    gpus: int = 1
    """Devices used; 0 when the engine sees none."""
    backend: str = "cuda"
    rows_split: bool = False
    """Each matrix is spread over all devices, instead of each layer on one."""
    copies: int | None = None
    """Input copies of pipeline parallelism; None: as the engine decides."""
    experts_on_host: bool = False
    """All experts' tensors stay on the host, though their layers are offloaded."""
    output_on_host: bool = False
    """The output matrix stays on the host, though the count says otherwise."""
    streams: bool = True
    """Host weights are copied to the device for batches of 32 and more (since 18 March 2024)."""
    swa_full: bool = False
    """Sliding layers get as many cells as the others."""
    mla: str | None = None
    """Cache of MLA models: `full`, `latent`, `latent+v` (a second tensor of latent vectors); None: as file and era."""
    drafts: int = 0
    """Depth of speculation with the model's own extra layers."""
    mmap: bool = True
    repack: bool = False
    """The host keeps a second copy of its weights in an order its instructions like."""
    process_context: int | None = None
    """Bytes that the driver takes per process and device; None: not measured."""

    def __post_init__(self) -> None:
        """Refuse what no engine takes."""
        least = {"context": 1, "n_batch": 1, "n_ubatch": 1, "slots": 1}
        for name in ("context", "n_batch", "n_ubatch", "slots", "n_gpu_layers", "gpus", "drafts"):
            value = getattr(self, name)
            if value < least.get(name, 0):
                msg = f"{name} is {value}; it must be at least {least.get(name, 0)}"
                raise Malformed(msg)

    @property
    def scratch(self) -> bool:
        """Whether the engine is of the time of scratch buffers."""
        return self.era in SCRATCH_ERAS

    @property
    def rows(self) -> int:
        """Tokens computed at once (U); the embedded engine's batch is fixed."""
        if self.era is Era.CTRANSFORMERS_2023:
            return min(512, self.context)
        return min(self.n_ubatch, self.n_batch, self.context)

    def offloaded(self, layers: int) -> int:
        """Repeating layers on the device."""
        return min(self.n_gpu_layers, layers) if self.gpus else 0

    def output_offloaded(self, layers: int) -> bool:
        """Whether the output matrix is on the device."""
        return self.gpus > 0 and self.n_gpu_layers > layers and not self.output_on_host

    def pipeline(self, layers: int) -> int:
        """How many copies of its inputs each device holds."""
        if self.copies is not None:
            return self.copies
        spread = self.gpus > 1 and not self.rows_split and not self.experts_on_host
        lawful = self.era in {Era.LLAMACPP_2024, Era.LLAMACPP_2025, Era.LLAMACPP_2026}
        return 4 if spread and lawful and self.output_offloaded(layers) else 1
