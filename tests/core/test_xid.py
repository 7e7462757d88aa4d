"""Xids by class, from the catalogue's table."""

import pytest

from core.xid import CONSEQUENCES, classify

TABLE = {
    "app": "8 13 31 32 68 69 94 126 127 128 129 130 131 132 133 134 135 139",
    "reset": "46 62 64 95 109 110 119 120 136 140 143 155 156 158",
    "check": "48 74 144 145 146 147 148 149 150",
    "lost": "79 151 154 167",
    "info": "63 92 121 137 157 160 161 168",
}


@pytest.mark.parametrize(
    ("kind", "code"), [(kind, int(code)) for kind, codes in TABLE.items() for code in codes.split()]
)
def test_each_row_of_the_catalogue(kind: str, code: int) -> None:
    assert classify(code).kind == kind


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68])
def test_what_programs_do_never_blames_the_card(code: int) -> None:
    """These are the ones that container platforms ignore; 109 is ignored there too, and disputed."""
    assert classify(code).blames == "worker"


@pytest.mark.parametrize("code", [48, 79, 119, 154])
def test_what_the_card_does_blames_the_card(code: int) -> None:
    assert classify(code).blames == "device"


@pytest.mark.parametrize("code", [999, 0, 7, 5000])
def test_a_number_nobody_can_read_does_not_take_a_card_out(code: int) -> None:
    xid = classify(code)
    assert (xid.kind, xid.blames) == ("unknown", "worker")


def test_information_blames_nobody() -> None:
    assert classify(63).blames is None


def test_the_driver_is_asked_about_the_disputed_and_about_the_changed_action_only() -> None:
    assert [code for code in range(1000) if classify(code).ask_driver] == [109, 154]


def test_an_xid_reads_as_a_sentence() -> None:
    assert str(classify(79)) == "Xid 79 (the card fell off the bus)"
    assert str(classify(62)) == "Xid 62"
    assert "rebooted" in classify(79).consequence
    assert set(CONSEQUENCES) == {*TABLE, "unknown"}
