"""The numbers of a model file that decide its memory."""

import msgspec

from core.memory.architectures import ENCODERS, has_rule


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """One model, by its numbers. None means unknown, and makes unknown whatever depends on it.

    Tuples have one item per layer. Bytes are as stored in the file.
    """

    architecture: str | None = None
    layers: int | None = None
    width: int | None = None
    """Length of a hidden vector (E)."""
    heads: tuple[int, ...] | None = None
    """Query heads; 0 in layers without attention."""
    kv_heads: tuple[int, ...] | None = None
    """0 in layers without a cache of their own."""
    key_dims: tuple[int, ...] | None = None
    """Length of one head's key."""
    value_dims: tuple[int, ...] | None = None
    feed_forward: tuple[int, ...] | None = None
    """Inner width of the dense feed-forward block (F); 0 in layers without one."""
    vocabulary: int | None = None
    context_train: int | None = None
    window: int | None = None
    """Positions that a sliding layer looks back; None when there are no sliding layers."""
    sliding: tuple[bool, ...] = ()
    """Which layers slide; empty when none does."""
    kv_lora_rank: int | None = None
    """Length of the latent vector of multi-head latent attention (MLA); None for models without it."""
    rope_dims: int | None = None
    """With MLA: values per cell beside the latent vector."""
    latent_file: bool = False
    """With MLA: the file has the matrices split so that the latent vector itself can be cached."""
    conv_width: int | None = None
    """Recurrent layers: length of the convolution (d_conv)."""
    inner_width: int | None = None
    """Recurrent layers: d_inner."""
    state_width: int | None = None
    """Recurrent layers: d_state."""
    state_groups: int = 0
    """Recurrent layers: n_group."""
    recurrent: tuple[bool, ...] = ()
    """Which layers keep a recurrent state; empty when none does."""
    experts: int = 0
    experts_used: int = 0
    expert_feed_forward: int | None = None
    """Inner width of one expert; with shared experts, see `shared_feed_forward`."""
    shared_feed_forward: int = 0
    dense_layers: int = 0
    """Of a model with experts: leading layers without."""
    fused_qkv: bool = False
    causal: bool = True
    """False for encoders."""
    tied: bool = False
    """No output matrix of its own: the embedding serves again."""
    weights_bytes: int | None = None
    """All tensors, each once."""
    embedding_bytes: int | None = None
    """What the input layer holds: token embedding, and position and type embeddings where there are such."""
    output_bytes: int | None = None
    """The output matrix; the embedding's size when tied."""
    layer_bytes: tuple[int, ...] | None = None
    """All tensors of each layer."""
    expert_bytes: tuple[int, ...] | None = None
    """Of those, the experts' tensors."""
    largest_tensor: int | None = None
    """The largest single tensor of any layer, experts aside."""
    largest_expert: int | None = None
    """The largest tensor that holds experts (all experts of a layer lie in one)."""

    @property
    def ruled(self) -> bool:
        """Whether the architecture is one that the formulas are meant for."""
        return self.architecture is not None and has_rule(self.architecture)

    @property
    def encoder(self) -> bool:
        """No logits, no generation."""
        return not self.causal or self.architecture in ENCODERS
