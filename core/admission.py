"""Before anything runs: where may this request run?

In this order; the first rule that applies decides:

1. `draining`            the service is stopping: refuse, for a while.
2. `too-long`            no lane could ever hold prompt and answer: refuse, for good.
3. `gpu-ready`           the GPU lane serves, holds it, and has room.
4. `gpu-only`            the caller wants the GPU or nothing (`gpu-only`, `never`), and it cannot take it: refuse.
5. `no-gpu`, `gpu-out`, `too-long-for-gpu`, `gpu-queue-full`   to the CPU lane, if it has room.
6. `queue-full`          both queues are full: refuse, for a while. `no-lane`: nothing serves at all.

Not here: what a lane can hold (facts), how long it will take (eta).
"""

from core.decision import AdmissionFacts, Decision, LaneFacts, Rejected

RUN_GPU = "run-gpu"
REROUTE = "reroute-cpu"
REFUSE = "refuse"


def decide(facts: AdmissionFacts) -> Decision:
    """One of `run-gpu`, `reroute-cpu`, `refuse`, with what was rejected and why."""
    action, rule, rejected = _rule(facts)
    return Decision(action, rule, facts, tuple(Rejected(a, r) for a, r in rejected))


_Ruling = tuple[str, str, list[tuple[str, str]]]


def _rule(f: AdmissionFacts) -> _Ruling:
    if f.draining:
        stopping = "the service is stopping"
        return REFUSE, "draining", [(RUN_GPU, stopping), (REROUTE, stopping)]
    need = f.prompt_tokens + f.max_units
    gpu_obstacle, gpu_why = _obstacle(f.gpu, need, "gpu")
    cpu_obstacle, cpu_why = _obstacle(f.cpu, need, "cpu")
    holds = [lane.context for lane in (f.gpu, f.cpu) if lane.present]
    if holds and need > max(holds):
        return REFUSE, "too-long", [(RUN_GPU, gpu_why), (REROUTE, cpu_why)]
    if gpu_obstacle is None:
        return RUN_GPU, "gpu-ready", [(REROUTE, "the GPU lane can take it")]
    if f.failover in {"gpu-only", "never"}:
        return REFUSE, "gpu-only", [(RUN_GPU, gpu_why), (REROUTE, f"failover is `{f.failover}`")]
    if cpu_obstacle is None:
        return REROUTE, gpu_obstacle, [(RUN_GPU, gpu_why)]
    full = "gpu-queue-full" in gpu_obstacle or "cpu-queue-full" in cpu_obstacle
    return REFUSE, "queue-full" if full else "no-lane", [(RUN_GPU, gpu_why), (REROUTE, cpu_why)]


def _obstacle(lane: LaneFacts, need: int, name: str) -> tuple[str | None, str]:
    """The rule id of what keeps a request off the lane, and the reason in words; (None, "") when nothing does."""
    if not lane.present:
        return f"no-{name}", f"there is no {name.upper()} lane here"
    if not lane.serving:
        return f"{name}-out", f"the {name.upper()} lane is out: {lane.out_reason or 'unknown reason'}"
    if need > lane.context:
        return f"too-long-for-{name}", f"{need} tokens are asked for, and the lane holds {lane.context}"
    if lane.waiting >= lane.limit:
        return f"{name}-queue-full", f"{lane.waiting} requests wait there already; the limit is {lane.limit}"
    return None, ""
