"""Return, length and duration of whole games, counted here and not by the environments.

Invariant: a soft end ends no game: statistics run on across it (test_statistics_run_on_across_soft_ends).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from asyncrl.wire.flags import NO_TRANSITION, SOFT, TERMINATED, TRUNCATED, Flags
from asyncrl.wire.step_rows import EpisodeStats
from asyncrl.wire.tensors import Array


class EpisodeCounter:
    """Running statistics of B slots."""

    def __init__(self, num_slots: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._returns = np.zeros(num_slots)
        self._lengths = np.zeros(num_slots, np.uint32)
        self._began = np.full(num_slots, clock())

    def begin(self, rows: Array) -> None:
        """A new game in these rows (any index of `[B]`); the old one, if there was one, counts for nothing."""
        self._returns[rows] = 0.0
        self._lengths[rows] = 0
        self._began[rows] = self._clock()

    def add(self, rewards: Array, flags: Flags, plain: bool) -> EpisodeStats | None:
        """Account for one step's rewards and flags `[B]`; statistics of the games that ended with it.

        `plain` says that all flags are 0, which is most steps.
        """
        self._returns += rewards
        if plain:
            self._lengths += np.uint32(1)
            return None
        self._lengths += (flags & NO_TRANSITION) == 0
        ended = ((flags & (TERMINATED | TRUNCATED)) != 0) & ((flags & SOFT) == 0)
        rows = np.flatnonzero(ended).astype("<u4")
        if not rows.size:
            return None
        times = (self._clock() - self._began[rows]).astype("<f4")
        stats = EpisodeStats(rows, self._returns[rows], self._lengths[rows].astype("<u4"), times)
        self.begin(rows)
        return stats
