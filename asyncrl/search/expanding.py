"""From the leaves of a wave to what the simulator is asked.

Each leaf is reached from the nearest node above it whose state the simulator holds. That is its parent, unless states
are not kept: in open loop, where every simulation draws the luck of its whole path anew, that is always the root.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from asyncrl.records import Array
from asyncrl.search.config import SearchConfig
from asyncrl.search.descent import Wave
from asyncrl.search.forest import Forest
from asyncrl.search.simulator import Expansion, Rollout
from asyncrl.search.tree import Tree

_names = itertools.count(1)  # of states: never the same one twice in a process
_MASK: Final = (1 << 63) - 1
_WEYL: Final = 0x9E3779B97F4A7C15
STEP, ROLLOUT, PROPOSAL = range(3)


@dataclass(frozen=True, kw_only=True)
class Root:
    """A state to search from. It must not be the end of an episode."""

    state: Hashable  # a name that the simulator knows; the caller's to release
    obs: Sequence[Array] = ()  # per leaf [*shape]
    mask: Array | None = None  # b1 [A] of allowed actions, or [M] as `Propose` has them; None: all
    to_play: int | None = None
    tree: Tree | None = None  # from `advance`: the search goes on with it


def noise_key(seed: int, attempt: int, purpose: int) -> int:
    """A seed for each simulation and each use it is put to."""
    return seed + _WEYL * (3 * attempt + purpose) & _MASK


class Expander:
    """Knows the roots' states and seeds."""

    def __init__(self, roots: Sequence[Root], seeds: Sequence[int], config: SearchConfig) -> None:
        self._roots, self._seeds, self._config = roots, seeds, config
        self._keeps = config.rng != "open_loop" and config.algorithm != "rollouts"
        self._choices = np.arange(0, dtype=np.int64)

    def of_roots(self, rows: Sequence[int]) -> list[Expansion]:
        """Rollouts from roots, which is what a root is worth."""
        return [self._expansion(row, self._roots[row].state, (), 0, None) for row in rows]

    def of_wave(self, forest: Forest, wave: Wave) -> list[Expansion]:
        """In the order of the wave. Whatever is kept for it has the names that this gives."""
        if len(self._choices) < forest.num_actions:
            self._choices = np.arange(forest.num_actions)
        found: list[Expansion] = []
        for turn in wave.turns:
            ways = zip(turn.rows.tolist(), turn.leaves.tolist(), turn.attempt.tolist(), strict=True)
            for row, leaf, attempt in ways:
                state, actions = self._way(forest, row, leaf)
                name = next(_names) if self._keeps else None
                found.append(self._expansion(row, state, actions, attempt, name))
        return found

    def key(self, row: int, attempt: int, purpose: int) -> int:
        return noise_key(self._seeds[row], attempt, purpose)

    def _expansion(
        self, row: int, state: Hashable, actions: Sequence[Array], attempt: int, name: int | None
    ) -> Expansion:
        config, rollout = self._config, None
        if config.leaf == "rollout":
            rollout = Rollout(config.rollout_steps, config.discount, self.key(row, attempt, ROLLOUT))
        return Expansion(row, state, actions, name, config.rng, self.key(row, attempt, STEP), rollout)

    def _way(self, forest: Forest, row: int, leaf: int) -> tuple[Hashable, list[Array]]:
        """The state to restore, and per action leaf [k, *shape] the actions that lead from there to the leaf."""
        base, node = row * forest.num_nodes, leaf
        edges: list[tuple[int, int]] = []
        while True:
            action = int(forest.parent_action[base + node])
            node = int(forest.parent[base + node])
            edges.append((base + node, action))
            held = int(forest.state[base + node])
            if held or not node:
                break
        edges.reverse()
        return held if node else self._roots[row].state, self._actions(forest, edges)

    def _actions(self, forest: Forest, edges: Sequence[tuple[int, int]]) -> list[Array]:
        if forest.actions:
            return [np.stack([leaf[at, action] for at, action in edges]) for leaf in forest.actions]
        if len(edges) == 1:
            action = edges[0][1]
            return [self._choices[action : action + 1]]
        return [np.array([action for _at, action in edges])]
