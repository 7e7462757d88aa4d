"""What the runners would find on this machine, as JSON: cores, memory, accelerators. `python -m runners.lookout`.

A process of its own, since asking a driver may hang; whoever asks gives it a time.
"""

import sys
from typing import Any

import msgspec

from core.hostbudget import limits
from core.policy import Policy
from runners.cgroups import own_levels, refusal
from runners.devices.host import observe_host
from runners.process import usable_cores


def accelerators() -> dict[str, Any]:
    """What NVML tells: `driver` and `devices`, or `problem` with the reason why it tells nothing."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return {"driver": _text(pynvml.nvmlSystemGetDriverVersion()), "devices": [_device(h) for h in handles]}
    except pynvml.NVMLError as error:
        return {"problem": str(error)}


def budget(policy: Policy) -> dict[str, Any]:
    """What the CPU lane's workers of a service that is started here may hold, and what would hold them to it."""
    most = limits(policy, observe_host(), held=0, mapped=0)
    why = refusal(own_levels()[0])
    return {"by": "watch" if why else "cgroup", "why": why, "budget": most.soft, "limited_by": most.limited_by}


def _device(handle: Any) -> dict[str, Any]:
    import pynvml

    facts = {"id": _text(pynvml.nvmlDeviceGetUUID(handle)), "name": _text(pynvml.nvmlDeviceGetName(handle))}
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:  # memory shared with the host, or a device in trouble: unknown, never zero
        return facts | {"total_bytes": None, "free_bytes": None}
    return facts | {"total_bytes": memory.total, "free_bytes": memory.free}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def main() -> int:
    """Print what there is."""
    found = {
        "cores": usable_cores(),
        "memory": msgspec.to_builtins(observe_host()),
        "budget": budget(Policy()),
        "accelerators": accelerators(),
    }
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
