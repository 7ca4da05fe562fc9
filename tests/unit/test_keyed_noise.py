"""Keyed noise: a function of seed, key and column, that looks random in every direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.keyed_noise import STEP_BITS, row_keys, uniform

MASK = (1 << 64) - 1
SIDE = 1 << 17
KEYS = row_keys(np.repeat(np.arange(256), SIDE // 256), np.tile(np.arange(SIDE // 256), 256))


def naive(seed: int, key: int, column: int) -> float:
    """The definition on Python integers."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
        return x ^ x >> 31

    weyl = 0x9E3779B97F4A7C15
    start = mix(mix(seed + weyl & MASK) ^ key)
    return ((mix(start + (column + 1) * weyl & MASK) >> 12) + 0.5) * 2.0**-52


@given(
    st.integers(-(2**70), 2**70), st.lists(st.integers(0, MASK), min_size=1, max_size=5, unique=True), st.integers(0, 4)
)
def test_numbers_do_not_depend_on_the_batch(seed: int, keys: list[int], columns: int) -> None:
    """Any seed, any keys in any company: each number is the definition's, bit for bit."""
    numbers = uniform(seed, np.array(keys, np.uint64), columns)
    assert numbers.shape == (len(keys), columns)
    expected = [[naive(seed & MASK, key, column) for column in range(columns)] for key in keys]
    assert numbers.tolist() == expected


def test_numbers_lie_strictly_between_zero_and_one() -> None:
    """What the extreme counters give is neither 0 nor 1, so logarithms of both sides are finite."""
    for bits in (0, MASK):
        assert 0.0 < ((bits >> 12) + 0.5) * 2.0**-52 < 1.0
    numbers = uniform(3, KEYS, 2)
    assert numbers.min() > 0.0
    assert numbers.max() < 1.0
    assert numbers.dtype == np.float64


def chi_square(numbers: npt.NDArray[Any], bins: int) -> float:
    """Deviations of the chi-square statistic from its mean: about N(0, 1) for uniform numbers."""
    counts = np.bincount((numbers.ravel() * bins).astype(int), minlength=bins)
    expected = numbers.size / bins
    return float((((counts - expected) ** 2 / expected).sum() - (bins - 1)) / np.sqrt(2 * (bins - 1)))


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_uniform_in_every_direction(seed: int) -> None:
    """Over keys, over columns of one key, over seeds of one key: 1024 bins, within 5 deviations."""
    over_columns = uniform(seed, KEYS[:1], SIDE)
    over_seeds = np.array([uniform(seed + offset, KEYS[:1], 1)[0, 0] for offset in range(SIDE // 8)])
    for numbers in (uniform(seed, KEYS, 1), over_columns, over_seeds):
        assert abs(chi_square(numbers, 1024)) < 5


@pytest.mark.parametrize("seed", [0, 7])
def test_neighbours_are_independent(seed: int) -> None:
    """Pairs of neighbours (next key, next slot, next column, next seed) fill 32 x 32 boxes evenly."""
    numbers = uniform(seed, KEYS, 2)
    by_slot = numbers[:, 0].reshape(256, -1)
    pairs = {
        "step": (by_slot[:, :-1].ravel(), by_slot[:, 1:].ravel()),
        "slot": (by_slot[:-1].ravel(), by_slot[1:].ravel()),
        "column": (numbers[:, 0], numbers[:, 1]),
        "seed": (numbers[:, 0], uniform(seed + 1, KEYS, 1)[:, 0]),
    }
    for name, (one, other) in pairs.items():
        boxes = (np.floor(one * 32) * 32 + np.floor(other * 32)) / 1024 + 1e-9
        assert abs(chi_square(boxes, 1024)) < 5, name
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(len(one)), name


def test_row_keys_are_unique() -> None:
    """No two (fleet slot, step) of a run share a key: 2**24 slots of 2**40 steps each."""
    assert len(np.unique(KEYS)) == len(KEYS)
    far = row_keys(np.array([0, 1, 2**24 - 1]), np.array([2**STEP_BITS - 1, 0, 2**STEP_BITS - 1]))
    assert far.tolist() == [2**40 - 1, 2**40, 2**64 - 1]
