"""The closed vocabularies, spelled once: these exact words are stored, shown and sent."""

from typing import Final, Literal, get_args

State = Literal[
    "admitted",
    "running-gpu",
    "checkpointed",
    "rerouted-cpu",
    "completed",
    "resumable-error",
    "cancelled",
    "refused",
]
Lane = Literal["gpu", "cpu"]
Failover = Literal["auto", "identical", "boundary", "never", "gpu-only"]
PairClass = Literal["identical", "faithful", "none"]
FaultClass = Literal["size", "poison", "worker", "device", "slow", "host"]
Priority = Literal["interactive", "batch"]
FinishReason = Literal["stop", "length"]

ACTIVE: Final[frozenset[State]] = frozenset({"admitted", "running-gpu", "checkpointed", "rerouted-cpu"})
TERMINAL: Final[frozenset[State]] = frozenset({"completed", "cancelled", "refused"})
SETTLED: Final[frozenset[State]] = TERMINAL | {"resumable-error"}
ALL_STATES: Final[tuple[State, ...]] = get_args(State)
