"""What the built-in model must answer: its rule, written down a second time."""

import struct
from hashlib import blake2b

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" + " " * 12


def answer_to(prompt: str, units: int) -> str:
    """The answer to raw text that gives no script."""
    tokens = tuple(prompt.encode())
    seed = blake2b(struct.pack(f"<{len(tokens)}I", *tokens), digest_size=32).digest()
    blocks = (blake2b(seed + block.to_bytes(8, "little")).digest() for block in range(units // 64 + 1))
    return "".join(LETTERS[byte % 64] for byte in b"".join(blocks))[:units]
