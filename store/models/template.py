"""Turns a conversation into the prompt its model was trained on, and keeps its writers out of the controls.

1. The template is the model file's own (`tokenizer.chat_template`), run by `sandbox`.
2. What a person wrote must not become a control token. The template is rendered twice: once as it is, and once with
   a placeholder for each message. If putting the messages in the placeholders' places gives the first text exactly,
   it is known which characters the template wrote and which the people, and only the template's may be controls.
3. Templates that trim messages get the same with trimmed messages. Templates that change them in other ways are
   accepted only if the text holds exactly the control tokens that it holds with placeholders; else the conversation
   is refused. Nothing is neutralised or dropped in silence.
4. Roles are a fixed set, since templates print them.
5. One BOS at most: it is put in front only if the model wants one and the template did not write it.
6. Models that can think before they answer do so: that is what their templates and servers do by default.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from core.errors import Impossible, Malformed
from store.models.gguf import GGUF
from store.models.sandbox import Sandbox

ROLES = ("system", "user", "assistant", "tool")
MAX_MESSAGES = 4_096


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: str
    content: str


class Segment(msgspec.Struct, frozen=True):
    """A run of prompt text. Control tokens written in it count only if it is `trusted`."""

    text: str
    trusted: bool


class Encoder(Protocol):
    """What a template asks of a tokenizer."""

    bos: int | None
    adds_bos: bool

    def encode_parts(self, parts: Sequence[tuple[str, bool]]) -> tuple[int, ...]:
        """Ids of texts that follow each other."""

    def controls_in(self, text: str) -> tuple[int, ...]:
        """Control tokens written out in a text."""


class ChatTemplate:
    """The chat template of one model file."""

    def __init__(self, source: str, *, name: str, bos: str = "", eos: str = "") -> None:
        """Compile; `bos` and `eos` are the texts of those tokens. Raises `ModelFileError`."""
        self.source = source
        self.digest = hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()
        self._sandbox = Sandbox(source, name=name)
        self._names = {"bos_token": bos, "eos_token": eos}

    @classmethod
    def from_gguf(cls, header: GGUF) -> "ChatTemplate | None":
        """The file's template, or None when it has none."""
        source = header.value("tokenizer.chat_template", str)
        if source is None:
            return None
        tokens = header.texts("tokenizer.ggml.tokens")
        names = {}
        for name in ("bos", "eos"):
            token = header.value(f"tokenizer.ggml.{name}_token_id", int)
            names[name] = tokens[token] if token is not None and 0 <= token < len(tokens) else ""
        return cls(source, name=header.path.name, **names)

    def text(self, messages: Sequence[Message], now: datetime | None = None) -> str:
        """The prompt as the template writes it, ready for the assistant's answer."""
        return self._render([message.content for message in messages], messages, now or datetime.now(UTC))

    def segments(self, messages: Sequence[Message], controls: Callable[[str], tuple[int, ...]]) -> list[Segment]:
        """The prompt in runs, each the template's own or a person's.

        `controls` names the control tokens written out in a text. Raises `core.errors.Malformed` for a conversation
        that is none, `core.errors.Impossible` for roles or turns the model cannot take, `ModelFileError` for a
        template that fails.
        """
        check(messages)
        now = datetime.now(UTC)
        contents = [message.content for message in messages]
        plain = self._render(contents, messages, now)
        mark = _unused_mark([self.source, *contents])
        # Templates often ask whether there is content at all; what is only white space can hold no control token.
        places = [f"{mark}{index};" if content.strip() else content for index, content in enumerate(contents)]
        marked = self._render(places, messages, now)
        parts = re.split(f"{re.escape(mark)}([0-9]+);", marked)
        for written in (contents, [content.strip() for content in contents]):
            found = [
                Segment(written[int(part)] if odd else part, trusted=not odd)
                for odd, part in ((index % 2, part) for index, part in enumerate(parts))
            ]
            if "".join(segment.text for segment in found) == plain:
                return [segment for segment in found if segment.text]
        if controls(plain) != controls(marked):
            msg = (
                "a message holds text that this model's chat template would turn into control tokens; "
                "remove names such as <|...|> from the messages"
            )
            raise Impossible(msg)
        return [Segment(plain, trusted=True)]

    def _render(self, contents: Sequence[str], messages: Sequence[Message], now: datetime) -> str:
        turns = [
            {"role": message.role, "content": content} for message, content in zip(messages, contents, strict=True)
        ]
        return self._sandbox.render(
            {
                **self._names,
                "messages": turns,
                "add_generation_prompt": True,
                "tools": None,
                "documents": None,
                "enable_thinking": True,
                "strftime_now": now.strftime,
            }
        )


def check(messages: Sequence[Message]) -> None:
    """Raise `Malformed` or `Impossible` for a conversation no template should see."""
    if not messages:
        raise Malformed("there are no messages; send at least one")
    if len(messages) > MAX_MESSAGES:
        msg = f"{len(messages)} messages are more than {MAX_MESSAGES}; leave out the oldest"
        raise Impossible(msg)
    for message in messages:
        if message.role not in ROLES:
            msg = f"the role {message.role[:40]!r} is not known; use one of {', '.join(ROLES)}"
            raise Impossible(msg)


def prompt_ids(tokenizer: Encoder, template: ChatTemplate, messages: Sequence[Message]) -> tuple[int, ...]:
    """The exact ids of the prompt for `messages`. Raises as `ChatTemplate.segments` does."""
    segments = template.segments(messages, tokenizer.controls_in)
    ids = tokenizer.encode_parts([(segment.text, segment.trusted) for segment in segments])
    return with_bos(tokenizer, ids)


def with_bos(tokenizer: Encoder, ids: tuple[int, ...]) -> tuple[int, ...]:
    """`ids` with the BOS in front if the model wants one and it is not there yet."""
    if tokenizer.adds_bos and tokenizer.bos is not None and ids[:1] != (tokenizer.bos,):
        return (tokenizer.bos, *ids)
    return ids


def _unused_mark(texts: Sequence[str]) -> str:
    # A private-use character survives trimming and is no letter, digit or space to any template.
    number = 0
    while any(f"\ue000{number}:" in text for text in texts):
        number += 1
    return f"\ue000{number}:"
