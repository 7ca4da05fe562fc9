"""One wave's way down the trees: simulations that are in flight together.

Simulations are started one after the other, one of each root at a time, and each sees those that are in flight
already. A wave of a root closes when one would wait for another's leaf (collision: it is undone and counts for
nothing), when the phase of the selection rule ends, or when it is full. What needs no simulator (the end of an episode,
again) is settled on the spot.

Invariants: no two simulations of a wave go to the same leaf (test_a_collision_closes_the_wave); waves of one are the
sequential search, bit for bit (test_the_search_is_that_of_its_slow_twin).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from asyncrl.records import Array
from asyncrl.search import tree
from asyncrl.search.config import SearchConfig
from asyncrl.search.forest import Forest
from asyncrl.search.selection import Selection


@dataclass
class Flights:
    """One path each of several roots: where they lead, and what was there before."""

    rows: Array  # i8 [f], each root once
    leaves: Array  # i8 [f]
    was: Array  # u1 [f]: NEW, or the status of an end that is drawn again
    attempt: Array  # i8 [f]: number of the simulation within its root's search


@dataclass
class Wave:
    """Simulations in flight, in the order in which they were started."""

    turns: list[Flights] = field(default_factory=list)


class Descent:
    """Sends simulations down the trees, as many as each root has left."""

    def __init__(self, forest: Forest, selection: Selection, config: SearchConfig, budget: Array) -> None:
        self._forest, self._selection, self._config = forest, selection, config
        self.left = budget  # i8 [R]: simulations to come
        self._attempts = np.zeros_like(budget)
        # Luck is drawn anew each time an episode's end is reached, unless it is part of the state.
        self._redraws = config.rng != "frozen"

    def wave(self) -> Wave:
        """Start up to `waves` simulations of each root."""
        wave = Wave()
        rows = np.flatnonzero(self.left > 0)
        phase = self._selection.phase(rows)
        for turn in range(self._config.waves):
            if turn:
                open_still = (self.left[rows] > 0) & (self._selection.phase(rows) == phase)
                rows, phase = rows[open_still], phase[open_still]
            if not len(rows):
                break
            collided = self._start(rows, wave)
            rows, phase = rows[~collided], phase[~collided]
        return wave

    def abandon(self, wave: Wave) -> None:
        """None of these simulations will come back."""
        for turn in wave.turns:
            self._forest.undo(turn.rows, turn.leaves)
            self.restore(turn)

    def restore(self, turn: Flights) -> None:
        """Leaves are as they were before."""
        fresh = turn.was == tree.NEW
        self._forest.wither(turn.rows[fresh], turn.leaves[fresh])
        again = ~fresh
        self._forest.status[self._forest.base(turn.rows[again]) + turn.leaves[again]] = turn.was[again]

    def _start(self, rows: Array, wave: Wave) -> Array:
        """One simulation of each root; b1 [r]: those that met a leaf somebody else waits for."""
        forest = self._forest
        leaves, fresh = self._walk(rows)
        at = forest.base(rows) + leaves
        status = np.where(fresh, np.uint8(tree.NEW), forest.status[at])
        collided: Array = status == tree.PENDING
        forest.undo(rows[collided], leaves[collided])
        self.left[rows[~collided]] -= 1
        self._attempts[rows[~collided]] += 1
        flying = fresh | (~collided & self._redraws)
        settled = ~(flying | collided)
        if settled.any():
            ended = at[settled]
            value = forest.raw_value[ended]
            forest.end(ended, forest.status[ended], value)
            forest.back_up(rows[settled], leaves[settled], value)
        if flying.any():
            forest.status[at[flying]] = tree.PENDING
            wave.turns.append(Flights(rows[flying], leaves[flying], status[flying], self._attempts[rows[flying]]))
        return collided

    def _walk(self, rows: Array) -> tuple[Array, Array]:
        """i8 [r]: the leaf that each simulation comes to; b1 [r]: whether it is a new one."""
        forest = self._forest
        base = forest.base(rows)
        leaves = np.zeros_like(rows)
        fresh = np.zeros(len(rows), np.bool_)
        going = np.arange(len(rows))
        parent, action = np.zeros_like(rows), self._selection.at_root(rows)
        while True:
            child = forest.start(base[going] + parent, action)
            leaves[going] = child
            new = child == 0
            if new.any():
                sown = going[new]
                leaves[sown] = forest.sprout(rows[sown], parent[new], action[new])
                fresh[sown] = True
            inside = ~new & (forest.status[base[going] + child] == tree.EXPANDED)
            if not inside.any():
                return leaves, fresh
            going = going[inside]
            parent = leaves[going]
            action = self._selection.inside(base[going] + parent)
