"""The points where tests strike do what they say, at the passage they name."""

import pytest

from store import faultpoints


def test_the_named_passage_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faultpoints, "_plan", faultpoints._parse("a=fail@3,b=fail"))
    faultpoints.hit("a")
    faultpoints.hit("a")
    faultpoints.hit("c")
    with pytest.raises(OSError, match="fault point a"):
        faultpoints.hit("a")
    faultpoints.hit("a")
    with pytest.raises(OSError, match="fault point b"):
        faultpoints.hit("b")


@pytest.mark.parametrize("text", ["a", "a=", "a=explode", "a=kil@2"])
def test_an_order_that_means_nothing_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="orders nothing"):
        faultpoints._parse(text)
