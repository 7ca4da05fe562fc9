"""A network as a search wants it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import MultiDiscrete

from asyncrl.config import DQNConfig, PPOConfig, RunConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.algorithms import open_learner
from asyncrl.learner.model import build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.ppo import PPO
from asyncrl.learner.prior_policy import prior_policy, proposing_policy
from tests.rig.sync_driver import spec_of
from tests.unit.learner.spaces_served import VECTOR, served
from tests.unit.learner.unrolls import cartpole, model_for

CONFIG = PPOConfig(num_envs=4, num_steps=32)


def test_the_logits_are_those_of_the_action() -> None:
    """Log-probabilities of the drawn actions follow from what was told; under a mask from what is left of it."""
    policy = prior_policy(PPO(model_for(CONFIG), CONFIG), None, threads=1)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(64, 4)).astype(np.float32)
    acted = policy.act([obs], None, np.zeros(64, np.bool_), (), rng.integers(1 << 60, size=64).astype(np.uint64))
    (logits,) = acted.kept
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(acted.log_prob, log_p[np.arange(64), acted.action[0]], atol=1e-6)
    assert 0 < acted.action[0].mean() < 1


def test_samples_are_those_of_the_policy() -> None:
    """Many for one state of Pendulum: mean and deviation of the head's Gaussian, within the bounds that are sent; a row
    draws the same beside others."""
    config = PPOConfig(log_std_init=-1.0)
    learner = PPO(model_for(config, gym.make("Pendulum-v1")), config)
    policy = proposing_policy(learner, 4000, threads=1)
    obs = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, -2.0]], np.float32)
    keys = np.array([7, 8], np.uint64)
    both = policy.act([obs], None, np.zeros(2, np.bool_), (), keys)
    (samples,) = both.kept
    assert samples.shape == (2, 4000, 1)
    with torch.no_grad():
        out = learner.model.step([torch.from_numpy(obs)], torch.zeros(2, dtype=torch.bool), [])
        mode = learner.model.head.mode(out.params, None)[0].numpy()
    np.testing.assert_allclose(samples.mean(1), mode, atol=4 * np.exp(-1.0) / np.sqrt(4000))
    np.testing.assert_allclose(samples.std(1), np.exp(-1.0), rtol=0.1)
    np.testing.assert_allclose(both.value, out.value.numpy(), atol=1e-6)
    alone = policy.act([obs[1:]], None, np.zeros(1, np.bool_), (), keys[1:])
    np.testing.assert_allclose(alone.kept[0][0], samples[1], atol=1e-6)
    assert not np.array_equal(samples[0] - mode[0], samples[1] - mode[1])
    wide = PPOConfig(log_std_init=3.0)
    sent = proposing_policy(PPO(model_for(wide, gym.make("Pendulum-v1")), wide), 50, threads=1)
    assert np.abs(sent.act([obs], None, np.zeros(2, np.bool_), (), keys).kept[0]).max() == 2.0


def test_samples_are_allowed() -> None:
    """Each row's by its own mask, and all that it allows; without masks everything is drawn."""
    learner = PPO(build_model(served(VECTOR, MultiDiscrete([3, 2]), masked=True), ModelConfig(), 1), CONFIG)
    policy = proposing_policy(learner, 200, threads=1)
    obs, first = np.ones((2, 4), np.float32), np.zeros(2, np.bool_)
    mask = np.array([[1, 0, 0, 1, 1], [0, 1, 1, 0, 1]], np.bool_)
    keys = np.array([7, 8], np.uint64)
    (samples,) = policy.act([obs], mask, first, (), keys).kept
    assert [set(map(tuple, row.tolist())) for row in samples] == [{(0, 0), (0, 1)}, {(1, 1), (2, 1)}]
    (free,) = policy.act([obs], None, first, (), keys).kept
    assert len(set(map(tuple, free[0].tolist()))) == 6


@pytest.mark.parametrize(
    ("config", "env", "why"),
    [
        (DQNConfig(), "CartPole-v1", "wants a policy and a value, and DQN has action values alone"),
        (CONFIG, "Pendulum-v1", "lists the actions of one Discrete space"),
        (PPOConfig(gru_size=8), "CartPole-v1", "does not carry what a network remembers"),
    ],
)
def test_networks_that_cannot_judge_are_refused(config: RunConfig, env: str, why: str) -> None:
    """By what they lack."""
    learner = open_learner(config, spec_of(gym.make(env)), torch.device("cpu"))
    with pytest.raises(ConfigError, match=why):
        prior_policy(learner, None, threads=1)


def test_it_acts_with_the_weights_of_now() -> None:
    """A copy: what is learned afterwards does not change it."""
    learner = PPO(model_for(CONFIG), CONFIG)
    policy = prior_policy(learner, None, threads=1)
    obs = cartpole().reset(seed=1)[0][None]
    before = policy.act([obs], None, np.ones(1, np.bool_), (), None)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(1.0)
    np.testing.assert_array_equal(policy.act([obs], None, np.ones(1, np.bool_), (), None).kept[0], before.kept[0])
