"""CUDA_VISIBLE_DEVICES resolves for certain, or is refused with the remedy."""

import pytest

from core.errors import Malformed
from core.identity import Listed, Slice, Visible, matching, pci_key, visible

A = "GPU-af7b61d8-0b5e-4c1d-9c3e-111111111111"
B = "GPU-af7b99aa-0b5e-4c1d-9c3e-222222222222"
C = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
S1 = "MIG-11111111-aaaa-bbbb-cccc-000000000001"
S2 = "MIG-22222222-aaaa-bbbb-cccc-000000000002"

# As NVML listed them; on the bus the order is C (05), A (41), B (c1).
CARDS = (
    Listed(A, "00000000:41:00.0"),
    Listed(B, "00000000:C1:00.0"),
    Listed(C, "00000000:05:00.0"),
)
SLICED = (Listed(A, "00000000:41:00.0", (Slice(S1, 1, 0), Slice(S2, 2, 0))), Listed(C, "00000000:05:00.0"))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, Visible((C, A, B))),
        ("", Visible(())),
        ("  ", Visible(())),
        ("-1", Visible((), "-1")),
        ("NoDevFiles", Visible((), "NoDevFiles")),
        ("0", Visible((C,))),
        ("0,1", Visible((C, A))),
        ("2,0", Visible((B, C))),
        (" 1 , 2 ", Visible((A, B))),
        ("0,3,1", Visible((C,), "3")),
        ("1,-1,0", Visible((A,), "-1")),
        ("0,", Visible((C,), "")),
        ("0x1", Visible((), "0x1")),
        ("GPU-af7b61d8", Visible((A,))),
        ("GPU-AF7B61D8", Visible((A,))),
        (f"{B},GPU-8932", Visible((B, C))),
        ("GPU-af7b61d8,GPU-dead,GPU-8932", Visible((A,), "GPU-dead")),
        ("GPU-8932,-1", Visible((C,), "-1")),
        ("GPU-", Visible((), "GPU-")),
        ("af7b61d8", Visible((), "af7b61d8")),
        (S1, Visible((), S1)),
    ],
)
def test_what_is_visible_in_pci_order(setting: str | None, expected: Visible) -> None:
    assert visible(setting, CARDS, pci_order=True) == expected


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("GPU-af7b", "fits 2 cards"),
        ("GPU-af7b61d8,0", "mixes"),
        ("0,GPU-af7b61d8", "mixes"),
        ("1,1", "twice"),
        (f"{A},GPU-af7b61d8", "twice"),
    ],
)
def test_what_is_refused(setting: str, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        visible(setting, CARDS, pci_order=True)


def test_a_position_among_several_cards_is_not_guessed_without_pci_order() -> None:
    with pytest.raises(Malformed, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible("0", CARDS, pci_order=False)
    assert visible("0", CARDS[:1], pci_order=False) == Visible((A,))
    assert visible("GPU-8932", CARDS, pci_order=False) == Visible((C,))


def test_the_order_of_enumeration_does_not_matter() -> None:
    for setting in ("0,1", "2", "GPU-8932", None):
        assert visible(setting, CARDS, pci_order=True) == visible(setting, CARDS[::-1], pci_order=True)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (S2, Visible((S2,))),
        (f"MIG-{A}/1/0", Visible((S1,))),
        (f"MIG-{A}/3/0", Visible((), f"MIG-{A}/3/0")),
        ("MIG-2222", Visible((), "MIG-2222")),
        (f"{S1},{S2}", Visible((S1,), None, (S2,))),
    ],
)
def test_slices_are_named_in_full_and_one_is_used(setting: str, expected: Visible) -> None:
    assert visible(setting, SLICED, pci_order=True) == expected


def test_a_card_before_a_slice_is_refused() -> None:
    with pytest.raises(Malformed, match="mixes cards and slices"):
        visible(f"{C},{S1}", SLICED, pci_order=True)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("00000000:65:00.0", (0, 0x65, 0, 0)),
        ("0000:65:00.0", (0, 0x65, 0, 0)),
        ("65:00.0", (0, 0x65, 0, 0)),
        ("0000000F:01:00.0", (15, 1, 0, 0)),
        ("00000001:0a:1f.7", (1, 10, 31, 7)),
    ],
)
def test_a_bus_id_is_the_same_however_it_is_written(text: str, key: tuple[int, int, int, int]) -> None:
    assert pci_key(text) == key


def test_a_bus_id_that_is_none_is_refused() -> None:
    with pytest.raises(Malformed, match="PCI"):
        pci_key("first card")


def test_a_beginning_names_one_card_or_none() -> None:
    assert matching("GPU-8932", CARDS) == C
    assert matching("GPU-0000", CARDS) is None
    with pytest.raises(Malformed, match="fits 2"):
        matching("GPU-af", CARDS)
