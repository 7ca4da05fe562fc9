"""Actions and targets out of a finished search."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncrl.search import SearchConfig, SearchResult, search
from asyncrl.search.playing import behavior_of, sharpened
from tests.unit.search.toys import ONE_STATE, Bandit, Fixed

MASK = np.array([True, True, False, True])


def pull_often(num_roots: int, **settings: Any) -> list[SearchResult]:
    config = SearchConfig(num_simulations=24, **settings)
    evaluate = Fixed([0.0, 0.5, 3.0, 0.2])
    roots = [replace(ONE_STATE, mask=MASK)] * num_roots
    return asyncio.run(search(roots, Bandit([1.0, 1.2, 9.0, 0.4]), evaluate, config, np.random.default_rng(0)))


def pull(**settings: Any) -> SearchResult:
    return pull_often(1, **settings)[0]


def test_sharpened_by_hand() -> None:
    """N^(1/τ), normalised; zeros stay zeros, and nothing overflows at small τ."""
    weights = np.array([0.5, 0.25, 0.0, 0.25])
    np.testing.assert_allclose(sharpened(weights, 1.0), weights)
    np.testing.assert_allclose(sharpened(weights, 0.5), [2 / 3, 1 / 6, 0, 1 / 6])
    np.testing.assert_allclose(sharpened(weights, 1e-4), [1, 0, 0, 0], atol=1e-12)


def test_the_random_share_is_legal() -> None:
    """ε is spread over legal actions alone."""
    config = SearchConfig(epsilon=0.3)
    shares = behavior_of(1, np.array([0.5, 0.5, 0.0, 0.0]), MASK, config)
    np.testing.assert_allclose(shares, [0.1, 0.8, 0.0, 0.1])
    config = SearchConfig(epsilon=0.3, temperature=1.0)
    np.testing.assert_allclose(behavior_of(1, np.array([0.5, 0.5, 0.0, 0.0]), MASK, config), [0.45, 0.45, 0, 0.1])


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_the_target_knows_no_temperature(algorithm: Any) -> None:
    """Whatever is played, the target is the same, and has nothing on illegal actions."""
    plain = pull(algorithm=algorithm)
    for settings in ({"temperature": 0.25}, {"temperature": 3.0}, {"epsilon": 0.5}):
        other = pull(algorithm=algorithm, **settings)
        np.testing.assert_array_equal(other.action_weights, plain.action_weights)
    assert plain.action_weights.sum() == pytest.approx(1.0)
    assert plain.action_weights[2] == 0
    if algorithm == "puct":
        np.testing.assert_array_equal(plain.action_weights, plain.visits / 24)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"epsilon": 0.4},
        {"temperature": 2.0, "epsilon": 0.2},
        {"algorithm": "gumbel", "temperature": 1.0, "gumbel_scale": 0.0},
    ],
)
def test_actions_are_drawn_from_the_behavior_that_is_told(settings: dict[str, Any]) -> None:
    """600 roots that differ by their seed alone: as many of each action as their behaviour says."""
    results = pull_often(600, **settings)
    behavior = results[0].behavior
    assert behavior is not None
    assert behavior.sum() == pytest.approx(1.0)
    assert behavior[2] == 0
    counts = np.bincount([result.action for result in results], minlength=4)
    spread = np.sqrt(600 * behavior * (1 - behavior)) + 1e-9
    assert (abs(counts - 600 * behavior) / spread).max() < 4


def test_without_temperature_the_best_is_played() -> None:
    """Most visits, then value, then prior; its probability is 1."""
    result = pull()
    assert result.action == result.visits.argmax()
    assert result.behavior is not None
    assert result.behavior[result.action] == 1.0


def test_gumbel_play_has_no_known_probability() -> None:
    """Noise that nobody sees decides: the behaviour is not told, unless there is no noise or a temperature."""
    assert pull(algorithm="gumbel").behavior is None
    assert pull(algorithm="gumbel", gumbel_scale=0.0).behavior is not None
    assert pull(algorithm="gumbel", temperature=1.0).behavior is not None


def test_ties_in_visits_go_to_the_higher_value() -> None:
    """As many visits each: what returned more is played; where that is equal, the prior decides."""
    config = SearchConfig(num_simulations=2, c1=1000.0)
    for rewards, logits, best in (
        ([1.0, 2.0], [0.1, 0.0], 1),
        ([2.0, 2.0], [0.0, 0.1], 1),
        ([2.0, 2.0], [0.0, 0.0], 0),
    ):
        [result] = asyncio.run(search([ONE_STATE], Bandit(rewards), Fixed(logits), config, np.random.default_rng(0)))
        assert result.visits.tolist() == [1, 1]
        assert result.action == best


def test_what_was_not_tried_has_no_value() -> None:
    """q is NaN there, so that nobody takes it for 0."""
    result = pull(c1=0.0)
    assert np.isnan(result.q[result.visits == 0]).all()
    assert np.isfinite(result.q[result.visits > 0]).all()


def test_an_enumerated_choice_is_its_index() -> None:
    """`chosen` is one leaf, the number of the action."""
    result = pull()
    assert [leaf.tolist() for leaf in result.chosen] == [result.action]
