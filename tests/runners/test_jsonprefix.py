"""Every beginning of JSON is one, and what is none is not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.engines.jsonprefix import begins_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.booleans(), st.data())
def test_every_beginning_of_a_value(value: Any, escaped: bool, data: Any) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    assert begins_json(text[: data.draw(st.integers(0, len(text)))])


@pytest.mark.parametrize(
    "text",
    [" 5, 6, 7", '"a"\n\nb', "{story}", "{story", "[1,,", '{"a" 1', "nope", "tru e", '"line\nbreak', "[1]]", "}", "01"],
)
def test_what_is_no_beginning(text: str) -> None:
    assert not begins_json(text)
