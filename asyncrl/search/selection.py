"""Which action a simulation takes: at the root, and inside the tree; and what is played in the end.

Ties go to the lowest index, so that a search is a function of its seed.

Invariants: no illegal action is ever taken, anywhere in the tree (test_illegal_actions_are_never_tried); Gumbel tries
no more actions than are legal, and loses no simulation to others (test_gumbel_wastes_nothing_where_few_are_legal); the
root's noise touches neither the stored prior nor illegal actions (test_noise_stays_legal_and_out_of_the_prior).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from asyncrl.records import Array
from asyncrl.search import scoring
from asyncrl.search.config import SearchConfig
from asyncrl.search.forest import Forest, softmax
from asyncrl.search.halving import considered_visits

Rngs = Sequence[np.random.Generator]
LOW_SCORE = -1e9  # what no legal action's score falls below


class Selection(Protocol):
    """One rule of selection, for all trees of a forest."""

    def at_root(self, rows: Array) -> Array:
        """i8 [r]: the next action of these roots."""
        ...

    def inside(self, at: Array) -> Array:
        """i8 [r]: the next action of these nodes."""
        ...

    def phase(self, rows: Array, most: int) -> Array | None:
        """i8 [r, up to `most`]: where these roots' next simulations go at the same time, -1 behind the last of a root.

        All go different ways: they have nothing in common but the root. None: there are no phases, and each simulation
        goes where `at_root` says once the one before it is under way.
        """
        ...

    def best(self, row: int) -> int:
        """The action to play."""
        ...

    def weights(self, row: int) -> Array:
        """f8 [A]: the policy that the search recommends, without noise: a training target."""
        ...


def make_selection(forest: Forest, config: SearchConfig, rngs: Rngs) -> Selection:
    """`rngs`: one generator for each root."""
    if config.algorithm == "gumbel":
        return Gumbel(forest, config, rngs)
    if config.algorithm == "rollouts":
        return RoundRobin(forest)
    return Puct(forest, config, rngs)


class Puct:
    """Prior and visits decide where to look, normalised values where to stay."""

    def __init__(self, forest: Forest, config: SearchConfig, rngs: Rngs) -> None:
        self._forest, self._min_span = forest, config.min_span
        roots = forest.base(np.arange(forest.num_roots))
        most = int(forest.node_started[roots].max()) + config.num_simulations + 1
        self._factor = scoring.exploration_table(config, most)
        self._root_prior = forest.prior[roots]
        if config.noise_fraction > 0:
            for row, rng in enumerate(rngs):
                mask = forest.mask[roots[row]]
                self._root_prior[row] = noisy(self._root_prior[row], mask, config, rng)

    def at_root(self, rows: Array) -> Array:
        return self._pick(self._forest.base(rows), self._root_prior[rows])

    def inside(self, at: Array) -> Array:
        return self._pick(at, self._forest.prior[at])

    def phase(self, rows: Array, most: int) -> Array | None:
        return None

    def best(self, row: int) -> int:
        """Most visits; then the higher value, then the higher prior."""
        at = row * self._forest.num_nodes
        visits, q, prior = self._forest.edge_visits[at], self._forest.q[at], self._forest.prior[at]
        legal = np.flatnonzero(self._forest.mask[at]).tolist()
        return int(max(legal, key=lambda a: (visits[a], q[a], prior[a], -a)))

    def weights(self, row: int) -> Array:
        """Shares of visits; the prior where no simulation came back."""
        at = row * self._forest.num_nodes
        visits = self._forest.edge_visits[at]
        shares: Array = visits / visits.sum() if visits.any() else self._forest.prior[at].copy()
        return shares

    def _pick(self, at: Array, prior: Array) -> Array:
        forest = self._forest
        scores = scoring.puct_scores(
            prior,
            forest.q[at],
            forest.edge_visits[at],
            forest.edge_started[at],
            forest.value[at],
            self._factor[forest.node_started[at]],
            self._min_span,
        )
        choice: Array = np.where(forest.mask[at], scores, -np.inf).argmax(1)
        return choice


class Gumbel:
    """Sequential halving over a random few actions of the root; inside, visits follow the improved policy."""

    def __init__(self, forest: Forest, config: SearchConfig, rngs: Rngs) -> None:
        self._forest, self._config = forest, config
        roots = forest.base(np.arange(forest.num_roots))
        self._noise = np.zeros((forest.num_roots, forest.num_actions))
        if config.gumbel_scale > 0:
            for row, rng in enumerate(rngs):
                self._noise[row] = config.gumbel_scale * rng.gumbel(size=forest.num_actions)
        considered = np.minimum(config.max_considered, forest.mask[roots].sum(1)).tolist()
        # An entry behind the last simulation ends its phase.
        self._plan = np.array([(*considered_visits(m, config.num_simulations), -1) for m in considered], np.int64)

    def at_root(self, rows: Array) -> Array:
        first: Array = self.phase(rows, 1)[:, 0]
        return first

    def inside(self, at: Array) -> Array:
        forest = self._forest
        improved = softmax(forest.logits[at] + self._bonus(at))
        scores = scoring.half_tried_scores(improved, forest.edge_started[at], forest.node_started[at])
        choice: Array = np.where(forest.mask[at], scores, -np.inf).argmax(1)
        return choice

    def phase(self, rows: Array, most: int) -> Array:
        """A phase lasts as long as what is tried next was tried as often: no action comes twice in it."""
        at = self._forest.base(rows)
        started = self._forest.node_started[at] - 1
        planned = self._plan[rows, started][:, None]
        scores = self._scores(rows, self._forest.edge_started[at] == planned)
        best_first = np.argsort(-scores, axis=1, kind="stable")[:, :most]
        ahead = np.minimum(started[:, None] + np.arange(best_first.shape[1]), self._plan.shape[1] - 1)
        return np.where(self._plan[rows[:, None], ahead] == planned, best_first, -1)

    def best(self, row: int) -> int:
        visits = self._forest.edge_visits[row * self._forest.num_nodes]
        return int(self._scores(np.array([row]), (visits == visits.max())[None]).argmax())

    def weights(self, row: int) -> Array:
        at = np.array([row * self._forest.num_nodes])
        improved: Array = softmax(self._forest.logits[at] + self._bonus(at))[0]
        return improved

    def _bonus(self, at: Array) -> Array:
        forest, visits = self._forest, self._forest.edge_visits[at]
        completed = scoring.completed_values(
            forest.prior[at], forest.q[at], visits, forest.raw_value[at], self._config.use_mixed_value
        )
        return scoring.value_bonus(completed, visits, self._config)

    def _scores(self, rows: Array, candidates: Array) -> Array:
        """f8 [r, A]: of each root's candidates b1 [r, A] by noise, prior and value; of others -inf."""
        at = self._forest.base(rows)
        logits = self._forest.logits[at]
        scores = self._noise[rows] + (logits - logits.max(1, keepdims=True)) + self._bonus(at)
        return np.where(candidates & self._forest.mask[at], np.maximum(scores, LOW_SCORE), -np.inf)


