"""Random seeds that hang on positions, so that no random state has to be carried from one process to another."""

from hashlib import blake2b


def seed_at(request_seed: int, position: int) -> int:
    """Seed for drawing unit `position` (from 0) of an answer whose request asked for `request_seed`.

    Any integers are allowed. The result has 31 bits: native samplers take a signed 32-bit seed and read a
    negative one as "use the clock". It is the first four bytes of BLAKE2b-32 over the text "seed:position",
    big-endian, without the top bit; stored requests depend on it, so it never changes.
    """
    digest = blake2b(f"{request_seed}:{position}".encode("ascii"), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFF_FFFF
