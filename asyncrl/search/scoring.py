"""The formulas of selection, row by row over arrays [r, A]: PUCT, and the completed values of Gumbel search.

Invariants: values enter as they are, simulations in flight change the exploration term alone
(test_in_flight_counts_touch_the_exploration_term_alone); values are compared on the scale that their node has seen, on
which unvisited actions stand lowest (test_values_are_normalised_by_what_the_node_has_seen).
"""

from __future__ import annotations

import math

import numpy as np

from asyncrl.records import Array
from asyncrl.search.config import SearchConfig


def exploration_table(config: SearchConfig, most: int) -> Array:
    """f8 [most + 1]: the factor of PUCT's exploration term, by simulations that a node has had or started."""
    c1, c2 = config.c1, config.c2
    return np.array([math.sqrt(n) * (c1 + math.log((n + c2 + 1) / c2)) for n in range(most + 1)])


def puct_scores(
    prior: Array, q: Array, visits: Array, started: Array, value: Array, factor: Array, min_span: float
) -> Array:
    """f8 [r, A]. `value` f8 [r] of the node itself, `factor` f8 [r] from the table; the other arrays are [r, A]."""
    tried = visits > 0
    low = np.minimum(np.where(tried, q, np.inf).min(1), value)[:, None]
    high = np.maximum(np.where(tried, q, -np.inf).max(1), value)[:, None]
    normal = np.where(tried, (q - low) / np.maximum(high - low, min_span), 0.0)
    scores: Array = normal + factor[:, None] * prior / (1 + started)
    return scores


def completed_values(prior: Array, q: Array, visits: Array, raw_value: Array, mixed: bool) -> Array:
    """f8 [r, A]: q, and for actions that were not tried an estimate.

    `mixed`: the mean of the node's own value and of the values seen, weighted by prior; otherwise the own value.
    """
    tried = visits > 0
    if mixed:
        weight = np.where(tried, prior, 0.0)
        total = visits.sum(1)
        seen = (weight * np.where(tried, q, 0.0)).sum(1) / np.maximum(weight.sum(1), np.finfo(np.float64).tiny)
        raw_value = (raw_value + total * seen) / (1 + total)
    return np.where(tried, q, raw_value[:, None])


def value_bonus(completed: Array, visits: Array, config: SearchConfig) -> Array:
    """f8 [r, A]: σ, what values add to logits, rescaled to [0, 1] and growing with visits."""
    low, high = completed.min(1, keepdims=True), completed.max(1, keepdims=True)
    scale = (config.maxvisit_init + visits.max(1, keepdims=True)) * config.value_scale
    bonus: Array = scale * ((completed - low) / np.maximum(high - low, config.min_span))
    return bonus


def half_tried_scores(improved: Array, started: Array, node_started: Array) -> Array:
    """f8 [r, A]: how far each action is behind the share of visits that `improved` f8 [r, A] wants it to have."""
    scores: Array = improved - started / node_started[:, None]
    return scores
