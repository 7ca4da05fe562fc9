"""Statistics of whole games, against a sum by hand."""

from __future__ import annotations

import numpy as np

from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION, SOFT, TERMINATED, TRUNCATED
from envserver.episode_stats import EpisodeCounter


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_statistics_run_on_across_soft_ends() -> None:
    """A soft end is no end; waiting rows count nothing; each game begins at zero, with a time of its own."""
    clock = Clock()
    counter = EpisodeCounter(3, clock)
    first = FIRST | NO_TRANSITION
    steps = [
        ([1.0, 2.0, 3.0], [0, 0, 0]),
        ([1.0, 2.0, 3.0], [TERMINATED | FIRST | SOFT, TERMINATED, TRUNCATED | FIRST]),
        ([1.0, 0.0, 3.0], [0, NO_TRANSITION, 0]),
        ([1.0, 0.0, 3.0], [TRUNCATED, first, 0]),
        ([0.0, 2.0, 3.0], [NO_TRANSITION, TERMINATED | FIRST, TERMINATED | FIRST]),
    ]
    seen = {}
    for number, (rewards, flags) in enumerate(steps):
        clock.now += 1.0
        if number == 3:
            counter.begin(np.array([1]))
        stats = counter.add(np.array(rewards), np.array(flags, np.uint8), not any(flags))
        if stats is not None:
            rows = zip(stats.rows, stats.returns, stats.lengths, stats.times, strict=True)
            seen[number] = [tuple(map(float, row)) for row in rows]
    assert seen == {
        1: [(1.0, 4.0, 2.0, 2.0), (2.0, 6.0, 2.0, 2.0)],
        3: [(0.0, 4.0, 4.0, 4.0)],
        4: [(1.0, 2.0, 1.0, 1.0), (2.0, 9.0, 3.0, 3.0)],
    }


def test_a_cut_game_counts_for_nothing() -> None:
    """Its successor begins at zero."""
    counter = EpisodeCounter(1, Clock())
    counter.add(np.array([5.0]), np.array([0], np.uint8), True)
    assert counter.add(np.array([0.0]), np.array([CUT | FIRST | NO_TRANSITION], np.uint8), False) is None
    counter.begin(np.array([0]))
    stats = counter.add(np.array([1.0]), np.array([TERMINATED], np.uint8), False)
    assert stats is not None
    assert (stats.returns.tolist(), stats.lengths.tolist()) == ([1.0], [1])


def test_dtypes_are_those_of_the_wire() -> None:
    """u4 rows and lengths, f8 returns, f4 times."""
    stats = EpisodeCounter(1, Clock()).add(np.array([1.0]), np.array([TERMINATED], np.uint8), False)
    assert stats is not None
    dtypes = [array.dtype for array in (stats.rows, stats.returns, stats.lengths, stats.times)]
    assert dtypes == ["<u4", "<f8", "<u4", "<f4"]
