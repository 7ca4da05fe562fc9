"""What came back from the simulator becomes part of the trees.

Invariants: every simulation of a wave is settled once, whatever became of it (test_failed_simulations_leave_nothing);
in open loop an end that is drawn at one time is none at another, so that ends are no nodes there
(test_open_loop_draws_luck_anew_each_time).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncrl.records import Array
from asyncrl.search import tree
from asyncrl.search.config import SearchConfig
from asyncrl.search.descent import Descent, Flights, Wave
from asyncrl.search.forest import Forest, Growth
from asyncrl.search.judging import Judged
from asyncrl.search.simulator import OK, Expansion, Outcome


class Arrivals(NamedTuple):
    """A wave's outcomes as columns; F of them, in the order of the wave."""

    outcomes: Sequence[Outcome]
    num_steps: list[int]  # how many were asked for
    names: Array  # i8 [F]: of the states that were kept; 0: none
    ok: Array  # b1 [F]
    reward: Array  # f8 [F]: of the last step
    terminated: Array  # b1 [F]
    truncated: Array  # b1 [F]
    to_play: Array  # i4 [F]; 0 where there is a single player
    rollout_return: Array  # f8 [F]

    def part(self, rows: slice | Array) -> Arrivals:
        numbers = np.arange(len(self.outcomes))[rows].tolist()
        outcomes, num_steps = [self.outcomes[i] for i in numbers], [self.num_steps[i] for i in numbers]
        return Arrivals(outcomes, num_steps, *(column[rows] for column in self[2:]))


def arrivals_of(expansions: Sequence[Expansion], outcomes: Sequence[Outcome], num_actions: int) -> Arrivals:
    """Outcomes that make no sense count as failed ones. `num_actions`: of which masks are; 0: they are of no list."""
    checked = [_checked(e, o, num_actions) for e, o in zip(expansions, outcomes, strict=True)]
    return Arrivals(
        checked,
        [_num_steps(expansion) for expansion in expansions],
        np.array([(e.keep_as or 0) if o.kept else 0 for e, o in zip(expansions, checked, strict=True)], np.int64),
        np.array([o.status == OK for o in checked], np.bool_),
        np.array([o.rewards[-1] if o.rewards else 0.0 for o in checked], np.float64),
        np.array([o.terminated for o in checked], np.bool_),
        np.array([o.truncated and not o.terminated for o in checked], np.bool_),
        np.array([o.to_play or 0 for o in checked], np.int32),
        np.array([o.rollout_return for o in checked], np.float64),
    )


def _num_steps(expansion: Expansion) -> int:
    return len(expansion.actions[0]) if expansion.actions else 0


def _checked(expansion: Expansion, outcome: Outcome, num_actions: int) -> Outcome:
    if outcome.status != OK:
        return outcome
    ended, num_steps = outcome.terminated or outcome.truncated, _num_steps(expansion)
    wrong = ""
    if not (0 < len(outcome.rewards) <= num_steps) or (len(outcome.rewards) < num_steps and not ended):
        wrong = "bad_number_of_steps"
    elif not (all(map(math.isfinite, outcome.rewards)) and math.isfinite(outcome.rollout_return)):
        wrong = "reward_not_finite"
    elif outcome.mask is not None and not ended and num_actions:
        if np.shape(outcome.mask) != (num_actions,):
            wrong = "bad_mask"
        elif not np.any(outcome.mask):
            wrong = "no_legal_action"
    return Outcome(wrong) if wrong else outcome


