"""Named points where tests and drills may strike.

`FAILSOFT_FAULTPOINTS="writer.before-commit=kill@3,gate.held=stop"` makes the third passage through the first point end
the process with SIGKILL, and the first passage through the second stop it. Actions: `kill`, `stop`, `fail` (raises
`OSError(ENOSPC)`), `sleep:SECONDS`. Without the variable a passage costs one dictionary look-up.
"""

import errno
import os
import signal
import threading
import time

VARIABLE = "FAILSOFT_FAULTPOINTS"


def _parse(text: str) -> dict[str, tuple[str, int]]:
    plan = {}
    for part in filter(None, text.split(",")):
        point, _, rest = part.partition("=")
        action, _, nth = rest.partition("@")
        if action not in {"kill", "stop", "fail"} and not action.startswith("sleep:"):
            raise ValueError(f"{VARIABLE}: {part!r} orders nothing; write POINT=kill, stop, fail or sleep:SECONDS")
        plan[point] = (action, int(nth or 1))
    return plan


_plan = _parse(os.environ.get(VARIABLE, ""))


def hit(point: str) -> None:
    """Pass a point; does what the plan says when it is the planned passage."""
    if not _plan or point not in _plan:
        return
    action, nth = _plan[point]
    _plan[point] = (action, nth - 1)
    if nth != 1:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        # To this very thread: a stop of the process may reach it only after it has run on for a while.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif action == "fail":
        raise OSError(errno.ENOSPC, f"fault point {point}")
    elif action.startswith("sleep:"):
        time.sleep(float(action.removeprefix("sleep:")))
