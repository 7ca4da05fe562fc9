"""ε of each environment, and what is done with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.config import ApexConfig, DQNConfig
from asyncrl.keyed_noise import row_keys, uniform
from asyncrl.learner.exploration import NUM_NOISE, Exploration, choose, ladder, legal
from asyncrl.wire.tensors import Array


def keys(slots: Any, steps: Any) -> Array:
    slots, steps = np.broadcast_arrays(np.asarray(slots), np.asarray(steps))
    return row_keys(slots.reshape(-1), steps.reshape(-1))


def epsilon(exploration: Exploration, slots: Any, steps: Any) -> Array:
    """At steps of these slots, not of the fleet."""
    return exploration.epsilon(keys(slots, steps))


def test_epsilon_at_exact_environment_steps() -> None:
    """A line over half of 1000 steps of four environments: its start, its middle, its end and beyond, to 1e-12."""
    config = DQNConfig(num_envs=4, total_timesteps=1000, start_e=1.0, end_e=0.2, exploration_fraction=0.5)
    exploration = Exploration(config)
    fleet_steps = np.array([0, 4, 100, 248, 500, 996, 5000])
    expected = [1.0, 1.0 - 0.8 * 4 / 500, 1.0 - 0.8 * 0.2, 1.0 - 0.8 * 248 / 500, 0.2, 0.2, 0.2]
    np.testing.assert_allclose(epsilon(exploration, 2, fleet_steps // 4), expected, atol=1e-12)
    for step, value in zip(fleet_steps.tolist(), expected, strict=True):
        assert exploration.mean_at(step) == pytest.approx(value, abs=1e-12)


def test_all_environments_are_on_the_same_line() -> None:
    """The slot in the key is no step: sixteen environments have one ε at a time."""
    config = DQNConfig(num_envs=16, total_timesteps=16_000)
    assert len(np.unique(epsilon(Exploration(config), np.arange(16), 70))) == 1


def test_a_line_of_no_length_is_at_its_end() -> None:
    """`exploration_fraction` 0: ε is what it is to be, from the first step on."""
    exploration = Exploration(DQNConfig(exploration_fraction=0.0, end_e=0.3))
    assert epsilon(exploration, 0, [0, 1, 10**6]).tolist() == [0.3] * 3


def test_the_ladder_of_eight() -> None:
    """The numbers of the paper's formula with ε .4 and α 7, which seed_rl and acme have as a logarithmic space."""
    known = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.0041, 0.00164, 0.00066]
    np.testing.assert_allclose(ladder(8), known, rtol=1e-2)
    paper = [0.4 ** (1 + 7 * i / 7) for i in range(8)]
    np.testing.assert_allclose(ladder(8), paper, rtol=1e-12)
    np.testing.assert_allclose(ladder(360)[[0, 359]], [0.4, 0.4**8])


def test_the_line_is_a_floor_under_the_ladder() -> None:
    """A small fleet is nowhere near greedy at first; once the line is down each slot has its own rung."""
    config = ApexConfig(num_envs=8, total_timesteps=8000, start_e=1.0, end_e=0.0, exploration_fraction=0.1)
    exploration = Exploration(config)
    np.testing.assert_array_equal(epsilon(exploration, np.arange(8), 0), np.ones(8))
    np.testing.assert_allclose(epsilon(exploration, np.arange(8), 75), np.maximum(ladder(8), 0.25))
    np.testing.assert_array_equal(epsilon(exploration, np.arange(8), 100), ladder(8))
    assert exploration.mean_at(8000) == pytest.approx(ladder(8).mean())


def test_every_row_has_a_coin_of_its_own() -> None:
    """ε = .5 and sixteen environments: the number of random actions varies by 4; with one coin for all, by 64."""
    q = np.zeros((16, 1000), np.float32)
    q[:, 0] = 1.0
    counts = []
    for step in range(4000):
        choice, _ = choose(q, None, np.full(16, 0.5), uniform(1, keys(np.arange(16), step), NUM_NOISE))
        counts.append(np.count_nonzero(choice))
    assert np.mean(counts) == pytest.approx(8.0, abs=0.15)
    assert 3.5 < np.var(counts) < 4.5


def test_random_actions_are_uniform_over_what_is_allowed() -> None:
    """χ² of 20 000 draws over the three of five that the mask allows; the others are never drawn."""
    mask = np.tile(np.array([True, False, True, True, False]), (20_000, 1))
    q = np.where(mask, 0.0, -np.inf).astype(np.float32)
    noise = uniform(3, keys(0, np.arange(20_000)), NUM_NOISE)
    choice, probability = choose(q, mask, np.ones(20_000), noise)
    counts = np.bincount(choice, minlength=5)
    assert counts[[1, 4]].tolist() == [0, 0]
    expected = 20_000 / 3
    assert ((counts[[0, 2, 3]] - expected) ** 2 / expected).sum() < 13.8  # 99.9 % of two degrees of freedom
    np.testing.assert_allclose(probability, 1 / 3)


def test_masked_actions_are_never_taken() -> None:
    """Neither greedily, where they look best, nor at random."""
    rng = np.random.default_rng(1)
    mask = rng.random((5000, 6)) < 0.4
    mask[np.arange(5000), rng.integers(0, 6, 5000)] = True
    raw = rng.normal(size=(5000, 6)).astype(np.float32) + 10.0 * ~mask
    q = np.where(mask, raw, -np.inf).astype(np.float32)
    for share in (0.0, 0.5, 1.0):
        noise = uniform(7, keys(0, np.arange(5000)), NUM_NOISE)
        choice, _ = choose(q, mask, np.full(5000, share), noise)
        assert mask[np.arange(5000), choice].all()


def test_a_mask_that_allows_nothing_allows_everything() -> None:
    """As in the heads of policies: rows without a transition have void masks."""
    found = legal(np.array([[False, False], [True, False]]))
    assert found.tolist() == [[True, True], [True, False]]


def test_probabilities_are_those_of_the_mixture() -> None:
    """Two of three allowed, ε = .3: .85 for the best, .15 for the other; and frequencies agree within 3 σ."""
    num = 40_000
    mask = np.tile(np.array([True, True, False]), (num, 1))
    q = np.tile(np.array([1.0, 2.0, -np.inf], np.float32), (num, 1))
    choice, probability = choose(q, mask, np.full(num, 0.3), uniform(5, keys(0, np.arange(num)), NUM_NOISE))
    np.testing.assert_allclose(probability[choice == 1], 0.85)
    np.testing.assert_allclose(probability[choice == 0], 0.15)
    assert abs(np.mean(choice == 0) - 0.15) < 3 * np.sqrt(0.15 * 0.85 / num)


def test_the_end_of_the_line_is_for_whoever_has_no_steps() -> None:
    """Evaluation counts from 0 again, and is not random for that."""
    exploration = Exploration(DQNConfig(end_e=0.01))
    assert exploration.at_the_end(keys(0, [0, 5])).tolist() == [0.01, 0.01]
