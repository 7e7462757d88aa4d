"""How a command ends when it does not end well."""

from collections.abc import Mapping
from typing import Any, Final

from core import errors

OK: Final = 0
UNWELL: Final = 1
"""The thing asked about is not well: not completed, not whole, not suitable."""
USAGE: Final = 2
"""The command line is wrong, or nothing can be reached."""
REFUSED: Final = 3
"""Refused for now: busy, draining, no space."""
REJECTED: Final = 4
"""Refused for good: unknown, malformed, in conflict, impossible."""
INTERRUPTED: Final = 130

MEANINGS: Final[Mapping[int, str]] = {
    OK: "done, and all is well",
    UNWELL: "what was asked about is not well: the request did not complete, the record or a model file is broken",
    USAGE: "the command line is wrong, or nothing can be reached",
    REFUSED: "refused for now (busy, stopping, no space); the same may work later",
    REJECTED: "refused for good (unknown id, impossible values, a state that does not allow it)",
    INTERRUPTED: "interrupted from the keyboard",
}


class CommandFailed(Exception):
    """Ends the command with `code`; the text names cause and remedy. `document` is what programs are told."""

    def __init__(self, code: int, detail: str, document: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.document = dict(document or {}) | {"detail": detail, "exit_code": code}


def of_error(error: errors.FailsoftError) -> CommandFailed:
    """An error of the store, met in this very process."""
    if isinstance(error, errors.ModelFileError):
        code = UNWELL
    elif isinstance(error, errors.ServiceError):
        code = REFUSED
    elif isinstance(error, errors.Malformed):
        code = USAGE
    else:
        code = REJECTED
    return CommandFailed(code, error.detail, {"code": error.code})


def of_status(status: int) -> int:
    """The exit code for an answer of the service."""
    if status in {429, 503, 507}:
        return REFUSED
    return REJECTED if status < 500 else UNWELL
