"""How a server is asked for an answer, or to go on with one.

1. `tokens`: the ids of the prompt and of the answer so far. It sees exactly what the other lane sees.
2. `completion`: their text, only where it is proved that reading the text back gives the ids of the prompt, control
   tokens included. So what a person wrote never becomes a control token over there.
3. `message`: the conversation, with the answer so far as a last message of the assistant that is to be continued.
4. An answer that is begun is asked for as a conversation where there is one: the server has the template.
5. What cannot be said is `CannotContinue`, told before anything was computed.
"""

from typing import Any, Final, Literal

import msgspec

from core.errors import CallerError, CannotContinue
from core.seeds import seed_at
from runners.engines.base import GenerateWork, Said, Sampling, Way
from store.models.prompt_side import PromptSide
from store.models.template import Message

Continues = Literal["tokens", "completion", "message", "none"]

CHAT: Final = "/v1/chat/completions"
RAW: Final = "/v1/completions"

_GREEDY_BELOW: Final = 1e-4
_LONGEST_BOS: Final = 64


class Ask(msgspec.Struct, frozen=True):
    """One question."""

    path: str
    body: dict[str, Any]
    way: Way


def ask_for(work: GenerateWork, side: PromptSide, model: str, continues: Continues) -> Ask:
    """What to send for `work`. Raises `CannotContinue`."""
    done = len(work.done)
    body: dict[str, Any] = {"model": model, "stream": True, "max_tokens": work.max_units - done}
    body |= _drawn(work.sampling, done)
    said = work.said or Said()
    if continues == "tokens":
        return Ask(RAW, {**body, "prompt": [*work.prompt, *work.done]}, "recomputed" if done else "computed")
    if not done and said.messages:
        return Ask(CHAT, {**body, "messages": _turns(said)}, "computed")
    if not done or continues == "completion":
        return Ask(RAW, {**body, "prompt": _raw(work, side) + _answered(work, side)}, "text" if done else "computed")
    if continues == "none":
        raise CannotContinue("This server cannot go on with an answer; it can only begin one.")
    if not said.messages:
        raise CannotContinue("This server goes on with conversations only, and this is raw text.")
    answered = _answered(work, side)
    if answered != answered.strip():
        raise CannotContinue("The answer so far begins or ends with white space, which chat templates take away.")
    turns = [*_turns(said), {"role": "assistant", "content": answered}]
    # Servers that do not know these go on with a last message of the assistant by themselves, or not at all.
    go_on = {"continue_final_message": True, "add_generation_prompt": False}
    return Ask(CHAT, {**body, "messages": turns, **go_on}, "text")


def _drawn(sampling: Sampling, done: int) -> dict[str, Any]:
    if sampling.temperature < _GREEDY_BELOW:
        return {"temperature": 0}
    drawn: dict[str, Any] = {"temperature": sampling.temperature, "top_k": sampling.top_k}
    drawn["seed"] = seed_at(sampling.seed, done)
    return drawn | ({"top_p": sampling.top_p} if sampling.top_p < 1 else {})


def _turns(said: Said) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in said.messages]


def _answered(work: GenerateWork, side: PromptSide) -> str:
    """The text of the answer so far."""
    try:
        text = b"".join(map(side.piece, work.done)).decode()
    except UnicodeDecodeError as error:
        raise CannotContinue("The answer so far ends inside a character, which text cannot say.") from error
    if side.tokenizer.controls_in(text):
        raise CannotContinue("The answer so far spells a control token, which the server would obey.")
    return text


def _raw(work: GenerateWork, side: PromptSide) -> str:
    """The text whose ids are those of the prompt, without the BOS that the server puts in front itself."""
    said = work.said or Said()
    try:
        text = said.prompt if said.prompt is not None else _written(said, side)
    except CallerError as error:
        raise CannotContinue(f"The conversation cannot be written as text: {error}") from error
    ids = side.tokenizer.encode(text, special=True)
    bos = () if side.tokenizer.bos is None or not side.tokenizer.adds_bos else (side.tokenizer.bos,)
    if (ids if ids[:1] == bos else (*bos, *ids)) != work.prompt:
        raise CannotContinue(
            "The prompt cannot be said in text: read back, it would be another, as with the name of a control token"
            " in a message. A server that takes token ids can (continues = tokens)."
        )
    if bos and ids[:1] == bos:
        ends = range(1, _LONGEST_BOS)
        end = next((end for end in ends if side.tokenizer.encode(text[:end], special=True) == bos), 0)
        return text[end:]
    return text


def _written(said: Said, side: PromptSide) -> str:
    messages = [Message(role, content) for role, content in said.messages]
    if not messages:
        raise CannotContinue("This server takes words, and there are none.")
    if side.template is None:
        # Without a template there is no conversation but the built-in model's, whose ids are its text.
        return b"".join(map(side.piece, side.chat_ids(messages))).decode()
    return side.template.text(messages)
