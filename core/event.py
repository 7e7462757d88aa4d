"""The root of all events, apart so that each family of them can be a module of its own."""

import msgspec


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """A past-tense fact; the class name is the type stored in the journal."""
