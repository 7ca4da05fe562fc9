"""Search with a simulator and an evaluator of your own, as plain Python: many roots at once, one call to each a round.

    python -m examples.search_own_simulator

The world: a number, to be brought to 24 by adding 1, doubling, or adding 7, in as few steps as possible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from asyncrl.records import Array
from asyncrl.search import Expansion, Outcome, Root, SearchConfig, SearchResult, search

GOAL = 24
MOVES: tuple[tuple[str, Callable[[int], int]], ...] = (
    ("+1", lambda n: n + 1),
    ("*2", lambda n: n * 2),
    ("+7", lambda n: n + 7),
)


class Numbers:
    """Holds numbers by name. That of a lane of environments would send the wave over the network here."""

    def __init__(self) -> None:
        self.states: dict[object, int] = {}

    async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
        return [self._one(expansion) for expansion in wave]

    async def release(self, states: Sequence[int]) -> None:
        for state in states:
            self.states.pop(state, None)

    def _one(self, asked: Expansion) -> Outcome:
        number = self.states[asked.parent]
        for action in asked.actions[0].tolist():
            number = MOVES[action][1](number)
        ended = number >= GOAL
        if asked.keep_as is not None and not ended:
            self.states[asked.keep_as] = number
        reward = 0.0 if number == GOAL else -1.0 if number < GOAL else -10.0
        return Outcome(obs=[np.array(number)], rewards=[reward], terminated=ended, kept=not ended)


async def judge(obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
    """Logits [N, 3] and values [N]: no action is likelier, and what is far away costs more."""
    return np.zeros((len(obs[0]), 3)), -np.log2(GOAL / obs[0])


async def main(starts: Sequence[int] = (2, 3, 5, 7, 10)) -> list[SearchResult]:
    """One result for each start."""
    simulator = Numbers()
    simulator.states = {f"start {n}": n for n in starts}
    roots = [Root(state=f"start {n}", obs=[np.array(n)]) for n in starts]
    config = SearchConfig(num_simulations=400, waves=4, discount=1.0, rng="frozen")
    results = await search(roots, simulator, judge, config, np.random.default_rng(0))
    for n, result in zip(starts, results, strict=True):
        way, node = [], 0
        while result.tree.edge_visits[node].any():
            action = int(result.tree.edge_visits[node].argmax())
            way.append(MOVES[action][0])
            node = int(result.tree.child[node, action])
        print(f"{n:3} {' '.join(way):20} worth {result.root_value:.2f} after {result.num_simulations} simulations")
    return results


if __name__ == "__main__":
    asyncio.run(main())
