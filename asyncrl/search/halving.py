"""Sequential halving as a list: how often the action that is tried next has been tried before.

Invariant: the lists are the published ones (test_the_published_lists).
"""

from __future__ import annotations

import functools


@functools.cache
def considered_visits(num_considered: int, num_simulations: int) -> tuple[int, ...]:
    """Entry i: simulation i goes to an action of the root that has had so many, the best of those.

    A phase visits each of its actions equally often; the better half of them goes on, never fewer than two. All
    ⌈log2⌉ phases get about the same share of the simulations.
    """
    if num_considered <= 1:
        return tuple(range(num_simulations))
    num_phases = (num_considered - 1).bit_length()
    found: list[int] = []
    survivors, visits = num_considered, 0
    while len(found) < num_simulations:
        for _ in range(max(1, num_simulations // (num_phases * survivors))):
            found += [visits] * survivors
            visits += 1
        survivors = max(2, survivors // 2)
    return tuple(found[:num_simulations])
