"""What a caller may do to an accepted request, each as one transaction."""

from collections.abc import Mapping
from typing import Final, Literal

from core import events as ev
from core.errors import Conflict, Gone, NotFound
from core.state import RequestState
from core.words import ACTIVE, SETTLED, Failover, Lane, PairClass
from store import claims, contents, laneviews, outbox, tables
from store.journal import Sees, Tx

_ALIKE: Final[Mapping[Failover, frozenset[PairClass]]] = {
    "auto": frozenset({"identical", "faithful"}),
    "identical": frozenset({"identical"}),
}
"""Pair classes on which a request may change lanes with units to go on from."""


def require(tx: Tx, request_id: str) -> RequestState:
    """The request, or `NotFound`."""
    state = tx.state(request_id)
    if state is None:
        raise NotFound(f"there is no request {request_id}; see GET /api/requests for those there are")
    return state


def cancel(tx: Tx, request_id: str, *, actor: str, reason: str = "asked") -> RequestState:
    """Ask a request to stop; at once when nobody works on it. Repeats change nothing.

    Raises `Conflict` once it ended.
    """
    state = require(tx, request_id)
    if state.state == "cancelled" or state.cancel_asked:
        return state
    if state.state == "resumable-error":
        tx.append(request_id, ev.Cancelled(reason), actor=actor)
        return require(tx, request_id)
    if state.state not in ACTIVE:
        raise Conflict(f"{request_id} is {state.state}; only active requests and resumable errors can be cancelled")
    asked = tx.append(request_id, ev.CancelAsked(reason), actor=actor)
    owned = tx.execute("SELECT 1 FROM leases WHERE request_id=?", (request_id,)).fetchone() is not None
    if not (owned and state.running):
        claims.release(tx, request_id)
        tx.append(request_id, ev.Cancelled(reason), actor=actor, cause=asked.seq)
    return require(tx, request_id)


def resume(
    tx: Tx, request_id: str, origin: Literal["checkpoint", "start"], deadline_s: float | None, *, actor: str
) -> RequestState:
    """Take a resumable error up again. A repeat answers what the first call made.

    Raises `Conflict` when it never failed, or beginning anew would repeat an effect of what it said; `Gone` when its
    content was erased.
    """
    state = require(tx, request_id)
    if state.erased:
        raise Gone(f"the content of {request_id} was erased; submit it again")
    if state.state != "resumable-error":
        if state.resumed_version is not None:
            return state
        raise Conflict(f"{request_id} is {state.state}; only a resumable error can be resumed", code="not_resumable")
    if (origin == "start" or state.units == 0) and outbox.effects(tx, request_id, since_checkpoint=False):
        raise Conflict(
            f"what {request_id} said has had effects outside, which beginning anew would repeat; "
            "resume it from its checkpoint, or submit it again as another request",
            code="effects",
        )
    lane = _resume_lane(tx, state, origin)
    deadline = None if deadline_s is None else tx.now_us + int(deadline_s * 1e6)
    tx.append(request_id, ev.Resumed(origin, lane, deadline), actor=actor)
    return require(tx, request_id)


def _resume_lane(tx: Tx, state: RequestState, origin: Literal["checkpoint", "start"]) -> Lane:
    """The first lane that serves and may take it, the GPU first; else the one to wait for.

    With units to go on from, the other lane may take it only where a failover would be allowed too.
    """
    gpu, cpu = laneviews.lane_row(tx, "gpu", state.model), laneviews.lane_row(tx, "cpu", state.model)
    if gpu is None or cpu is None:
        return "cpu" if gpu is None else "gpu"
    if origin == "start" or state.units == 0:
        to_gpu, to_cpu = True, state.failover not in {"never", "gpu-only"}
    else:
        alike = state.failover in _ALIKE and laneviews.pair(tx, state.model) in _ALIKE[state.failover]
        to_gpu, to_cpu = state.lane == "gpu" or alike, state.lane == "cpu" or alike
    if gpu.serving and to_gpu:
        return "gpu"
    if cpu.serving and to_cpu and state.prompt_tokens + state.max_units <= cpu.context:
        return "cpu"
    return "gpu" if to_gpu else "cpu"


def erase(tx: Tx, request_id: str, *, actor: str) -> RequestState:
    """Erase prompt and output of a settled request. Raises `Conflict` while it is active."""
    state = require(tx, request_id)
    if state.state not in SETTLED:
        raise Conflict(f"{request_id} is {state.state}; cancel it first, then erase its content")
    if not state.erased:
        contents.erase(tx, request_id)
        tx.append(request_id, ev.ContentErased(), actor=actor)
    return require(tx, request_id)


_LATE: Final = f"SELECT id FROM requests WHERE deadline_us<=? AND cancel_asked=0 AND {tables.ACTIVE}"  # noqa: S608 -- a constant
_RESTED: Final = "SELECT id FROM requests WHERE state='resumable-error' AND updated_us<=?"


def any_due(tx: Sees, resumable_ttl_us: int) -> bool:
    """Whether `expire_due` would end anything."""
    late = tx.execute(f"{_LATE} LIMIT 1", (tx.now_us,)).fetchone()
    return late is not None or tx.execute(f"{_RESTED} LIMIT 1", (tx.now_us - resumable_ttl_us,)).fetchone() is not None


def expire_due(tx: Tx, resumable_ttl_us: int, *, actor: str) -> list[str]:
    """End what is past its deadline, and resumable errors nobody took up. Answers their ids."""
    late = tx.execute(_LATE, (tx.now_us,)).fetchall()
    for (request_id,) in late:
        claims.release(tx, request_id)
        tx.append(request_id, ev.Expired("deadline"), actor=actor)
    rested = tx.execute(_RESTED, (tx.now_us - resumable_ttl_us,)).fetchall()
    for (request_id,) in rested:
        tx.append(request_id, ev.Expired("ttl"), actor=actor)
    return [row[0] for row in late + rested]
