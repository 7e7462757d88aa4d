"""All limits and thresholds: defaults, meaning, allowed range. Changed by configuration, recorded when changed."""

from typing import Annotated, Literal

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
    answer_grace_s: Positive = 20.0
    """How long the web process may leave its own supervisor without an answer, or the monitor write no reading."""
    poison_limit: Count = 2
    """Deaths attributable to a request's input, without a checkpoint between, after which it is not tried again."""
    loss_limit: Annotated[int, msgspec.Meta(ge=0)] = 8
    """Workers gone under a request without a checkpoint between, whatever ended them, after which it stops and can be
    resumed; 0: no number of them."""
    restart_backoff_s: Positive = 0.1
    """Pause before a dead process is started again; doubles with each death in quick succession."""
    restart_backoff_max_s: Positive = 30.0
    """Longest pause before a dead process is started again."""
    lane_out_after: Count = 3
    """Failed starts in a row after which a lane takes no new work until a start succeeds."""
    breaker_faults: Annotated[int, msgspec.Meta(ge=0)] = 3
    """Worker faults within `breaker_window_s` after which nothing new begins on their device; 0: no number of them."""
    breaker_window_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 120.0
    """How long a worker fault counts."""
    breaker_cooldown_s: Positive = 30.0
    """How long a device takes no work before it is tried again; doubles with each failed try."""
    breaker_cooldown_max_s: Positive = 600.0
    """Longest such pause."""
    breaker_canaries: Count = 2
    """Canaries that must be answered right in a row before a device takes work again."""
    breaker_probes: Count = 2
    """New requests that may wait for a device while it is tried; all others go to the CPU lane. After that so many may
    be under way there at once until one was completed."""
    canary_every_s: Positive = 60.0
    """How long a lane works before a canary is asked again; it is asked between two requests, never beside one."""
    slow_factor: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.2
    """A lane that computes at less than this share of its own usual speed counts as faulty; 0: it never does."""
    slow_after_s: Positive = 3.0
    """How long it must be so slow."""
    drain_s: Positive = 6.0
    """Time running work gets to reach a checkpoint when the service is asked to stop."""
    resumable_ttl_s: Positive = 7 * 86400.0
    """A resumable error that nobody resumes for so long is cancelled, reason `ttl`."""
    headroom_bytes: Annotated[int, msgspec.Meta(ge=0)] = 256 << 20
    """Bytes of a device that are never promised."""
    device_cap_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most bytes of a device this service may ever take; 0: no cap beside the headroom."""
    reading_max_age_s: Positive = 5.0
    """A device reading older than this is not trusted to show what others hold."""
    unseen_margin_bytes: Annotated[int, msgspec.Meta(ge=0)] = 512 << 20
    """Bytes kept back, beside the headroom, while what others hold cannot be seen."""
    blind_takes_work: bool = False
    """Whether a device whose driver cannot be read takes new work; what runs there may finish in any case."""
    host_floor: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.10
    """Share of the host's memory that the CPU lane never touches."""
    cpu_budget_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most memory that the CPU lane's workers may hold together; 0: what the host has available beside the floor."""
    cpu_growth_bytes: Annotated[int, msgspec.Meta(ge=0)] = 512 << 20
    """A CPU worker that holds so much more at rest than after loading is ended and started anew; 0: never."""
    cpu_max_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Longest answer that the CPU lane gives a new request; 0: as long as its context holds."""
    cpu_idle_s: Positive = 60.0
    """How long a CPU worker that is not kept warm stays after its last work."""
    pressure_high: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.95
    """Share of a device in use above which new work spills to the CPU lane."""
    pressure_low: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.85
    """Share of a device in use below which, held for `calm_for_s`, new work returns to it."""
    calm_for_s: Positive = 30.0
    """How long pressure must stay low before new work returns."""
    shrink_floor: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """Least share of the asked answer length to which a request that allows it may be shortened."""
    device_gb_per_s: Positive = 300.0
    """GB (10^9 bytes) a second that the device reads from its memory; speeds of partial placements rest on it."""
    host_gb_per_s: Positive = 20.0
    """GB a second that the CPU reads from the host's memory."""
    disk_gb_per_s: Positive = 1.0
    """GB a second that mapped weights are read from the disk with, where they do not fit into memory."""
    evict_period_s: Positive = 10.0
    """Least time between two evictions on one device."""
    release_wait_s: Positive = 5.0
    """How long an ended process's bytes may take to come back before that is recorded as *not reclaimed*."""
    reserve_cores: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Cores kept free of engine threads where there is more than one."""
    chunk_cap: Count = 16
    """Largest number of units between two checkpoints; fewer where the lane needs more than a quarter of a second."""
    recovery_budget_s: Positive = 0.2
    """Work that a takeover may have to do again: where an engine can save its state, it does so when more than this
    would be lost."""
    snapshot_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    """Most of a request's time that saving its state may take."""
    snapshot_bytes: Annotated[int, msgspec.Meta(ge=0)] = 4 << 30
    """Room for saved states on the disk; beyond it the oldest go first. 0: none are saved."""
    kv_pool: Literal["paged", "reserve-max"] = "paged"
    """How requests share one cache: by the blocks they have filled and the next one, or by their longest answer."""
    preempt_limit: Annotated[int, msgspec.Meta(ge=0)] = 2
    """How often a request may have to give its place in a full cache to an older one; after that it starts again
    only where its longest answer fits, and stays."""
    return_to_gpu: bool = True
    """Whether work that was moved to the CPU lane goes back to the GPU lane when that pays."""
    return_gain_s: float = 5.0
    """Least time that going back must save, takeover included. Negative: go back even at a loss, which frees the CPU
    lane."""
    return_after_s: Positive = 10.0
    """Least time on the CPU lane before work goes back; doubles with each move it has made."""
    max_wait_s: Positive = 60.0
    """Longest time an HTTP call may wait for a change."""
    max_body_bytes: Count = 1_000_000
    """Largest JSON body; beyond it 413."""
    idempotency_s: Positive = 86400.0
    """Time for which an idempotency key is remembered, at least."""
    webhook_timeout_s: Positive = 15.0
    """Time for one attempt to deliver a notice, resolving the name included."""
    webhook_tries: Count = 16
    """Attempts after which a notice is given up."""
    webhook_backoff_s: Positive = 5.0
    """Longest pause after the first failed attempt; doubles with each further one, and chance takes up to half off."""
    webhook_backoff_max_s: Positive = 6 * 3600.0
    """Longest pause between two attempts; what a receiver asks for with `Retry-After` is bounded by it as well."""
    webhook_keep_s: Positive = 7 * 86400.0
    """How long a notice that was taken or given up is kept; until then one that was given up can be sent again."""
