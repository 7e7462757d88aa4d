"""Which cards `CUDA_VISIBLE_DEVICES` names, told by UUID.

1. A card is its UUID; a position in a list is not an identity. NVML's order may change with a boot and need not be
   CUDA's; CUDA counts in PCI order only when CUDA_DEVICE_ORDER=PCI_BUS_ID says so. By default the fastest comes first,
   by a rule that is not published, so a position among several cards is then refused and never guessed.
2. Unset: every card. Empty: none. The list ends at its first entry that names nothing (`-1`, `NoDevFiles`, a wrong
   UUID); what follows is not seen, as CUDA itself does.
3. A UUID of a card may be cut short as long as it fits one card. One that fits several is refused.
4. Of MIG slices CUDA uses one: the first that is named. A slice's UUID is not cut short; the older form
   `MIG-GPU-<uuid>/<instance>/<compute instance>` is understood.
5. Positions and UUIDs in one list, cards before a slice, a card named twice: refused, since what CUDA makes of them is
   not documented.

Source: CUDA C++ programming guide, environment variables.
"""

import re
from collections.abc import Sequence

import msgspec

from core.errors import Malformed

_NUMBER = re.compile(r"[0-9]+")
_OLD_SLICE = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)")
_PCI = re.compile(r"(?:([0-9a-fA-F]+):)?([0-9a-fA-F]+):([0-9a-fA-F]+)\.([0-9a-fA-F]+)")


class Slice(msgspec.Struct, frozen=True):
    """A MIG slice of a card: its own UUID, its GPU instance and compute instance on the card."""

    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Listed(msgspec.Struct, frozen=True):
    """A card as it was enumerated, in whatever order: UUID, PCI bus id, slices."""

    uuid: str
    pci: str
    slices: tuple[Slice, ...] = ()


class Visible(msgspec.Struct, frozen=True):
    """UUIDs of cards and slices in the order in which CUDA numbers them, and what the list named in vain."""

    uuids: tuple[str, ...]
    stopped_at: str | None = None
    """The first entry that names nothing; it and all after it are not seen."""
    unused: tuple[str, ...] = ()
    """Entries after a slice: CUDA uses one slice and nothing else."""


def pci_key(pci: str) -> tuple[int, int, int, int]:
    """(domain, bus, device, function) of a PCI bus id, however many digits it is written with. Raises `Malformed`."""
    found = _PCI.fullmatch(pci.strip())
    if found is None:
        raise Malformed(f"{pci!r} is not a PCI bus id such as 00000000:65:00.0")
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return domain, bus, device, function


def visible(setting: str | None, cards: Sequence[Listed], *, pci_order: bool) -> Visible:
    """What a value of CUDA_VISIBLE_DEVICES shows of these cards; `pci_order`: CUDA_DEVICE_ORDER is PCI_BUS_ID.

    Raises `Malformed`, with the remedy, when the value cannot be resolved for certain.
    """
    ordered = sorted(cards, key=lambda card: pci_key(card.pci))
    if setting is None:
        return Visible(tuple(card.uuid for card in ordered))
    if not setting.strip():
        return Visible(())
    entries = [entry.strip() for entry in setting.split(",")]
    numbers = [bool(_NUMBER.fullmatch(entry)) for entry in entries]
    found: list[str] = []
    for place, entry in enumerate(entries):
        if place and numbers[place] != numbers[0] and (numbers[place] or entry.startswith(("GPU-", "MIG-"))):
            raise Malformed(f"CUDA_VISIBLE_DEVICES={setting!r} mixes positions and UUIDs; name every card by its UUID")
        uuid = _by_position(entry, ordered, pci_order) if numbers[place] else _by_uuid(entry, ordered)
        if uuid is None:
            return Visible(tuple(found), stopped_at=entry)
        if uuid in found:
            raise Malformed(f"CUDA_VISIBLE_DEVICES={setting!r} names {uuid} twice; name each card once")
        if uuid.startswith("MIG-"):
            if found:
                raise Malformed(f"CUDA_VISIBLE_DEVICES={setting!r} mixes cards and slices; name cards or one slice")
            return Visible((uuid,), unused=tuple(entries[place + 1 :]))
        found.append(uuid)
    return Visible(tuple(found))


def matching(start: str, cards: Sequence[Listed]) -> str | None:
    """The one card whose UUID begins with `start`, or None. Raises `Malformed` when several do."""
    fits = [card.uuid for card in cards if card.uuid.lower().startswith(start.lower())]
    if len(fits) > 1:
        raise Malformed(f"{start!r} fits {len(fits)} cards ({', '.join(fits)}); write more of the UUID")
    return fits[0] if fits else None


def _by_position(entry: str, ordered: list[Listed], pci_order: bool) -> str | None:
    position = int(entry)
    if position >= len(ordered):
        return None
    if len(ordered) > 1 and not pci_order:
        raise Malformed(
            f"position {entry} in CUDA_VISIBLE_DEVICES is uncertain with {len(ordered)} cards: CUDA puts the fastest "
            "first. Set CUDA_DEVICE_ORDER=PCI_BUS_ID as well, or name the card by its UUID (nvidia-smi -L)"
        )
    return ordered[position].uuid


def _by_uuid(entry: str, ordered: list[Listed]) -> str | None:
    if entry.startswith("MIG-"):
        old = _OLD_SLICE.fullmatch(entry)
        for card in ordered:
            for part in card.slices:
                place = (part.gpu_instance, part.compute_instance)
                if old and card.uuid.lower() == old[1].lower() and place == (int(old[2]), int(old[3])):
                    return part.uuid
                if part.uuid.lower() == entry.lower():
                    return part.uuid
        return None
    if not entry.startswith("GPU-") or len(entry) == len("GPU-"):
        return None
    return matching(entry, ordered)
