"""All limits and thresholds: defaults, meaning, allowed range. Changed by configuration, recorded when changed."""

from typing import Annotated

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times in seconds, sizes in bytes."""

    gpu_queue_limit: Count = 64
    """New requests that may wait for the GPU lane; beyond it they are sent to the CPU lane or refused."""
    cpu_queue_limit: Count = 32
    """Requests waiting for the CPU lane beyond which new ones are refused. Accepted requests that are moved there
    count, but are never refused."""
    lease_s: Positive = 15.0
    """A runner that has not renewed its lease for so long no longer owns the request."""
    hang_grace_s: Positive = 3.0
    """Shortest time without a pulse after which a runner counts as hung."""
    hang_factor: Positive = 20.0
    """A runner is hung when a step takes this many times what its last steps took, and `hang_grace_s` has passed."""
    load_grace_s: Positive = 120.0
    """Longest time a runner may take to load its model without a pulse."""
    gate_grace_s: Positive = 1.0
    """A process of ours that keeps the writer gate for so long without finishing is killed."""
    poison_limit: Count = 2
    """Deaths attributable to a request's input, without a checkpoint between, after which it is not tried again."""
    restart_backoff_s: Positive = 0.1
    """Pause before a dead process is started again; doubles with each death in quick succession."""
    restart_backoff_max_s: Positive = 30.0
    """Longest pause before a dead process is started again."""
    lane_out_after: Count = 3
    """Failed starts in a row after which a lane takes no new work until a start succeeds."""
    drain_s: Positive = 6.0
    """Time running work gets to reach a checkpoint when the service is asked to stop."""
    resumable_ttl_s: Positive = 7 * 86400.0
    """A resumable error that nobody resumes for so long is cancelled, reason `ttl`."""
    reserve_cores: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Cores kept free of engine threads where there is more than one."""
    chunk_cap: Count = 16
    """Largest number of units between two checkpoints."""
    max_wait_s: Positive = 60.0
    """Longest time an HTTP call may wait for a change."""
    max_body_bytes: Count = 1_000_000
    """Largest JSON body; beyond it 413."""
    idempotency_s: Positive = 86400.0
    """Time for which an idempotency key is remembered, at least."""
