"""`EpisodeOrder`: in which order, and at which step of the run, ends of episodes are told.

Lanes of one round arrive in any order. What is told of a round waits for the whole of it and is then put in the order
in which lanes in lockstep would have had it, so that two equal runs also record equal curves. Without rounds everything
is told as it arrives.

Invariant: with rounds nothing depends on the order of arrival, steps are those of the transitions up to then
(test_ends_are_told_in_the_order_of_lockstep).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from asyncrl.collector.counts import EpisodesEnded
from asyncrl.records import Unroll


class EpisodeOrder:
    """`first_step`: steps of the run before the first round that is handed over."""

    def __init__(self, num_lanes: int, first_step: int, tell: Callable[[EpisodesEnded], None]) -> None:
        self._tell = tell
        self._step = first_step
        self._running: list[list[tuple[int, EpisodesEnded]]] = [[] for _ in range(num_lanes)]
        # Of unrolls that wait for others of their round; of each lane one a round.
        self._waiting: list[deque[list[tuple[int, EpisodesEnded]]]] = [deque() for _ in range(num_lanes)]

    def ended(self, lane: int, t: int, ended: EpisodesEnded) -> None:
        """Row t of the lane's unroll ended these."""
        self._running[lane].append((t, ended))

    def finished(self, lane: int, unroll: Unroll | None) -> None:
        """The lane's unroll is over; one without a transition has ended nothing and is never handed over."""
        if unroll is not None:
            self._waiting[lane].append(self._running[lane])
        self._running[lane] = []

    def handed(self, unrolls: Sequence[Unroll]) -> None:
        """A round is complete."""
        found = [(t, unroll.lane, ended) for unroll in unrolls for t, ended in self._waiting[unroll.lane].popleft()]
        arrived = self._step + np.cumsum(sum(np.count_nonzero(unroll.valid, axis=1) for unroll in unrolls))
        for t, _, ended in sorted(found, key=lambda each: each[:2]):
            self._tell(replace(ended, steps=int(arrived[t])))
        self._step = int(arrived[-1])
