"""From a finished search to an action: what is played, with which probability, and what is learned from.

Invariants: the target is neither sharpened by the temperature nor mixed with the random actions, and has nothing on
illegal ones (test_the_target_knows_no_temperature); what is played is drawn from `behavior`, where that is known
(test_actions_are_drawn_from_the_behavior_that_is_told).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from asyncrl.records import Array
from asyncrl.search.config import SearchConfig
from asyncrl.search.tree import Tree


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found at one root. A actions; where they were sampled, `proposed` says which they are."""

    action: int  # index of the action to play
    visits: Array  # i8 [A]: simulations that came back
    action_weights: Array  # f8 [A]: the policy that the search recommends: a training target
    q: Array  # f8 [A]: mean return; NaN where nothing came back
    root_value: float  # mean of the root's own value and of all returns
    behavior: Array | None  # f8 [A]: probabilities that `action` was drawn with; None: Gumbel play, nobody knows
    proposed: list[Array]  # per action leaf [A, *shape] where actions are sampled, else []
    tree: Tree
    failures: Counter[str]  # simulations that failed, by what went wrong

    @property
    def num_simulations(self) -> int:
        """Those that came back, in this search and in those whose tree it went on with."""
        return int(self.visits.sum())

    @property
    def chosen(self) -> list[Array]:
        """Per action leaf [*shape]: the action to play; of enumerated ones the index."""
        return [leaf[self.action] for leaf in self.proposed] or [np.array(self.action)]


def sharpened(weights: Array, temperature: float) -> Array:
    """f8 [A] ∝ weights ** (1 / temperature), for temperatures above 0."""
    with np.errstate(divide="ignore"):
        logs = np.log(weights) / temperature
    powers = np.exp(logs - logs.max())
    shares: Array = powers / powers.sum()
    return shares


def behavior_of(best: int, weights: Array, mask: Array, config: SearchConfig) -> Array:
    """f8 [A]: probabilities of being played, given what is best and what the weights are."""
    if config.temperature > 0:
        shares = sharpened(weights, config.temperature)
    else:
        shares = np.zeros(len(weights))
        shares[best] = 1.0
    shares = (1 - config.epsilon) * shares
    shares[mask] += config.epsilon / np.count_nonzero(mask)
    return shares


def play(
    best: int, weights: Array, mask: Array, config: SearchConfig, rng: np.random.Generator
) -> tuple[int, Array | None]:
    """An action, and the probabilities it was drawn with where they are known."""
    behavior = behavior_of(best, weights, mask, config)
    if config.temperature == 0 and config.epsilon == 0:
        action = best
    else:
        action = int(rng.choice(len(behavior), p=behavior / behavior.sum()))
    # The best action of a Gumbel search depends on noise that the weights do not show.
    hidden = config.algorithm == "gumbel" and config.gumbel_scale > 0 and config.temperature == 0
    return action, None if hidden else behavior
