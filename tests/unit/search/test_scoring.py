"""Formulas of selection against plain loops and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.search import SearchConfig
from asyncrl.search.scoring import completed_values, exploration_table, half_tried_scores, puct_scores, value_bonus

TINY = SearchConfig().min_span


def row(*numbers: float) -> Array:
    return np.array([numbers], np.float64)


def test_the_exploration_factor_is_the_published_one() -> None:
    """√n (c1 + ln((n + c2 + 1) / c2)), for every n up to the last."""
    table = exploration_table(SearchConfig(c1=2.0, c2=50.0), 30)
    assert len(table) == 31
    assert table[1] == pytest.approx(2.0 + math.log(52 / 50))
    assert table[30] == pytest.approx(math.sqrt(30) * (2.0 + math.log(81 / 50)))


def test_in_flight_counts_touch_the_exploration_term_alone() -> None:
    """Of two actions alike, the one with simulations in flight scores lower by the exploration term, not by value."""
    prior, q, visits = row(0.5, 0.5), row(0.3, 0.3), np.array([[2, 2]])
    factor = np.array([1.7])
    idle = puct_scores(prior, q, visits, visits, np.array([0.1]), factor, TINY)
    busy = puct_scores(prior, q, visits, visits + np.array([[0, 3]]), np.array([0.1]), factor, TINY)
    assert busy[0, 0] == idle[0, 0]
    assert idle[0, 1] - busy[0, 1] == pytest.approx(1.7 * 0.5 * (1 / 3 - 1 / 6))


def test_values_are_normalised_by_what_the_node_has_seen() -> None:
    """Without exploration: the best of all values is 1, the lowest 0, the node's own among them, unvisited ones 0."""
    scores = puct_scores(
        row(0, 0, 0, 0),
        row(-3, -7, -5, 99),
        np.array([[1, 1, 1, 0]]),
        np.ones((1, 4)),
        np.array([-9.0]),
        np.zeros(1),
        TINY,
    )
    np.testing.assert_allclose(scores, row(1.0, 1 / 3, 2 / 3, 0.0))
    scores = puct_scores(row(0, 0), row(1, 2), np.array([[1, 1]]), np.ones((1, 2)), np.array([5.0]), np.zeros(1), TINY)
    np.testing.assert_allclose(scores, row(0.0, 0.25))


def test_equal_values_do_not_divide_by_zero() -> None:
    """One value seen: nothing to tell apart, and no NaN."""
    scores = puct_scores(
        row(0.5, 0.5), row(2, 0), np.array([[1, 0]]), np.array([[1, 0]]), np.array([2.0]), np.ones(1), TINY
    )
    np.testing.assert_allclose(scores, row(0.25, 0.5))


def test_rows_do_not_see_each_other() -> None:
    """Two nodes in one call: each has its own scale, its own factor and its own estimate."""
    rng = np.random.default_rng(0)
    prior, q = rng.dirichlet(np.ones(5), 2), rng.normal(size=(2, 5)) * [[1], [100]]
    visits = np.array([[0, 3, 0, 1, 2], [5, 0, 1, 0, 0]])
    value, factor = np.array([0.5, -70.0]), np.array([2.0, 3.0])
    both = puct_scores(prior, q, visits, visits + 1, value, factor, TINY)
    mixed = completed_values(prior, q, visits, value, True)
    for i in range(2):
        one = slice(i, i + 1)
        alone = puct_scores(prior[one], q[one], visits[one], visits[one] + 1, value[one], factor[one], TINY)
        np.testing.assert_array_equal(both[one], alone)
        alone = completed_values(prior[one], q[one], visits[one], value[one], True)
        np.testing.assert_array_equal(mixed[one], alone)


def test_the_mixed_value_is_the_published_one() -> None:
    """(v + ΣN Σ P q / Σ P) / (1 + ΣN), sums over tried actions, in the place of those that were not tried."""
    prior, q = row(0.1, 0.2, 0.3, 0.4), row(5, 99, -1, 99)
    visits = np.array([[3, 0, 1, 0]])
    mixed = (2.0 + 4 * (0.1 * 5 - 0.3) / 0.4) / 5
    found = completed_values(prior, q, visits, np.array([2.0]), True)
    np.testing.assert_allclose(found, row(5, mixed, -1, mixed))
    found = completed_values(prior, q, visits, np.array([2.0]), False)
    np.testing.assert_allclose(found, row(5, 2, -1, 2))
    found = completed_values(prior, q, np.zeros((1, 4), np.int32), np.array([2.0]), True)
    np.testing.assert_allclose(found, row(2, 2, 2, 2))


def test_the_bonus_grows_with_visits() -> None:
    """(c_visit + max N) c_scale over values rescaled to [0, 1]."""
    config = SearchConfig(maxvisit_init=50, value_scale=0.1)
    bonus = value_bonus(row(-2, 0, 2), np.array([[1, 7, 0]]), config)
    np.testing.assert_allclose(bonus, row(0, 2.85, 5.7))
    np.testing.assert_allclose(value_bonus(row(3, 3), np.array([[1, 1]]), config), row(0, 0))


def test_shares_are_followed() -> None:
    """An action's score is what the policy wants of it less its share of what was started."""
    scores = half_tried_scores(row(0.6, 0.4), np.array([[2, 1]]), np.array([4]))
    np.testing.assert_allclose(scores, row(0.1, 0.15))


@pytest.mark.parametrize("num_simulations", [1, 4, 16])
def test_the_completed_policy_is_never_worse(num_simulations: int) -> None:
    """Exact values, untried actions at the policy's own value: the improved policy's value is never below it."""
    rng = np.random.default_rng(num_simulations)
    config = SearchConfig()
    for _ in range(300):
        logits, q = rng.normal(size=(1, 6)) * 2, rng.normal(size=(1, 6))
        prior = np.exp(logits) / np.exp(logits).sum()
        value = (prior * q).sum(1)
        visits = rng.multinomial(num_simulations, np.ones(6) / 6, size=1)
        improved = np.exp(logits + value_bonus(completed_values(prior, q, visits, value, False), visits, config))
        improved /= improved.sum()
        assert (improved * q).sum() >= value[0] - 1e-12


def test_small_differences_are_not_magnified_below_the_least_span() -> None:
    """With a span of 1, values that differ by 0.2 count by 0.2 in both rules; those that differ by 4 fill the scale."""
    visits, config = np.array([[1, 1]]), SearchConfig(min_span=1.0, value_scale=1.0, maxvisit_init=9.0)
    for low, high, wanted in ((0.5, 0.7, 0.2), (-1.0, 3.0, 1.0)):
        scores = puct_scores(row(0, 0), row(low, high), visits, visits, np.array([low]), np.zeros(1), 1.0)
        np.testing.assert_allclose(scores, row(0.0, wanted))
        np.testing.assert_allclose(value_bonus(row(low, high), visits, config), row(0.0, 10 * wanted))
        np.testing.assert_allclose(value_bonus(row(low, high), visits, SearchConfig()), row(0.0, 5.1))


def test_a_span_of_nothing_is_refused() -> None:
    """Equal values would be divided by it."""
    with pytest.raises(ConfigError, match="min_span"):
        SearchConfig(min_span=0.0)
