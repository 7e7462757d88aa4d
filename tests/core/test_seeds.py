import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.seeds import seed_at

# Made with coreutils: printf '7:0' | b2sum -l 32, then the top bit cleared by hand.
FROM_COREUTILS = [
    (7, 0, 0x6339E9C2),
    (7, 1, 0x47FFD220),
    (0, 0, 0x4CA1D45F),
    (-3, 12, 0x1EEA2159),
    (18446744073709551615, 4095, 0xFE46AB7A - 0x8000_0000),
]


@pytest.mark.parametrize(("request_seed", "position", "expected"), FROM_COREUTILS)
def test_seeds_are_those_another_program_computes(request_seed: int, position: int, expected: int) -> None:
    assert seed_at(request_seed, position) == expected


@given(st.integers(), st.integers(min_value=0))
def test_a_seed_is_never_negative_and_fits_a_signed_32_bit_integer(request_seed: int, position: int) -> None:
    assert 0 <= seed_at(request_seed, position) < 2**31


def test_neighbours_in_seed_and_position_do_not_share_seeds() -> None:
    drawn = {seed_at(seed, position) for seed in range(20) for position in range(20)}
    assert len(drawn) == 400
