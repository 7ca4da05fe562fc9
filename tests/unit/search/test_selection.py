"""Which actions are taken: masks, noise, and Gumbel's plan."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.search import SearchConfig, SearchResult, search
from asyncrl.search.forest import Forest, Growth
from asyncrl.search.selection import Gumbel, Puct, noisy
from tests.unit.search.toys import ONE_STATE, Bandit, Fixed, Toy, ToySimulator


def pull(
    rewards: list[float], logits: list[float], mask: list[bool] | None = None, value: float = 0.0, **settings: Any
) -> SearchResult:
    """A search over one step."""
    root = replace(ONE_STATE, mask=None if mask is None else np.array(mask))
    config = SearchConfig(**settings)
    evaluate = Fixed(logits, value)
    [result] = asyncio.run(search([root], Bandit(rewards), evaluate, config, np.random.default_rng(1)))
    return result


@settings(max_examples=60)
@given(
    st.integers(0, 999),
    st.sampled_from(["puct", "gumbel"]),
    st.sampled_from(["frozen", "resample", "open_loop"]),
    st.integers(1, 6),
)
def test_illegal_actions_are_never_tried(seed: int, algorithm: Any, rng: Any, waves: int) -> None:
    """Half of all actions are illegal, everywhere: the world raises where one is taken, and it never does."""
    toy = Toy(seed, 5, illegal=0.6, ends=0.1)
    config = SearchConfig(algorithm=algorithm, num_simulations=80, waves=waves, rng=rng, noise_fraction=0.5)
    simulator = ToySimulator(toy)
    [result] = asyncio.run(search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(seed)))
    legal = np.array(toy.mask(()))
    assert legal[result.action]
    for shares in (result.visits, result.action_weights):
        assert (shares[~legal] == 0).all()
    assert result.behavior is None or (result.behavior[~legal] == 0).all()


def test_the_first_pick_is_the_best_of_the_prior() -> None:
    """The root counts its own evaluation as a visit, so that the prior speaks from the first simulation on."""
    result = pull([0, 0, 0, 0], [0.0, 0.5, 2.0, 0.1], num_simulations=1)
    assert result.visits.tolist() == [0, 0, 1, 0]


def test_ties_go_to_the_lowest_index() -> None:
    """Nothing tells the actions apart: they are taken in order."""
    result = pull([0, 0, 0], [0, 0, 0], num_simulations=2)
    assert result.visits.tolist() == [1, 1, 0]


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_where_all_rewards_are_negative_the_best_is_visited_most(algorithm: Any) -> None:
    """No value of 0 is made up for actions that were not tried: the least bad one wins."""
    result = pull([-5, -3, -4, -9], [0, 0, 0, 0], algorithm=algorithm, num_simulations=60, gumbel_scale=0.0, value=-5.0)
    assert result.action == result.visits.argmax() == 1


@settings(max_examples=40)
@given(st.integers(0, 999), st.sampled_from(["puct", "gumbel"]), st.permutations(range(4)))
def test_permuted_actions_get_permuted_visits(seed: int, algorithm: Any, order: list[int]) -> None:
    """Names of actions mean nothing."""
    rng = np.random.default_rng(seed)
    rewards, logits = rng.normal(size=4), rng.normal(size=4)
    one = pull(rewards.tolist(), logits.tolist(), algorithm=algorithm, num_simulations=33, gumbel_scale=0.0)
    other = pull(
        rewards[order].tolist(), logits[order].tolist(), algorithm=algorithm, num_simulations=33, gumbel_scale=0.0
    )
    assert one.visits[order].tolist() == other.visits.tolist()


@settings(max_examples=40)
@given(st.integers(0, 999), st.sampled_from(["puct", "gumbel"]), st.sampled_from([2.0**-9, 2.0, 2.0**20]))
def test_scaled_rewards_get_the_same_visits(seed: int, algorithm: Any, scale: float) -> None:
    """The size of rewards and values means nothing either."""
    rng = np.random.default_rng(seed)
    rewards, logits, value = rng.normal(size=4), rng.normal(size=4).tolist(), float(rng.normal())
    fixed: dict[str, Any] = {"algorithm": algorithm, "num_simulations": 33, "gumbel_scale": 0.0}
    config = SearchConfig(**fixed)
    found = [
        asyncio.run(
            search(
                [ONE_STATE], Bandit((rewards * k).tolist()), Fixed(logits, value * k), config, np.random.default_rng(0)
            )
        )[0].visits.tolist()
        for k in (1.0, scale)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_swapped_players_get_the_same_visits(algorithm: Any) -> None:
    """In a game of two, everybody's rewards are their own: who is called 0 and who 1 means nothing."""

    class Swapped(Toy):
        def to_play(self, path: tuple[int, ...]) -> int | None:
            player = super().to_play(path)
            return None if player is None else 1 - player

    config = SearchConfig(algorithm=algorithm, num_simulations=120, rng="frozen")
    found = []
    for world in (Toy(4, 3, players=2), Swapped(4, 3, players=2)):
        [result] = asyncio.run(
            search([world.root()], ToySimulator(world), world.evaluate, config, np.random.default_rng(0))
        )
        found.append(result)
    assert found[0].visits.tolist() == found[1].visits.tolist()
    assert found[0].root_value == found[1].root_value


