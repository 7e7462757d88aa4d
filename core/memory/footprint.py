"""What a load needs, in bytes, by kind, side and phase; unknown is a value here, never a number."""

from typing import Literal

import msgspec

Basis = Literal["formula", "learned", "declared", "unknown"]


class Term(msgspec.Struct, frozen=True):
    """One kind of memory. Bytes are None exactly when the basis is `unknown`."""

    bytes: int | None
    basis: Basis

    def __post_init__(self) -> None:
        """Hold the promise of the class."""
        if (self.bytes is None) != (self.basis == "unknown") or (self.bytes or 0) < 0:
            msg = f"not a term: {self.bytes} bytes on the basis {self.basis}"
            raise ValueError(msg)


def term(value: int | None, basis: Basis = "formula") -> Term:
    """A term of so many bytes, or an unknown one."""
    return Term(value, "unknown" if value is None else basis)


ZERO = Term(0, "formula")


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """One side in one phase. `compute`, `pool` and `context` are what each device holds; the rest is the sum."""

    weights: Term = ZERO
    kv: Term = ZERO
    recurrent: Term = ZERO
    compute: Term = ZERO
    output: Term = ZERO
    """Where the results of a batch are handed over."""
    pool: Term = ZERO
    """What the runtime takes on demand while computing and never prints."""
    context: Term = ZERO
    """What the driver takes per process."""
    devices: int = 1

    @property
    def total(self) -> int | None:
        """All of it, over all devices; None if any part is unknown."""
        whole = 0
        for name in ("weights", "kv", "recurrent", "compute", "output", "pool", "context"):
            part: int | None = getattr(self, name).bytes
            if part is None:
                return None
            whole += part * (self.devices if name in {"compute", "pool", "context"} else 1)
        return whole

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the parts that are not known."""
        names = ("weights", "kv", "recurrent", "compute", "output", "pool", "context")
        return tuple(name for name in names if getattr(self, name).bytes is None)


class Sides(msgspec.Struct, frozen=True):
    """Device and host in one phase."""

    device: Bill
    host: Bill


class Footprint(msgspec.Struct, frozen=True):
    """What a load needs: the most while loading (`peak`), and once it has served its largest batch (`steady`)."""

    peak: Sides
    steady: Sides

    @property
    def device_total(self) -> int | None:
        """What must be free on the devices together before loading: the larger phase; None if not known."""
        return _larger(self.peak.device.total, self.steady.device.total)

    @property
    def host_total(self) -> int | None:
        """The same for the host."""
        return _larger(self.peak.host.total, self.steady.host.total)


def _larger(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
