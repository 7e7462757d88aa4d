"""The prompts that two paths are asked to find out how alike they answer.

They are short, and their answers are wanted long: what is compared is the answer. Several kinds of text, since paths
differ where the likeliest tokens are nearly tied, and where that happens depends on the kind: prose has many near ties,
numbers and code have few. Another list gives other figures; a proof names only how many were asked.
"""

from typing import Final

import msgspec

from store.models.catalog import ModelEntry, load_prompt_side
from store.models.template import Message


class ProbePrompt(msgspec.Struct, frozen=True):
    """A conversation of one message, or raw text to go on with."""

    name: str
    text: str
    chat: bool = True


class AskedPrompt(msgspec.Struct, frozen=True):
    """A prompt as one model reads it."""

    name: str
    ids: tuple[int, ...]
    messages: tuple[tuple[str, str], ...] = ()
    """(role, content), for a path that takes no ids; empty for raw text."""
    prompt: str | None = None
    """Raw text, for the same."""


PROBES: Final = (
    ProbePrompt("advice", "I slept badly and have a long meeting at nine. How do I get through the morning?"),
    ProbePrompt("explain", "Explain to a child why the moon seems to follow a car at night."),
    ProbePrompt("story", "Tell a story about a lighthouse keeper who finds a door in the rocks at low tide."),
    ProbePrompt("code", "Write a Python function that returns the longest run of equal items in a list."),
    ProbePrompt("query", "Write an SQL query for the three customers with the largest orders of last year."),
    ProbePrompt("numbers", "Count from 95 to 125, one number a line, with no other words."),
    ProbePrompt("sum", "A ticket costs 14 euros and a child pays half. What do two adults and three children pay?"),
    ProbePrompt("list", "List eight tools that belong in a small bicycle workshop, each with one line of reasons."),
    ProbePrompt("german", "Beschreibe in einigen Sätzen, wie man im Winter eine Wohnung richtig lüftet."),
    ProbePrompt("spanish", "Escribe una carta breve a un vecino que toca la trompeta por la noche."),
    ProbePrompt("prose", "The ferry left the harbour an hour late, and nobody minded. At the rail", chat=False),
    ProbePrompt("table", "city,country,river\nVienna,Austria,Danube\nLondon,England,Thames\nParis,", chat=False),
)


def asked(entry: ModelEntry, count: int) -> tuple[AskedPrompt, ...]:
    """The first `count` prompts in a model's tokens; a model without a chat template gets all of them as raw text."""
    side = load_prompt_side(entry)
    found = []
    for probe in PROBES[:count]:
        if probe.chat and entry.has_template:
            ids = side.chat_ids([Message("user", probe.text)])
            found.append(AskedPrompt(probe.name, ids, (("user", probe.text),)))
        else:
            found.append(AskedPrompt(probe.name, side.text_ids(probe.text), prompt=probe.text))
    return tuple(found)
