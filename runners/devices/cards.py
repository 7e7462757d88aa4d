"""Which card the GPU lane computes on, of those that the driver shows.

1. What CUDA_VISIBLE_DEVICES hides is not used, by the rules of `core.identity`. A card in MIG mode is its slices.
2. `auto` takes the card with the most memory of those that are not out; of two alike, the first on the bus. One whose
   memory can be read goes before one whose cannot.
3. A card that is named is that card, well or not: it may come back. One that was used here before and is gone now is
   no mistake of whoever named it.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from core.errors import Malformed
from core.identity import Listed, Slice, Visible, pci_key, visible
from runners.devices.base import OUT, MigPlace, State


class Offer(msgspec.Struct, frozen=True):
    """A card, or a slice of one, as `runners.devices.nvml` prints it."""

    id: str
    state: State = "unknown"
    name: str = "a card without a name"
    pci: str = "0:0.0"
    total: int | None = None
    reason: str | None = None
    advice: str | None = None
    mig: MigPlace | None = None


class Gone(msgspec.Struct, frozen=True):
    """A card that was named and used before, and is not there now."""

    id: str


def listed(offers: Sequence[Offer]) -> list[Listed]:
    """Cards with their slices, as `core.identity` knows them."""
    cards: dict[str, tuple[str, list[Slice]]] = {}
    for offer in offers:
        owner = offer.id if offer.mig is None else offer.mig.parent
        _, slices = cards.setdefault(owner, (offer.pci, []))
        if offer.mig is not None:
            slices.append(Slice(offer.id, offer.mig.gpu_instance, offer.mig.compute_instance))
    return [Listed(uuid, pci, tuple(slices)) for uuid, (pci, slices) in cards.items()]


def seen(offers: Sequence[Offer], environment: Mapping[str, str]) -> list[Offer]:
    """Those that this process may use, in the order of the bus or of CUDA_VISIBLE_DEVICES. Raises `Malformed`."""
    pci_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return _shown(visible(environment.get("CUDA_VISIBLE_DEVICES"), listed(offers), pci_order=pci_order), offers)


def _shown(shown: Visible, offers: Sequence[Offer]) -> list[Offer]:
    ordered = sorted(offers, key=lambda offer: (pci_key(offer.pci), offer.id))
    return [
        offer
        for uuid in shown.uuids
        for offer in ordered
        if uuid == offer.id or (offer.mig is not None and uuid == offer.mig.parent)
    ]


def choose(
    wanted: str, offers: Sequence[Offer], environment: Mapping[str, str], known: Collection[str] = ()
) -> Offer | Gone | None:
    """The card for `auto` or for a UUID; None: there is none to choose. `known` were used before.

    Raises `Malformed`, with the remedy, for a name that fits none or several.
    """
    if wanted == "auto":
        there = [offer for offer in seen(offers, environment) if offer.state not in OUT]
        return max(there, key=lambda offer: (offer.state == "ok", offer.total or 0), default=None)
    named = _shown(visible(wanted, listed(offers), pci_order=True), offers)
    if len(named) > 1:
        raise Malformed(f"gpu = {wanted!r} is a card in MIG mode; name one of its slices: {_ids(named)}")
    if not named:
        former = [uuid for uuid in known if uuid.lower().startswith(wanted.lower())]
        if former:
            return Gone(former[0])
        raise Malformed(f"gpu = {wanted!r} is no card of this machine; there {_are(offers)} (nvidia-smi -L)")
    if named[0] not in seen(offers, environment):
        hidden = environment.get("CUDA_VISIBLE_DEVICES")
        raise Malformed(f"gpu = {wanted!r} is hidden by CUDA_VISIBLE_DEVICES={hidden!r}; name one that it shows")
    return named[0]


def _are(offers: Sequence[Offer]) -> str:
    return f"are {_ids(offers)}" if offers else "is none"


def _ids(offers: Sequence[Offer]) -> str:
    return ", ".join(offer.id for offer in offers)
