"""What is known of a model architecture by its name alone.

A name that is not here has no rule: its footprint is unknown, whatever numbers its file gives. The names are those of
`general.architecture` in GGUF files.
"""

ENCODERS = frozenset(
    [
        "bert",
        "nomic-bert",
        "nomic-bert-moe",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "eurobert",
        "t5encoder",
        "wavtokenizer-dec",
        "gemma-embedding",
    ]
)
"""They read a text once: no logits, and newer engines give them no cache."""

FUSED_QKV = frozenset(
    [
        "phi3",
        "phi2",
        "phimoe",
        "gptneox",
        "falcon",
        "bloom",
        "mpt",
        "gpt2",
        "starcoder",
        "qwen",
        "codeshell",
        "dbrx",
        "jais",
    ]
)
"""One matrix makes queries, keys and values, and its whole product is live at once."""

TIED = frozenset(["gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "gemma-embedding"])
"""The output matrix is the embedding, always."""

WINDOW_EVERY = {
    "gemma2": 2,
    "gpt-oss": 2,
    "cohere2": 4,
    "exaone4": 4,
    "olmo2": 4,
    "llama4": 4,
    "smallthinker": 4,
    "afmoe": 4,
    "gemma3n": 5,
    "gemma3": 6,
    "gemma-embedding": 6,
}
"""One layer of so many looks at the whole context, the last of each group; the others look through the window."""

HYBRID_EVERY = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
"""One layer of so many has attention, the last of each group; the others keep a recurrent state."""

RECURRENT = frozenset(["mamba", "mamba2"])
"""No attention at all."""

MLA = frozenset(["deepseek2", "deepseek3", "kimi-k2", "minicpm3", "plm", "glm-dsa"])
"""Keys and values come from one small latent vector, if the file and the engine can do that."""

STANDARD = frozenset(
    [
        "llama",
        "mistral",
        "mistral3",
        "llama4",
        "deci",
        "baichuan",
        "xverse",
        "refact",
        "orion",
        "internlm2",
        "command-r",
        "cohere2",
        "dbrx",
        "qwen",
        "qwen2",
        "qwen2moe",
        "qwen2vl",
        "qwen3",
        "qwen3moe",
        "qwen3vl",
        "qwen3vlmoe",
        "phi2",
        "phi3",
        "phimoe",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3n",
        "gemma4",
        "olmo",
        "olmo2",
        "olmoe",
        "openelm",
        "stablelm",
        "starcoder",
        "starcoder2",
        "codeshell",
        "gptneox",
        "gptj",
        "gpt2",
        "falcon",
        "bloom",
        "mpt",
        "jais",
        "minicpm",
        "arctic",
        "deepseek",
        "chatglm",
        "glm4",
        "glm4moe",
        "bitnet",
        "bitnet-25",
        "bitnet-b1.58",
        "nemotron",
        "exaone",
        "exaone4",
        "granite",
        "granitemoe",
        "smollm3",
        "smallthinker",
        "gpt-oss",
        "grok",
        "ernie4_5",
        "ernie4_5-moe",
        "hunyuan-moe",
        "hunyuan-dense",
        "seed_oss",
        "bailingmoe",
        "bailingmoe2",
        "dots1",
        "afmoe",
        "apertus",
        "arcee",
        "minimax-m2",
        "laguna",
        "plamo",
        "maincoder",
        "mimo2",
        "step35",
        "pangu-embedded",
        "rnd1",
        "dream",
        "llada",
        "llada-moe",
        "cogvlm",
    ]
)
"""Attention in every layer, or per-layer head counts that say where."""

SSM_HYBRIDS = frozenset(["jamba", "granitehybrid", "nemotron_h", "nemotron_h_moe", "falcon-h1", "bamba"])
"""Attention and state-space layers; which is which, only the file's tensors or per-layer head counts say."""


def has_rule(architecture: str) -> bool:
    """Whether the formulas are meant for this architecture."""
    return any(
        architecture in known for known in (STANDARD, ENCODERS, MLA, RECURRENT, SSM_HYBRIDS, frozenset(HYBRID_EVERY))
    )


def every(layers: int, group: int) -> tuple[bool, ...]:
    """True for all layers but the last of each group of so many."""
    return tuple(group == 0 or index % group < group - 1 for index in range(layers))