# ---------------------------------------------------------------------------------------------------- noise


def planted(num_actions: int, mask: list[bool], logits: list[float], roots: int = 1) -> Forest:
    forest = Forest(roots, 2, num_actions)
    growth = Growth(
        np.tile(np.array(logits), (roots, 1)),
        np.tile(np.array(mask), (roots, 1)),
        np.zeros(roots),
        np.zeros(roots, np.int32),
        np.zeros(roots, np.int64),
        [],
    )
    forest.expand(forest.base(np.arange(roots)), growth)
    return forest


def test_noise_stays_legal_and_out_of_the_prior() -> None:
    """Dirichlet noise sums to 1 over legal actions; the stored prior is clean, also after the second search."""
    mask = np.array([True, False, True, True, False])
    config = SearchConfig(noise_fraction=0.25)
    forest = planted(5, mask.tolist(), [1.0, 5.0, 0.0, 0.0, 2.0])
    clean = forest.prior[0].copy()
    for seed in range(20):
        mixed = noisy(clean, mask, config, np.random.default_rng(seed))
        assert mixed.sum() == pytest.approx(1.0)
        assert (mixed[~mask] == 0).all()
        assert (mixed >= 0.75 * clean).all()
        Puct(forest, config, [np.random.default_rng(seed)])
        np.testing.assert_array_equal(forest.prior[0], clean)


def test_noise_is_spread_by_the_number_of_legal_actions() -> None:
    """Default α = 10 / legal: the variance of the noise is that of the symmetric Dirichlet distribution."""
    mask = np.array([True] * 5 + [False] * 5)
    config = SearchConfig(noise_fraction=1.0)
    draws = np.array([noisy(np.zeros(10), mask, config, np.random.default_rng(seed)) for seed in range(4000)])
    variance = (1 / 5) * (4 / 5) / (10 + 1)
    assert draws[:, :5].var() == pytest.approx(variance, rel=0.1)


def test_two_searches_begin_from_the_same_clean_prior() -> None:
    """Noise moves visits, and is not in the target's prior of the next search."""
    toy = Toy(8, 4, illegal=0.0)
    config = SearchConfig(num_simulations=30, noise_fraction=0.9)
    results = [
        asyncio.run(search([toy.root()], ToySimulator(toy), toy.evaluate, config, np.random.default_rng(seed)))[0]
        for seed in (1, 2)
    ]
    np.testing.assert_array_equal(results[0].tree.prior[0], results[1].tree.prior[0])
    assert results[0].visits.tolist() != results[1].visits.tolist()


# ---------------------------------------------------------------------------------------------------- Gumbel


def test_gumbel_wastes_nothing_where_few_are_legal() -> None:
    """Three legal actions of twenty, 16 considered: every simulation goes to one of the three, in their own halving."""
    mask = [a in (2, 3, 11) for a in range(20)]
    result = pull([float(a) for a in range(20)], [0.0] * 20, mask, algorithm="gumbel", num_simulations=50)
    assert sorted(result.visits.tolist())[-3:] == [8, 21, 21]
    assert result.visits.sum() == 50
    assert result.visits[11] == 21


def test_gumbel_considers_as_many_as_it_is_told() -> None:
    """m = 4 of 10: four actions are visited, by the published list."""
    result = pull([0.0] * 10, [0.0] * 10, algorithm="gumbel", num_simulations=16, max_considered=4)
    assert sorted(result.visits.tolist())[-4:] == [2, 2, 6, 6]


def test_gumbel_without_noise_follows_the_prior() -> None:
    """gumbel_scale = 0: the considered actions are the best of the prior."""
    result = pull(
        [0.0] * 6, [0, 3, 1, 5, 2, 4], algorithm="gumbel", num_simulations=3, max_considered=3, gumbel_scale=0
    )
    assert result.visits.tolist() == [0, 1, 0, 1, 0, 1]


def test_gumbel_noise_is_drawn_without_replacement_by_the_prior() -> None:
    """With one simulation, actions are tried as often as the prior has them: the Gumbel-max trick."""
    prior = np.array([0.5, 0.3, 0.2])
    forest = planted(3, [True] * 3, np.log(prior).tolist(), roots=3000)
    config = SearchConfig(algorithm="gumbel", num_simulations=1)
    selection = Gumbel(forest, config, [np.random.default_rng(seed) for seed in range(3000)])
    counts = np.bincount(selection.at_root(np.arange(3000)), minlength=3)
    deviations = (counts - 3000 * prior) / np.sqrt(3000 * prior * (1 - prior))
    assert abs(deviations).max() < 4


# ---------------------------------------------------------------------------------------------------- rollouts


@pytest.mark.parametrize("waves", [1, 4])
def test_rollouts_go_round_and_the_best_mean_wins(waves: int) -> None:
    """Every legal action gets its share of rollouts, whatever they return."""
    mask = [True, False, True, True]
    result = pull(
        [0.0, 9.0, 2.0, 1.0], [0.0] * 4, mask, algorithm="rollouts", leaf="rollout", num_simulations=9, waves=waves
    )
    assert result.visits.tolist() == [3, 0, 3, 3]
    assert result.action == 2
    assert result.action_weights.tolist() == [0, 0, 1, 0]
    assert result.q[[0, 2, 3]].tolist() == [0, 2, 1]
