"""What is stored of an event can be read again, for good."""

import msgspec
import pytest
from machine_cases import sample

from core import events as ev


@pytest.mark.parametrize("cls", ev.REQUEST_EVENTS, ids=lambda cls: cls.__name__)
def test_stored_and_read_again(cls: type[ev.Event]) -> None:
    event = sample(cls.__name__)
    stored = ev.encode(event)
    assert ev.decode(cls.__name__, ev.SCHEMAS[cls.__name__], stored) == event
    assert ev.encode(ev.decode(cls.__name__, ev.SCHEMAS[cls.__name__], stored)) == stored


def test_a_newer_schema_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="update failsoft"):
        ev.decode("Started", ev.SCHEMAS["Started"] + 1, "{}")
    with pytest.raises(ValueError, match="update failsoft"):
        ev.decode("NeverHeardOf", 1, "{}")


def test_an_event_that_lacks_a_field_is_not_read() -> None:
    with pytest.raises(msgspec.ValidationError):
        ev.decode("Started", 1, '{"lane": "gpu"}')
