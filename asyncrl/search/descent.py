"""One wave's way down the trees: simulations that are in flight together.

Simulations are started one after the other, one of each root at a time, and each sees those that are in flight
already. A wave of a root closes when one would wait for another's leaf (collision: it is undone and counts for
nothing), when the phase of the selection rule ends, or when it is full. What needs no simulator (the end of an episode,
again) is settled on the spot. A phase has no ways that meet: its simulations are chosen first, and walk at once. Where
there is no tree nobody waits: every rollout over an action has a leaf of its own, which withers when it comes back.

Invariants: no two simulations of a wave go to the same leaf (test_a_collision_closes_the_wave); without a tree waves
are as wide as they may be, and change no result (test_rollouts_fill_their_waves); waves of one are the sequential
search, bit for bit (test_the_search_is_that_of_its_slow_twin); so is a phase that was decided on before
(test_a_phase_goes_down_at_once_as_one_after_the_other).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from asyncrl.records import Array
from asyncrl.search import tree
from asyncrl.search.config import SearchConfig
from asyncrl.search.forest import Forest
from asyncrl.search.selection import Selection


@dataclass
class Flights:
    """Paths from roots: where they lead, and what was there before."""

    rows: Array  # i8 [f]
    leaves: Array  # i8 [f]
    was: Array  # u1 [f]: NEW, or the status of an end that is drawn again
    attempt: Array  # i8 [f]: number of the simulation within its root's search
    turn: Array | None = None  # i8 [f]; None: of one turn, so that each root is there once

    def part(self, which: Array) -> Flights:
        """Those of them."""
        turn = None if self.turn is None else self.turn[which]
        return Flights(self.rows[which], self.leaves[which], self.was[which], self.attempt[which], turn)


@dataclass
class Wave:
    """Simulations in flight, in the order in which they were started."""

    turns: list[Flights] = field(default_factory=list)
    apart: bool = False  # ways of one root have nothing in common but the root

    def together(self) -> list[Flights]:
        """Flights that may be settled at once: all of them where ways are apart, otherwise turn by turn."""
        if not self.apart or len(self.turns) < 2:
            return self.turns
        turns = self.turns
        return [
            Flights(
                np.concatenate([each.rows for each in turns]),
                np.concatenate([each.leaves for each in turns]),
                np.concatenate([each.was for each in turns]),
                np.concatenate([each.attempt for each in turns]),
                np.repeat(np.arange(len(turns)), [len(each.rows) for each in turns]),
            )
        ]


class Ways(NamedTuple):
    """Where simulations come to."""

    leaves: Array  # i8 [f]; 0: to a node that is not there yet
    parent: Array  # i8 [f]: the node above it
    action: Array  # i8 [f]: the last one


class Descent:
    """Sends simulations down the trees, as many as each root has left."""

    def __init__(self, forest: Forest, selection: Selection, config: SearchConfig, budget: Array) -> None:
        self._forest, self._selection, self._config = forest, selection, config
        self.left = budget  # i8 [R]: simulations to come
        self._attempts = np.zeros_like(budget)
        # Luck is drawn anew each time an episode's end is reached, unless it is part of the state.
        self._redraws = config.rng != "frozen"
        self._has_tree = config.algorithm != "rollouts"

    def wave(self) -> Wave:
        """Start up to `waves` simulations of each root."""
        rows = np.flatnonzero(self.left > 0)
        phase = self._selection.phase(rows, self._config.waves)
        wave = Wave(apart=phase is not None)
        if phase is not None:
            self._start_apart(rows, phase, wave)
            return wave
        for _ in range(self._config.waves):
            if not len(rows):
                break
            action = self._selection.at_root(rows)
            child = self._forest.start(self._forest.base(rows), action)
            ways = self._walk(rows, action, child if self._has_tree else np.zeros_like(child))
            collided = self._take_off(rows, ways, wave)
            rows = rows[~collided & (self.left[rows] > 0)]
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

    def _start_apart(self, rows: Array, phase: Array, wave: Wave) -> None:
        """Simulations whose ways do not touch go down together, which is the same as one after the other."""
        starts: list[tuple[Array, Array, Array]] = []
        for turn, action in enumerate(phase.T):
            going = (action >= 0) & (self.left[rows] > turn)
            if going.any():
                root, first = rows[going], action[going]
                starts.append((root, first, self._forest.start(self._forest.base(root), first)))
        if not starts:
            return
        ways = self._walk(*(np.concatenate(column) for column in zip(*starts, strict=True)))
        begin = 0
        for root, _, _ in starts:
            mine = slice(begin, begin + len(root))
            self._take_off(root, Ways(*(column[mine] for column in ways)), wave)
            begin = mine.stop

    def _walk(self, rows: Array, action: Array, child: Array) -> Ways:
        """From the children of roots over these first actions, i4 [f], 0 where there is none, to leaves."""
        forest = self._forest
        base, going = forest.base(rows), np.arange(len(rows))
        leaves, parent = child.astype(np.int64), np.zeros_like(rows)
        while True:
            node = leaves[going]
            inside = (node > 0) & (forest.status[base[going] + node] == tree.EXPANDED)
            if not inside.any():
                return Ways(leaves, parent, action)
            going, node = going[inside], node[inside]
            at = base[going] + node
            chosen = self._selection.inside(at)
            parent[going], action[going] = node, chosen
            leaves[going] = forest.start(at, chosen)

    def _take_off(self, rows: Array, ways: Ways, wave: Wave) -> Array:
        """One simulation of each root is at its leaf; b1 [r]: those that met a leaf somebody else waits for."""
        forest, leaves = self._forest, ways.leaves
        fresh = leaves == 0
        if fresh.any():
            leaves[fresh] = forest.sprout(rows[fresh], ways.parent[fresh], ways.action[fresh])
        at = forest.base(rows) + leaves
        status = np.where(fresh, np.uint8(tree.NEW), forest.status[at])
        collided: Array = status == tree.PENDING
        if collided.any():
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
