"""Whether a text is the beginning of a JSON value: what an answer held to a schema must be at any moment."""

import json
from typing import Final

_ENDINGS: Final = (
    *("", '"', "0", "null", ":null", '":null', '"":null', ',"":null', ",0", ".0", "e0"),
    *("ue", "rue", "e", "lse", "alse", "se", "ll", "ull", "l"),
    *('n"', '0"', '00"', '000"', '0000"', 'n":null', '0":null', '00":null', '000":null', '0000":null'),
)
"""What may complete the innermost thing that is open: a string, a number, a word, an escape, a key."""


def begins_json(text: str) -> bool:
    """True for any prefix of any JSON value; an empty text is one."""
    text = text.lstrip()
    if not text:
        return True
    closing = _closing(text)
    return any(is_json(text + ending + closing) for ending in _ENDINGS)


def _closing(text: str) -> str:
    """The brackets that are open at the end, closed in order."""
    open_now: list[str] = []
    inside = escaped = False
    for char in text:
        if inside:
            inside = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            inside = True
        elif char in "{[":
            open_now.append("}" if char == "{" else "]")
        elif char in "}]" and open_now:
            open_now.pop()
    return "".join(reversed(open_now))


def is_json(text: str) -> bool:
    """Whether it is a whole JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
