"""What no engine is given: work that native code, or a server, would misread instead of refusing."""

from core.errors import EngineFault, Unworkable
from runners.engines.base import GenerateWork


def check_work(work: GenerateWork, *, context: int, vocabulary: int | None = None, constraints: bool = False) -> None:
    """Raise `EngineFault` unless all ids are in a vocabulary of that size.

    Raises `Unworkable` for more tokens than `context` holds, and for an answer that is to be held to a grammar where
    the engine has no `constraints`: nobody is broken then, and trying again would not help.
    """
    if not work.prompt:
        raise EngineFault("The prompt has no tokens; there is nothing to continue.")
    if len(work.done) > work.max_units:
        raise EngineFault(f"{len(work.done)} units are done already, more than the {work.max_units} wanted.")
    if len(work.prompt) + work.max_units > context:
        raise Unworkable(
            f"{len(work.prompt)} prompt tokens and {work.max_units} units do not fit a context of {context} tokens."
        )
    if work.constraint is not None and not constraints:
        raise Unworkable("This engine cannot hold an answer to a grammar.")
    for token in (*work.prompt, *work.done) if vocabulary is not None else ():
        if not 0 <= token < (vocabulary or 0):
            raise EngineFault(f"Token id {token} is outside the model's vocabulary of {vocabulary}.")
