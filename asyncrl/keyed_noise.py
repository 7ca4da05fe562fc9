"""Random numbers that follow from (seed, key, column) alone: sampling that does not depend on how rows are batched.

A counter-based generator: two rounds of the splitmix64 finaliser over seed and key choose the start of a splitmix64
sequence, of which a row's columns are the next numbers. Keys of a run are `row_keys`.

Invariants: a row's numbers depend on seed, key and column, on nothing else (test_numbers_do_not_depend_on_the_batch);
they lie strictly between 0 and 1 (test_numbers_lie_strictly_between_zero_and_one); they are uniform, and independent
across seeds, keys and columns (test_uniform_in_every_direction, test_neighbours_are_independent).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint64]

STEP_BITS: Final = 40
_WEYL: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_DROP: Final = np.uint64(12)  # 52 bits and the half between them are exact in f8
_UNIT: Final = 2.0**-52


def row_keys(fleet_slots: npt.NDArray[Any], steps: npt.NDArray[Any]) -> U8:
    """u8 [N]: one number for each (fleet slot, act step of that slot)."""
    slots: U8 = np.asarray(fleet_slots).astype(np.uint64)
    return (slots << np.uint64(STEP_BITS)) + np.asarray(steps).astype(np.uint64)


def uniform(seed: int, keys: npt.NDArray[Any], columns: int) -> npt.NDArray[np.float64]:
    """f8 [N, columns] in (0, 1) for keys u8 [N]."""
    start: U8 = _seeded(seed) ^ keys
    _mix(start)
    counters: U8 = start[:, None] + _steps(columns)
    _mix(counters)
    counters >>= _DROP
    numbers: npt.NDArray[np.float64] = counters.astype(np.float64)
    numbers += 0.5
    numbers *= _UNIT
    return numbers


@cache
def _steps(columns: int) -> U8:
    """u8 [columns]"""
    return np.arange(1, columns + 1, dtype=np.uint64) * _WEYL


@cache
def _seeded(seed: int) -> U8:
    """u8 [1]"""
    start: U8 = np.array([seed & 0xFFFF_FFFF_FFFF_FFFF], np.uint64) + _WEYL
    _mix(start)
    return start


def _mix(x: U8) -> None:
    """A bijection of 64 bits, in place."""
    x ^= x >> _SHIFTS[0]
    x *= _FACTORS[0]
    x ^= x >> _SHIFTS[1]
    x *= _FACTORS[1]
    x ^= x >> _SHIFTS[2]
