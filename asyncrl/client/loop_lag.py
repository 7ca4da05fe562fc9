"""`LoopLag`: how late timers of the event loop run, as counts in classes, so that a run of days needs no more memory;
`LoopTicks`: a timer for it.

Invariants: a quantile is not below the true one, nor above it by more than the width of a class, a factor of √2
(test_quantiles_are_near_the_true_ones); memory does not grow (test_there_are_as_many_classes_as_ever); what held the
loop up is seen at its whole length, and nothing after `close` (test_what_holds_the_loop_up_is_seen).
"""

from __future__ import annotations

import asyncio
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


class LoopTicks:
    """Belongs to the loop it is made on, and runs until `close`. uvloop's timers have a resolution of 1 ms."""

    def __init__(self, every_s: float = 0.01) -> None:
        self.lag = LoopLag()
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._timer = self._next()

    def close(self) -> None:
        """Idempotent."""
        self._timer.cancel()

    def _next(self) -> asyncio.TimerHandle:
        self._due = self._loop.time() + self._every_s
        return self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self.lag.add(max(0.0, self._loop.time() - self._due))
        self._timer = self._next()
