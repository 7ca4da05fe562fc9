"""When ends of episodes are told, and at which step, on unrolls that are only as real as they need to be."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from asyncrl.collector.counts import EpisodesEnded
from asyncrl.collector.episodes import EpisodeOrder
from asyncrl.records import Unroll


def ended(value: float) -> EpisodesEnded:
    one = np.ones(1)
    return EpisodesEnded(-1, one, np.array([value]), one, one)


def unroll(lane: int, valid: list[list[int]]) -> Unroll:
    return cast(Unroll, SimpleNamespace(lane=lane, valid=np.array(valid, np.bool_)))


def told(arrivals: list[Any]) -> list[tuple[int, float]]:
    """(step, return) of two lanes of two slots with three rows, after these calls and then the round."""
    found: list[tuple[int, float]] = []
    order = EpisodeOrder(2, 100, lambda each: found.append((each.steps, float(each.returns[0]))))
    unrolls = [unroll(0, [[1, 1], [0, 1], [1, 0]]), unroll(1, [[1, 1], [1, 1], [0, 0]])]
    for lane, t, value in arrivals:
        order.ended(lane, t, ended(value))
    for lane in {lane: None for lane, _, _ in reversed(arrivals)}:
        order.finished(lane, unrolls[lane])
    assert not found  # the round is not over
    order.handed(unrolls)
    order.ended(1, 0, ended(9.0))
    order.finished(0, None)  # its second unroll held nothing
    order.finished(1, unrolls[1])
    order.handed([unrolls[1]])
    return found


def test_ends_are_told_in_the_order_of_lockstep() -> None:
    """Whoever arrives first: by row, then by lane; steps count the valid rows of all lanes up to that row, and the next
    round goes on from there."""
    ends = [(0, 0, 1.0), (0, 2, 2.0), (1, 0, 3.0), (1, 1, 4.0)]
    expected = [(104, 1.0), (104, 3.0), (107, 4.0), (108, 2.0), (110, 9.0)]
    seen = 0
    for arrivals in permutations(ends):
        if all(arrivals.index(a) < arrivals.index(b) for a, b in (ends[:2], ends[2:])):
            assert told(list(arrivals)) == expected
            seen += 1
    assert seen == 6
