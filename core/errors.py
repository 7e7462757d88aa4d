"""The exception tree, drawn first: each class says whose fault it is.

    FailsoftError
    ├── CallerError                 the request was wrong; nothing was made
    │   ├── Malformed               400
    │   ├── NotFound                404
    │   ├── Conflict                409 state conflict
    │   ├── Gone                    410 erased
    │   ├── TooLarge                413
    │   └── Impossible              422 well formed, but cannot be served
    ├── ServiceError                our fault or our state; the caller may try again
    │   ├── Busy                    429 a queue is full
    │   ├── Reduced                 503 draining, or a lane the caller insists on is out
    │   └── NoSpace                 507
    ├── ModelFileError              a model file is unsuitable; says what and the remedy
    ├── IllegalEvent                an event the transition table has no row for
    ├── Fenced                      a write by someone who no longer owns the request
    ├── EngineFault                 the engine failed; the worker that ran it is suspect
    │   └── RestoreFailed           a saved state did not come back as what it was
    │   └── CannotContinue          it is sound and cannot go on with this answer; another engine may
    ├── DeviceFault                 the device failed; what it computed is suspect
    └── StopWork                    not an error: the runner tells the engine to stop

Only `web/problems.py` turns these into HTTP responses.
"""

from typing import Any


class FailsoftError(Exception):
    """Root of all errors raised on purpose. `code` is a stable machine-readable word."""

    code = "error"

    def __init__(self, detail: str, *, code: str | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra
        if code is not None:
            self.code = code


class CallerError(FailsoftError):
    """The request was wrong; nothing was made."""


class Malformed(CallerError):
    """The request cannot be read, or a value is out of its range."""

    code = "malformed"


class NotFound(CallerError):
    """There is nothing under that name."""

    code = "not_found"


class Conflict(CallerError):
    """The request's state does not allow this."""

    code = "conflict"


class Gone(CallerError):
    """The content was erased."""

    code = "erased"


class TooLarge(CallerError):
    """The body is over the limit."""

    code = "too_large"


class Impossible(CallerError):
    """Well formed, but it can never be served here."""

    code = "impossible"


class ServiceError(FailsoftError):
    """Our state forbids it now; the caller may try again after `retry_after` seconds."""

    retry_after = 5


class Busy(ServiceError):
    """A queue is full."""

    code = "queue_full"


class Reduced(ServiceError):
    """The service is draining or runs reduced, and the caller does not accept that."""

    code = "reduced"


class NoSpace(ServiceError):
    """The store cannot be written: no space, or read-only."""

    code = "no_space"
    retry_after = 30


class ModelFileError(FailsoftError):
    """A model file cannot be used. The text names the cause and the remedy."""

    code = "model_file"


class IllegalEvent(FailsoftError):
    """The transition table has no row for this event in this state. Nothing was changed."""

    code = "illegal_event"

    def __init__(self, state: str, event: str) -> None:
        super().__init__(f"event {event} is not allowed in state {state}")
        self.state = state
        self.event = event


class Fenced(FailsoftError):
    """A write by someone who no longer owns the request: stop, discard, record."""

    code = "fenced"


class EngineFault(FailsoftError):
    """The engine failed; the worker that ran it is suspect."""

    code = "engine_fault"


class RestoreFailed(EngineFault):
    """A saved state did not come back as it was; what the worker holds in memory is not to be trusted any more."""

    code = "restore_failed"


class CannotContinue(EngineFault):
    """The engine is sound and cannot go on with an answer that was begun elsewhere; somebody else must."""

    code = "cannot_continue"


class Unworkable(EngineFault):
    """The engine is sound and refuses this work for good: a grammar it cannot read, say."""

    code = "unworkable"


class NoPlace(EngineFault):
    """A server of others has no place for the work now; the work is not to blame."""

    code = "engine_busy"


class DeviceFault(FailsoftError):
    """The device failed; what it computed since the last checkpoint is suspect."""

    code = "device_fault"


class AllocationFailed(FailsoftError):
    """The device refused an allocation and the worker is still sound: a fault of size, nobody's crash."""

    code = "allocation_failed"


class StopWork(FailsoftError):
    """Raised from a pulse to make the engine stop: cancel or drain. Not an error."""

    code = "stop"
