"""What admission needs of a model: its tokenizer, its chat template, its limits. Never its weights."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from core.errors import Impossible, ModelFileError
from store.models.gguf import read_header
from store.models.llamacpp import most
from store.models.null_model import NULL_CONTEXT, NullTokenizer, null_chat
from store.models.template import ChatTemplate, Message, prompt_ids, with_bos
from store.models.tokenizer import Tokenizer


class PromptSide(msgspec.Struct, frozen=True):
    """Turns requests into ids and ids into text for one model. Immutable; shared between threads."""

    model: str
    tokenizer: Tokenizer | NullTokenizer
    template: ChatTemplate | None
    context: int
    """Tokens that prompt and answer may have together."""
    eos: tuple[int, ...]
    """Ids that end an answer, whichever engine gives them; the likeliest first."""

    def chat_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt ids of a conversation.

        Raises `core.errors.Impossible` when the model has no chat template or refuses the turns or roles.
        """
        if isinstance(self.tokenizer, NullTokenizer):
            return self.tokenizer.encode(null_chat(messages))
        if self.template is None:
            msg = f"model {self.model} has no chat template; send plain text as a prompt, or name another model"
            raise Impossible(msg)
        return prompt_ids(self.tokenizer, self.template, messages)

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Prompt ids of plain text, with the BOS the model expects. Names of control tokens stay text."""
        return with_bos(self.tokenizer, self.tokenizer.encode(text, special=False))

    def piece(self, token: int) -> bytes:
        """The exact bytes of a token, empty for control tokens."""
        return self.tokenizer.piece(token)


def null_side(model: str) -> PromptSide:
    """The prompt side of the built-in model."""
    tokenizer = NullTokenizer()
    return PromptSide(model, tokenizer, None, NULL_CONTEXT, eos=(256,))


def file_side(model: str, path: Path) -> PromptSide:
    """The prompt side of a model file; kept in memory until the file changes. Raises `ModelFileError`."""
    try:
        stat = path.stat()
    except OSError as error:
        msg = f"model {model}: {path} is gone ({error.strerror}). Prepare the model again."
        raise ModelFileError(msg) from error
    return _side(model, path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=8)
def _side(model: str, path: Path, _size: int, _changed: int) -> PromptSide:
    header = read_header(path)
    tokenizer = Tokenizer.from_gguf(header)
    architecture = header.value("general.architecture", str, default="")
    context = most(header, f"{architecture}.context_length")
    if context < 1:
        msg = f"{path.name}: the file does not say its context length. Use a file made by a current converter."
        raise ModelFileError(msg)
    return PromptSide(
        model=model,
        tokenizer=tokenizer,
        template=ChatTemplate.from_gguf(header),
        context=context,
        eos=tokenizer.ends,
    )
