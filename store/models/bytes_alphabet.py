"""The alphabet in which byte-level BPE vocabularies spell raw bytes.

Every byte stands for one printable character: printable Latin-1 bytes for themselves, the other 68 for the
characters from U+0100 on, in order. A space is thus `Ġ` and a line feed `Ċ`.
"""


def _letters() -> tuple[str, ...]:
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters = []
    spare = 0x100
    for byte in range(256):
        if byte in plain:
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return tuple(letters)


LETTERS = _letters()
"""The character of each byte."""

BYTES = {letter: byte for byte, letter in enumerate(LETTERS)}
"""The byte of each character."""


def to_bytes(token: str) -> bytes | None:
    """The raw bytes a vocabulary entry stands for, or None when it is not written in this alphabet."""
    try:
        return bytes([BYTES[letter] for letter in token])
    except KeyError:
        return None