class Settler:
    """Puts arrivals where their flights lead."""

    def __init__(self, forest: Forest, descent: Descent, config: SearchConfig) -> None:
        self._forest, self._descent, self._config = forest, descent, config
        self._makes_nodes = config.algorithm != "rollouts"
        self._ends_stay = config.rng != "open_loop"

    def settle(self, wave: Wave, arrivals: Arrivals, judged: Judged | None, which: Array) -> None:
        """`judged` has the states of the arrivals `which` i8 [J], ascending."""
        place = np.full(len(arrivals.ok), -1, np.int64)
        place[which] = np.arange(len(which))
        first = 0
        for flights in wave.together():
            mine = slice(first, first + len(flights.rows))
            self._settle_together(flights, arrivals.part(mine), judged, place[mine])
            first = mine.stop

    def _settle_together(self, flights: Flights, arrived: Arrivals, judged: Judged | None, place: Array) -> None:
        forest, ok = self._forest, arrived.ok
        if not ok.all():
            failed = flights.part(~ok)
            forest.fail(failed.rows, failed.leaves)
            self._descent.restore(failed)
            flights, arrived, place = flights.part(ok), arrived.part(ok), place[ok]
        if not len(flights.rows):
            return
        value = self._values(arrived, judged, place)
        ends = self._lay_steps(flights, arrived)
        at = forest.base(flights.rows) + flights.leaves
        whole = (ends == flights.leaves) & self._makes_nodes
        grown = whole & ~(arrived.terminated | arrived.truncated)
        ended = whole & ~grown & self._ends_stay
        if grown.any():
            assert judged is not None
            forest.expand(at[grown], self._growth(arrived.part(grown), judged, place[grown], value[grown]))
        if ended.any():
            status = np.where(arrived.terminated[ended], tree.TERMINAL, tree.TRUNCATED)
            forest.end(at[ended], status, value[ended])
        forest.back_up(flights.rows, ends, value, flights.turn)
        gone = ~(grown | ended)
        if gone.any():
            forest.wither(flights.rows[gone], flights.leaves[gone])

    def _values(self, arrived: Arrivals, judged: Judged | None, place: Array) -> Array:
        """f8 [f]: what each simulation's last state is worth."""
        if self._config.leaf == "rollout":
            value = np.where(arrived.truncated, 0.0, arrived.rollout_return)
        elif judged is None:
            value = np.zeros(len(place))
        else:
            value = np.where(place >= 0, judged.value[place], 0.0)
        return np.where(arrived.terminated, 0.0, value)

    def _growth(self, arrived: Arrivals, judged: Judged, place: Array, value: Array) -> Growth:
        actions = [leaf[place] for leaf in judged.actions]
        return Growth(judged.logits[place], judged.mask[place], value, arrived.to_play, arrived.names, actions)

    # ------------------------------------------------------------------------------------------------ steps

    def _lay_steps(self, turn: Flights, arrived: Arrivals) -> Array:
        """Rewards and discounts onto the edges; i8 [f]: the node after the last step that was executed.

        That is the leaf, or on a way of several steps a node above it where the episode ended sooner this time.
        """
        forest = self._forest
        edge = forest.edge_above(turn.rows, turn.leaves)
        above = forest.base(turn.rows) + forest.parent[forest.base(turn.rows) + turn.leaves]
        forest.flat_reward[edge] = arrived.reward
        discount = self._discount(forest.to_play[above], arrived.to_play)
        forest.flat_discount[edge] = np.where(arrived.terminated, 0.0, discount)
        ends = turn.leaves.copy()
        for i, num_steps in enumerate(arrived.num_steps):
            if num_steps > 1:
                ends[i] = self._lay_way(int(turn.rows[i]), int(turn.leaves[i]), num_steps, arrived.outcomes[i])
        return ends

    def _lay_way(self, row: int, leaf: int, num_steps: int, outcome: Outcome) -> int:
        forest = self._forest
        base, node = row * forest.num_nodes, leaf
        nodes = [leaf]  # of the steps, the last one first
        for _ in range(num_steps - 1):
            node = int(forest.parent[base + node])
            nodes.append(node)
        nodes.reverse()
        executed = len(outcome.rewards)
        for node in nodes[executed:]:  # steps that were not executed were never started
            up = int(forest.parent[base + node])
            forest.edge_started[base + up, forest.parent_action[base + node]] -= 1
            forest.node_started[base + up] -= 1
        for step, (node, reward) in enumerate(zip(nodes[:executed], outcome.rewards, strict=True), 1):
            up, action = int(forest.parent[base + node]), int(forest.parent_action[base + node])
            last = step == executed
            to_play = (outcome.to_play or 0) if last else int(forest.to_play[base + node])
            discount = float(self._discount(forest.to_play[base + up], np.int32(to_play)))
            forest.reward[base + up, action] = reward
            forest.discount[base + up, action] = 0.0 if last and outcome.terminated else discount
        return nodes[executed - 1]

    def _discount(self, before: Array, after: Array | np.int32) -> Array:
        """γ, or -γ where the turn goes to the other player."""
        gamma = self._config.discount
        return np.where(before == after, gamma, -gamma)
