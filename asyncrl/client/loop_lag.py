"""`LoopLag`: how late timers of the event loop run, as counts in classes, so that a run of days needs no more memory.

Invariants: a quantile is not below the true one, nor above it by more than the width of a class, a factor of √2
(test_quantiles_are_near_the_true_ones); memory does not grow (test_there_are_as_many_classes_as_ever).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# Upper edges: 0.1 ms to 100 s. Whatever is later is in one class more.
EDGES_S: Final = tuple(1e-4 * 2 ** (k / 2) for k in range(41))


class LoopLag:
    """Belongs to the loop."""

    def __init__(self) -> None:
        self.last_s = 0.0
        self.max_s = 0.0
        self._counts = [0] * (len(EDGES_S) + 1)

    def add(self, seconds: float) -> None:
        """A timer ran so late."""
        self.last_s = seconds
        self.max_s = max(self.max_s, seconds)
        self._counts[bisect_left(EDGES_S, seconds)] += 1

    def quantile(self, share: float) -> float:
        """Seconds that this share of the timers was not later than; 0.0 before the first."""
        left = share * sum(self._counts)
        for edge, count in zip(EDGES_S, self._counts, strict=False):
            left -= count
            if left <= 0:
                return min(edge, self.max_s)
        return self.max_s
