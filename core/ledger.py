"""The arithmetic of promised bytes: what of a device is free to be promised, exactly, in integers.

    foreign   = max(0, used - ours)
    available = total - driver_reserved - headroom - foreign - Σ over holders max(reserved, ours)

1. A byte is promised once: a promise counts from the transaction that made it, before the driver shows it.
2. What a holder takes beyond its promise counts too (`max`), but not what it gave back since the reading.
3. Unknown is not zero: without a total nothing is known to be free; without `used` the foreign part is unknown, and
   what is free is then what the promises leave, less the margin for not seeing. What a promise has not taken yet hides
   nobody else's bytes: only what was taken when the device was read is taken off `used`.
4. A reading older than allowed tightens by the same margin: more may have been taken than it shows.
5. A device whose driver cannot be read (`blind`) is promised nothing new, unless policy says so.
6. A cap on *our* use holds beside all that.
7. A device that uses the host's memory shares one pot with the CPU lane: what each was promised and has not taken yet
   is not free for the other, and the host's floor is kept on both sides.
"""

from typing import Literal

import msgspec


class Holder(msgspec.Struct, frozen=True):
    """A model of ours on the device, its process and its requests together. Bytes."""

    name: str
    reserved: int
    returns: int = 0
    """The part of it that comes back when its requests end."""
    ours: int | None = None
    """What its processes were seen to hold; None: not told."""
    released: int = 0
    """What it gave back since that was seen; the reading still shows it."""
    taken: int = 0
    """What of its promise was taken when the device was read, by our own account; counts where `ours` is None."""


class DeviceFacts(msgspec.Struct, frozen=True):
    """A device as a decider sees it: the last reading, its age, and our promises. Bytes and seconds."""

    id: str
    state: Literal["ok", "blind", "lost", "unknown"]
    total: int | None
    driver_reserved: int
    used: int | None
    headroom: int
    holders: tuple[Holder, ...] = ()
    cap: int | None = None
    """Most bytes this service may ever take there."""
    age_s: float | None = None
    """Age of the reading; None when there was none yet."""
    max_age_s: float = 5.0
    margin: int = 0
    """Bytes kept back while the device cannot be seen."""
    blind_takes_work: bool = False
    """Whether a device that cannot be read may be promised at all."""
    elsewhere: int = 0
    """Where it uses the host's memory: what the CPU lane needs of it beside what is used."""


def ours(facts: DeviceFacts) -> int:
    """Bytes of this service, each holder at the greater of its promise and what was seen."""
    return sum(max(holder.reserved, (holder.ours or 0) - holder.released) for holder in facts.holders)


def foreign(facts: DeviceFacts) -> int | None:
    """Bytes held by programs that are not ours; None when the driver does not tell what is used.

    Where the driver tells no use by process, our own account of what we took stands for it.
    """
    if facts.used is None:
        return None
    seen = sum(holder.taken if holder.ours is None else holder.ours for holder in facts.holders)
    return max(0, facts.used - seen)


def unseen(facts: DeviceFacts) -> bool:
    """Whether what is used now cannot be seen: no reading, an old one, or one without numbers."""
    return facts.used is None or facts.age_s is None or facts.age_s > facts.max_age_s


def capacity(facts: DeviceFacts) -> int | None:
    """Bytes that could be ours if nobody else held any; None when the total is unknown."""
    if facts.total is None:
        return None
    most = facts.total - facts.driver_reserved - facts.headroom
    return max(0, most if facts.cap is None else min(most, facts.cap))


def available(facts: DeviceFacts) -> int | None:
    """Bytes that may be promised now, never negative; None where nothing is to be promised unseen."""
    if facts.total is None or (facts.state == "blind" and not facts.blind_takes_work):
        return None
    mine = ours(facts)
    free = facts.total - facts.driver_reserved - facts.headroom - (foreign(facts) or 0) - mine
    free -= facts.elsewhere
    if unseen(facts):
        free -= facts.margin
    if facts.cap is not None:
        free = min(free, facts.cap - mine)
    return max(0, free)


def overdrawn(facts: DeviceFacts) -> bool:
    """Whether what others took since leaves our promises without cover."""
    if facts.total is None or facts.used is None:
        return False
    room = facts.total - facts.driver_reserved - facts.headroom - (foreign(facts) or 0)
    return ours(facts) > room - facts.elsewhere


def untaken(facts: DeviceFacts) -> int:
    """Bytes promised to holders that they have not taken yet, as far as was seen."""
    seen = ((holder, holder.taken if holder.ours is None else holder.ours) for holder in facts.holders)
    return sum(max(0, holder.reserved - taken) for holder, taken in seen)


def returning(facts: DeviceFacts) -> int:
    """Bytes that will come back by themselves when the requests that hold them end."""
    return sum(holder.returns for holder in facts.holders)