class RoundRobin:
    """Every legal action of the root equally often; the one that returned most is played."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest

    def at_root(self, rows: Array) -> Array:
        at = self._forest.base(rows)
        choice: Array = np.where(self._forest.mask[at], self._forest.edge_started[at], np.iinfo(np.int32).max).argmin(1)
        return choice

    def inside(self, at: Array) -> Array:
        raise AssertionError("best-of-rollouts has no tree below its root")

    def phase(self, rows: Array, most: int) -> Array | None:
        return None

    def best(self, row: int) -> int:
        at = row * self._forest.num_nodes
        tried = self._forest.edge_visits[at] > 0
        if not tried.any():
            return int(self._forest.prior[at].argmax())
        return int(np.where(tried, self._forest.q[at], -np.inf).argmax())

    def weights(self, row: int) -> Array:
        weights = np.zeros(self._forest.num_actions)
        weights[self.best(row)] = 1.0
        return weights


def noisy(prior: Array, mask: Array, config: SearchConfig, rng: np.random.Generator) -> Array:
    """f8 [A]: the prior with its share of Dirichlet noise over legal actions."""
    legal = np.flatnonzero(mask)
    alpha = 10 / len(legal) if config.noise_alpha is None else config.noise_alpha
    mixed = (1 - config.noise_fraction) * prior
    mixed[legal] += config.noise_fraction * rng.dirichlet(np.full(len(legal), alpha))
    return mixed
