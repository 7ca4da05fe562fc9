"""`SumTree`: numbers from which indices are drawn in proportion, for whole batches at a time.

Nodes have 16 children, and the topmost level is as wide as NumPy still sums it up in no time: few levels, each of them
a handful of calls for a batch. A node is computed from its children whenever one of them is set, in one way, and never
adjusted by a difference: errors do not add up, and a tree that is filled at once is the tree that grew, bit for bit.

Invariants: sums and least positive numbers are those of a plain list (test_the_tree_is_a_list); zeros are never found
(test_zeros_are_never_found); sums do not drift (test_sums_do_not_drift).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from asyncrl.errors import LocalProtocolError
from asyncrl.records import Array

FAN_OUT: Final = 16
TOP: Final = 4096  # nodes of the topmost level, at most
_SHIFT: Final = FAN_OUT.bit_length() - 1
_LAST: Final = FAN_OUT - 1


class SumTree:
    """`size` numbers, 0 at first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._sums = [np.zeros(_whole(size))]  # f8, by level; leaves first
        self._least = [self._sums[0]]  # f8, likewise: of the positive ones; inf where there are none
        while len(self._sums[-1]) > TOP:
            count = len(self._sums[-1]) // FAN_OUT
            self._sums.append(np.zeros(_whole(count)))
            self._least.append(np.full(_whole(count), np.inf))

    @property
    def total(self) -> float:
        return float(self._sums[-1].sum())

    @property
    def least(self) -> float:
        """The least positive number; infinite if there is none."""
        top = self._least[-1]
        return float(np.where(top > 0.0, top, np.inf).min())

    def __getitem__(self, indices: Array) -> Array:
        """f8, like `indices`."""
        values: Array = self._sums[0][indices]
        return values

    def set(self, indices: Array, values: Array) -> None:
        """`values` f8 [N], 0 or more, at `indices` i8 [N]; of one that occurs twice, the last counts."""
        self._sums[0][indices] = values
        for level in range(len(self._sums) - 1):
            indices = indices >> _SHIFT
            if len(indices) > FAN_OUT:
                indices = _without_neighbours(indices)
            self._sums[level + 1][indices] = self._sums[level].reshape(-1, FAN_OUT)[indices].sum(axis=1)
            below = self._least[level].reshape(-1, FAN_OUT)[indices]
            if level == 0:
                below[below == 0.0] = np.inf
            self._least[level + 1][indices] = below.min(axis=1)

    def find(self, places: Array) -> Array:
        """i8 [N]: of each place f8 [N] in [0, total) the index whose number covers it, numbers laid end to end."""
        if not self.total > 0.0:
            raise LocalProtocolError("nothing can be found in a tree of zeros")
        ends = np.cumsum(self._sums[-1])
        # Rounding may put a place beyond the end, where only zeros are; here and below.
        places = np.minimum(places, np.nextafter(ends[-1], 0.0))
        found = np.searchsorted(ends, places, side="right")
        places = places - np.where(found > 0, ends[found - 1], 0.0)
        every = np.arange(len(places))
        for sums in reversed(self._sums[:-1]):
            ends = np.cumsum(sums.reshape(-1, FAN_OUT)[found], axis=1)
            places = np.minimum(places, np.nextafter(ends[:, _LAST], 0.0))
            child = np.count_nonzero(ends <= places[:, None], axis=1)
            places = places - np.where(child > 0, ends[every, child - 1], 0.0)
            found = (found << _SHIFT) + child
        return found

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """i8 [count], in proportion to their numbers; stratified: one from each of `count` equal parts of the sum."""
        return self.find((np.arange(count) + rng.random(count)) * (self.total / count))

    def values(self) -> Array:
        """f8 [size], a copy."""
        return self._sums[0][: self.size].copy()

    def fill(self, values: Array) -> None:
        """All numbers at once, f8 [size]."""
        self.set(np.arange(self.size), values)


def _whole(count: int) -> int:
    """As many as fill the last node."""
    return -(-count // FAN_OUT) * FAN_OUT


def _without_neighbours(indices: Array) -> Array:
    """Those that differ from the one before: fewer where they came in order, the same set anyway."""
    keep = np.empty(len(indices), np.bool_)
    keep[0] = True
    np.not_equal(indices[1:], indices[:-1], out=keep[1:])
    return indices[keep]
