"""Return, length and duration of whole games, counted here and not by the environments.

Invariant: a soft end ends no game: statistics run on across it (test_statistics_run_on_across_soft_ends).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from asyncrl.wire.flags import NO_TRANSITION, SOFT, TERMINATED, TRUNCATED, Flags
from asyncrl.wire.step_rows import EpisodeStats
from asyncrl.wire.tensors import Array

_U4: Final = np.dtype("<u4")
_F4: Final = np.dtype("<f4")
# By flags of a row: looking them up is cheaper than three operations on `[B]`.
_FLAGS: Final = np.arange(256, dtype=np.uint8)
_TRANSITIONS: Final = ((_FLAGS & NO_TRANSITION) == 0).astype(_U4)
_ENDS_GAME: Final = ((_FLAGS & (TERMINATED | TRUNCATED)) != 0) & ((_FLAGS & SOFT) == 0)


class EpisodeCounter:
    """Running statistics of B slots."""

    def __init__(self, num_slots: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._returns = np.zeros(num_slots)
        self._lengths = np.zeros(num_slots, _U4)
        self._began = np.full(num_slots, clock())

    def begin(self, rows: Array) -> None:
        """A new game in these rows (any index of `[B]`); the old one, if there was one, counts for nothing."""
        self._returns[rows] = 0.0
        self._lengths[rows] = 0
        self._began[rows] = self._clock()

    def standing(self, row: int) -> tuple[float, int]:
        """Return and length of a row's game so far."""
        return float(self._returns[row]), int(self._lengths[row])

    def resume(self, row: int, game_return: float, game_length: int) -> None:
        """A row goes on with a game that has come so far. Its time begins now."""
        self.begin(np.array([row]))
        self._returns[row], self._lengths[row] = game_return, game_length

    def add(self, rewards: Array, flags: Flags, plain: bool) -> EpisodeStats | None:
        """Account for one step's rewards and flags `[B]`; statistics of the games that ended with it.

        `plain` says that all flags are 0, which is most steps.
        """
        self._returns += rewards
        if plain:
            self._lengths += np.uint32(1)
            return None
        self._lengths += _TRANSITIONS.take(flags)
        (rows,) = _ENDS_GAME.take(flags).nonzero()
        if not rows.size:
            return None
        times = (self._clock() - self._began[rows]).astype(_F4)
        stats = EpisodeStats(rows.astype(_U4), self._returns[rows], self._lengths[rows], times)
        self.begin(rows)
        return stats
