"""Policies and returns that searches found."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
import torch

from asyncrl.config import PPOConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.batches import Stage
from asyncrl.learner.exit_targets import check_actions, cross_entropy, found_of, search_returns, weighted_mean
from asyncrl.records import Array, Unroll
from tests.unit.learner.unrolls import acted, changed, lanes_of, lost_at, model_for

CONFIG = PPOConfig(num_envs=4, num_steps=32, gamma=0.9, gae_lambda=0.8)
CPU = torch.device("cpu")


def searched(unroll: Unroll, *, games: bool = False, seed: int = 0) -> Unroll:
    """As if a search had acted: random policies, most rows searched, turns that change now and then."""
    rng = np.random.default_rng(seed)
    shape = unroll.valid.shape
    policy = rng.dirichlet([1.0, 1.0], shape).astype(np.float32)
    weight = (rng.random(shape) < 0.7).astype(np.float32)
    side = np.where(rng.random(shape) < 0.5, -1.0, 1.0) if games else np.ones(shape)
    return changed(unroll, kept=[policy, weight, side.astype(np.float32)])


def plain_returns(unroll: Unroll, after: Array, config: PPOConfig) -> Array:
    """λ-returns [T, N] of who moves, by their recursion; `after` [T, N] values what followed, for who moves there."""
    side = unroll.kept[2]
    games = bool((side < 0).any())
    found = np.zeros(unroll.valid.shape)
    for n in range(unroll.num_slots):
        for t in reversed(range(unroll.num_steps)):
            reward = unroll.reward[t, n]
            if unroll.terminated[t, n]:
                found[t, n] = reward
                continue
            breaks_off = unroll.ended[t, n] or t == unroll.num_steps - 1
            turns = games if breaks_off else side[t, n] != side[t + 1, n]
            sign = -1.0 if turns else 1.0
            value = after[t, n] if breaks_off else unroll.value[t + 1, n]
            following = value if breaks_off else found[t + 1, n]
            mixed = (1 - config.gae_lambda) * value + config.gae_lambda * following
            found[t, n] = reward + config.gamma * sign * mixed
    return found


@pytest.mark.parametrize("games", [False, True], ids=["one player", "two players"])
@pytest.mark.parametrize("gae_lambda", [0.8, 1.0])
def test_returns_are_those_of_who_moves(games: bool, gae_lambda: float) -> None:
    """Turns that change at random, truncated and terminated episodes: the recursion, row by row."""
    config = dataclasses.replace(CONFIG, gae_lambda=gae_lambda)
    model = model_for(config)
    unroll = searched(acted(model, num_steps=64), games=games)
    assert unroll.truncated.any() and unroll.terminated.any()
    batch = Stage(CPU).load(lanes_of_kept(unroll, [1, 3]))
    found = found_of(lanes_of_kept(unroll, [1, 3]), CPU)
    values = model.step(
        [torch.from_numpy(unroll.last_obs[0])], torch.zeros(unroll.num_slots, dtype=torch.bool), []
    ).value
    ends = model.step(
        [torch.from_numpy(unroll.end_obs[0])], torch.zeros(len(unroll.end_rows), dtype=torch.bool), []
    ).value
    after = np.zeros(unroll.valid.shape, np.float32)
    after[-1] = values.detach().numpy()
    after[unroll.end_rows[:, 0], unroll.end_rows[:, 1]] = ends.detach().numpy()
    returns = search_returns(model, batch, batch.reward, found.side, config, games=games)
    np.testing.assert_allclose(returns, plain_returns(unroll, after, config), rtol=1e-4, atol=1e-5)


def lanes_of_kept(unroll: Unroll, widths: list[int]) -> list[Unroll]:
    """`lanes_of`, with what was kept."""
    starts = np.cumsum([0, *widths])
    return [
        changed(lane, kept=[leaf[:, start : start + lane.num_slots] for leaf in unroll.kept])
        for lane, start in zip(lanes_of(unroll, widths), starts, strict=False)
    ]


def test_what_was_found_is_in_the_order_of_the_batch() -> None:
    """Row t * N + n is row [t, n]; void rows have no weight, whatever they hold."""
    unroll = lost_at(searched(acted(model_for(CONFIG), num_steps=16)), 7, [2])
    found = found_of(lanes_of_kept(unroll, [2, 2]), CPU)
    np.testing.assert_array_equal(found.policy.numpy().reshape(16, 4, 2), unroll.kept[0])
    np.testing.assert_array_equal(found.weight.numpy().reshape(16, 4), unroll.kept[1] * unroll.valid)
    np.testing.assert_array_equal(found.side, unroll.kept[2])


def test_cross_entropy_knows_legal_actions_alone() -> None:
    """Against the definition over legal actions; its gradient has no NaN, and is 0 where policies agree."""
    logits = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.0, -3.0]], requires_grad=True)
    mask = torch.tensor([[True, False, True], [True, True, True]])
    policy = torch.tensor([[0.25, 0.0, 0.75], [0.2, 0.3, 0.5]])
    found = cross_entropy(logits, mask, policy)
    legal = torch.log_softmax(logits[0, [0, 2]], 0)
    torch.testing.assert_close(found[0], -(0.25 * legal[0] + 0.75 * legal[1]))
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 1] == 0.0
    own = torch.softmax(logits[1], 0).detach()[None]
    (gradient,) = torch.autograd.grad(cross_entropy(logits[1:], None, own).sum(), logits)
    torch.testing.assert_close(gradient[1], torch.zeros(3), atol=1e-6, rtol=0)


def test_means_are_of_what_has_weight() -> None:
    """A row without weight does not count; none at all is 0, not NaN."""
    values = torch.tensor([1.0, 5.0, 100.0])
    assert weighted_mean(values, torch.tensor([1.0, 1.0, 0.0])) == 3.0
    assert weighted_mean(values, torch.zeros(3)) == 0.0


def test_other_action_spaces_are_refused() -> None:
    """A Box has no list of actions."""
    model = model_for(CONFIG, gym.make("Pendulum-v1"))
    with pytest.raises(ConfigError, match="one Discrete action"):
        check_actions(model, dataclasses.replace(CONFIG, search="exit"))
